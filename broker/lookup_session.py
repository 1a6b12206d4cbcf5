"""nsqd's side of one connection to an nsqlookupd: bytes in, bytes out, no socket and no clock.

Commands may be sent in one go; answers come back in their order. After every fresh connection the whole of what is
registered is said again, because an nsqlookupd forgets a producer with its connection.
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_nsq.proto import commands
from pyspark_nsq.proto.errors import WireError

Registration = tuple[str, str | None]

_SIZE_BYTES: Final = 4
_IDENTIFY: Final = "IDENTIFY"


@dataclass(frozen=True, slots=True)
class LookupdInfo:
    """How an nsqlookupd describes itself; without an address it cannot be asked over HTTP."""

    broadcast_address: str
    http_port: int

    @property
    def http_address(self) -> str:
        host = f"[{self.broadcast_address}]" if ":" in self.broadcast_address else self.broadcast_address
        return f"{host}:{self.http_port}" if host else ""


class LookupSession:
    def __init__(self, answer_size_max: int) -> None:
        self._answer_size_max = answer_size_max
        self._input = b""
        self._awaited: deque[str] = deque()
        self.info: LookupdInfo | None = None

    @property
    def awaited(self) -> int:
        """How many answers are still to come."""
        return len(self._awaited)

    def greet(self, identity: Mapping[str, object]) -> bytes:
        """The first bytes on a connection. What comes next waits for the answer (``info``): it may be a refusal."""
        self._awaited.append(_IDENTIFY)
        return commands.MAGIC_V1 + commands.identify({key: identity[key] for key in sorted(identity)})

    def register_all(self, registrations: Iterable[Registration]) -> bytes:
        return b"".join(self.register(*registration) for registration in registrations)

    def register(self, topic: str, channel: str | None = None) -> bytes:
        return self._command(commands.register(topic, channel))

    def unregister(self, topic: str, channel: str | None = None) -> bytes:
        return self._command(commands.unregister(topic, channel))

    def ping(self) -> bytes:
        return self._command(commands.PING)

    def _command(self, line: bytes) -> bytes:
        self._awaited.append(line.decode().rstrip())
        return line

    def receive(self, data: bytes) -> list[str]:
        """Take bytes of the nsqlookupd; what it refused, as text for the log. WireError ends the connection."""
        self._input += data
        complaints = []
        while (answer := self._next_answer()) is not None:
            if not self._awaited:
                raise WireError(f"an answer that nothing asked for: {answer[:100]!r}")
            command = self._awaited.popleft()
            if command == _IDENTIFY:
                self.info = _parse_info(answer)
            elif answer != b"OK":
                complaints.append(f"{command}: {answer[:200]!r}")
        return complaints

    def _next_answer(self) -> bytes | None:
        if len(self._input) < _SIZE_BYTES:
            return None
        size = int.from_bytes(self._input[:_SIZE_BYTES], "big", signed=True)
        if not 0 <= size <= self._answer_size_max:
            raise WireError(f"an answer of {size} bytes; at most {self._answer_size_max} are read")
        end = _SIZE_BYTES + size
        if len(self._input) < end:
            return None
        answer, self._input = self._input[_SIZE_BYTES:end], self._input[end:]
        return answer


def _parse_info(answer: bytes) -> LookupdInfo:
    try:
        fields = json.loads(answer)
        address, port = fields.get("broadcast_address", ""), fields.get("http_port", 0)
    except (ValueError, AttributeError, RecursionError) as error:
        raise WireError(f"parsing response - {answer[:200]!r}") from error
    if not isinstance(address, str) or not isinstance(port, int):
        raise WireError(f"parsing response - {answer[:200]!r}")
    return LookupdInfo(address, port)
