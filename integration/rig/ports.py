"""Where processes wait for connections."""

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
