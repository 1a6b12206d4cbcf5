"""A signal that asks a process to end, for its main thread to wait for."""

import select
import signal
import socket
from typing import Final, Self


class StopSignal:
    """A handler in Python has its turn when the main thread goes on in Python. One that waits for a lock, as that of a
    ``threading.Event``, may never do: it is interrupted only if it already waits, and only if the system has chosen it
    among the process's threads. So the interpreter itself writes to a socket, which is never read, what has come."""

    def __init__(self, *numbers: int) -> None:
        self._numbers: Final = numbers

    def __enter__(self) -> Self:
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._receiver, select.POLLIN)
        self._former_fd = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        self._former = {number: signal.signal(number, lambda *_: None) for number in self._numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._former_fd)
        self._receiver.close()
        self._sender.close()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has come, which ends the wait at once."""
        return bool(self._poll.poll(None if timeout_s is None else timeout_s * 1000))
