"""Where processes wait for connections."""

import random
import socket
from contextlib import ExitStack
from ipaddress import ip_address

import psutil


def listening(pid: int) -> dict[tuple[str, int], str]:
    """Address and port of every listening socket of a process and all its children, with the program behind it."""
    found = {}
    process = psutil.Process(pid)
    for each in [process, *process.children(recursive=True)]:
        try:
            sockets = each.net_connections(kind="tcp")
            program = " ".join(each.cmdline())[:120]
        except psutil.NoSuchProcess:
            continue
        found.update({(one.laddr.ip, one.laddr.port): program for one in sockets if one.status == psutil.CONN_LISTEN})
    return found


def wider_than_loopback(pid: int) -> list[str]:
    """The sockets that somebody on another machine could reach."""
    return [f"{ip}:{port} of {program}" for (ip, port), program in listening(pid).items() if not _is_loopback(ip)]


def _is_loopback(ip: str) -> bool:
    address = ip_address(ip)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def free_ports(count: int) -> range:
    """So many ports in a row where nobody listens on loopback; connections do not begin at any of them."""
    while True:
        first = random.randrange(20_000, 30_000)
        ports = range(first, first + count)
        try:
            with ExitStack() as taken:
                for port in ports:
                    taken.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            continue
        return ports
