"""What a host is called, and which of its addresses others should use."""

import ipaddress
import os
import socket
from contextlib import closing
from pathlib import Path
from typing import Final

from pyspark_nsq.connector.errors import OptionError

# An address of the documentation's network: nothing is sent there, it asks which way is the default one.
_FAR_AWAY: Final = "192.0.2.1"
_LOOPBACK: Final = "127.0.0.1"
# Any; a datagram socket that is only connected sends nothing.
_PORT: Final = 9


def is_network(host: str) -> bool:
    return "/" in host


def address_toward(host: str) -> str:
    """Which of this host's addresses it uses to reach another."""
    family, _, _, _, target = socket.getaddrinfo(host, _PORT, type=socket.SOCK_DGRAM)[0]
    with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def address_in(network: str) -> str:
    """This host's address in a network such as 10.0.0.0/8."""
    wanted = ipaddress.ip_network(network)
    try:
        found = address_toward(str(next(wanted.hosts())))
    except OSError:
        found = ""
    if not found or ipaddress.ip_address(found) not in wanted:
        raise OptionError(f"option receiverHost: the host {socket.gethostname()} has no address in {network}")
    return found


def driver_address(receiver_host: str | None) -> str:
    """Where the driver's host can be reached: as the option says, or as Spark would find out."""
    if receiver_host:
        return address_in(receiver_host) if is_network(receiver_host) else receiver_host
    if named := os.environ.get("SPARK_LOCAL_IP"):
        return named
    for host in (socket.gethostname(), _FAR_AWAY):
        try:
            found = address_toward(host)
        except OSError:
            continue
        if not ipaddress.ip_address(found).is_loopback:
            return found
    return _LOOPBACK


def identity_of(folder: Path) -> str:
    """The same for all who see this folder, and for nobody else: processes share a host if they share its files."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    machine = boot.read_text().strip() if boot.exists() else socket.gethostname()
    status = folder.stat()
    return f"{machine}-{status.st_dev}-{status.st_ino}"
