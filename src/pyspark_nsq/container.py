"""What the container image starts: a daemon whose flags may also come from the environment, and its health check.

``NSQD_MEM_QUEUE_SIZE=100`` is ``--mem-queue-size=100`` of nsqd, and ``NSQLOOKUPD_…`` the same for nsqlookupd. A flag
that may be repeated takes several values with commas between them. What the command line says wins.
"""

import http.client
import os
import re
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

DATA_PATH: Final = "/data"
_HEALTH_TIMEOUT_S: Final = 5.0
# What Kubernetes adds to the environment where a service is named nsqd or nsqlookupd, nsqd-1, nsqd-http and so on.
_OF_KUBERNETES: Final = re.compile(r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT|PORT_[0-9]+_(TCP|UDP)(_.*)?)")
_EVERYWHERE: Final = ("", "0.0.0.0", "[::]")  # noqa: S104 (where others listen)
_HTTP_ADDRESSES: Final = {"nsqd": ":4151", "nsqlookupd": ":4161"}


def flags_from(environment: Mapping[str, str], program: str, names: Mapping[str, bool]) -> list[str]:
    """Flags for the program. ``names`` are the flags it has, and whether each may be repeated.

    ``ValueError`` for a variable that stands for no flag: it is misspelt, and would be missed later.
    """
    prefix = f"{program.upper()}_"
    flags = []
    for variable, text in sorted(environment.items()):
        if not variable.startswith(prefix):
            continue
        name = variable[len(prefix) :].lower().replace("_", "-")
        if name not in names:
            if _OF_KUBERNETES.fullmatch(variable[len(prefix) :]):
                continue
            raise ValueError(f"{variable} stands for --{name}, a flag that {program} does not have")
        flags += [f"--{name}={part}" for part in (text.split(",") if names[name] else [text]) if part]
    return flags


def merged(flags: Sequence[str], winning: Sequence[str]) -> list[str]:
    """All of them, but the first only where the second do not name the same flag: one that may be repeated adds up."""
    won = {_name(word) for word in winning}
    return [*(flag for flag in flags if _name(flag) not in won), *winning]


def _name(word: str) -> str | None:
    """Of the flag that a word of a command line is, or begins."""
    return word.lstrip("-").partition("=")[0] if word.startswith("-") else None


def flags_of(program: str) -> dict[str, bool]:
    """The flags that a daemon has, and whether each may be repeated."""
    from pyspark_nsq.broker.flag_kinds import STRINGS

    return {"config": False} | {flag.name: flag.kind is STRINGS for flag in _declared(program)}


def _declared(program: str) -> Iterable[Any]:
    import dataclasses

    from pyspark_nsq.broker.lookupd_options import LookupdOptions
    from pyspark_nsq.broker.nsqd_options import NsqdOptions

    options: Any = NsqdOptions if program == "nsqd" else LookupdOptions
    return [field.metadata["flag"] for field in dataclasses.fields(options) if "flag" in field.metadata]


def start(arguments: Sequence[str]) -> NoReturn:
    """Become the daemon, or whatever else the command is, so that signals reach it."""
    program, *rest = arguments or ["nsqd"]
    if program.startswith("-"):
        program, rest = "nsqd", list(arguments)
    if program in _HTTP_ADDRESSES:
        try:
            flags = flags_from(os.environ, program, flags_of(program))
        except ValueError as error:
            sys.exit(f"{program}: {error}")
        if program == "nsqd":
            flags = merged([f"--data-path={DATA_PATH}"], flags)
        rest = merged(flags, rest)
    os.execvp(program, [program, *rest])  # noqa: S606 (there is no shell to be afraid of)


def is_healthy(command_lines: Iterable[Sequence[str]]) -> bool:
    """Whether the daemon among these processes answers ``/ping``, and well."""
    for command_line in command_lines:
        # The interpreter, the script, its flags.
        for word, program in ((word, Path(word).name) for word in command_line[:2]):
            if program in _HTTP_ADDRESSES:
                flags = command_line[command_line.index(word) + 1 :]
                return _answers(_http_address(flags, _HTTP_ADDRESSES[program]))
    return False


def _http_address(flags: Sequence[str], address: str) -> str:
    for flag, following in zip(flags, [*flags[1:], ""], strict=True):
        if _name(flag) == "http-address":
            _, mark, value = flag.partition("=")
            address = value if mark else following
    return address


class _UnixConnection(http.client.HTTPConnection):
    """To an address without a port: nsqd takes that for the path of a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_HEALTH_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _connection(address: str) -> http.client.HTTPConnection:
    host, colon, port = address.rpartition(":")
    if not colon:
        return _UnixConnection(address)
    where = "127.0.0.1" if host in _EVERYWHERE else host.strip("[]")
    return http.client.HTTPConnection(where, int(port), timeout=_HEALTH_TIMEOUT_S)


def _answers(address: str) -> bool:
    connection = _connection(address)
    try:
        connection.request("GET", "/ping")
        # 500 is "NOK". With --tls-required it is 403 for everybody who comes without TLS, and the daemon lives.
        return connection.getresponse().status < http.HTTPStatus.INTERNAL_SERVER_ERROR
    except OSError:
        return False
    finally:
        connection.close()


def _command_lines() -> Iterable[list[str]]:
    for path in sorted(Path("/proc").glob("[0-9]*/cmdline")):
        try:
            content = path.read_bytes()
        except OSError:
            continue  # It has ended meanwhile.
        yield content.decode(errors="replace").rstrip("\0").split("\0")


def main() -> int:
    """``python -m pyspark_nsq.container nsqd …``, and ``… health``."""
    if sys.argv[1:] == ["health"]:
        return 0 if is_healthy(_command_lines()) else 1
    start(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
