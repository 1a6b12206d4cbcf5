"""Hosts that can be cut off: network namespaces, each with a cable to the test's own."""

import os
import secrets
import shutil
import subprocess
from pathlib import Path

# They all end with the one that is started by this.
_OWN_PROCESSES = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def why_not() -> str | None:
    """Why this machine cannot have them."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip") or not shutil.which("nsenter"):
        return "network namespaces need iproute2 and util-linux"
    tried = subprocess.run([*_OWN_PROCESSES, "--net", "true"], capture_output=True, text=True)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else None


class CutHost:
    """``near`` is this side's address, ``far`` the one within; ``prefix`` runs a command there.

    Processes there have numbers of their own, so that nobody here can look into their memory.
    """

    def __init__(self) -> None:
        name = secrets.token_hex(3)
        third = secrets.randbelow(256)
        self._namespace, self._cable = f"nsq-{name}", f"nsq{name}"
        self.near, self.far = f"10.213.{third}.1", f"10.213.{third}.2"
        _ip("netns", "add", self._namespace)
        try:
            self._connect()
        except BaseException:
            self.remove()
            raise
        self.prefix = ["nsenter", f"--net={Path('/run/netns') / self._namespace}", *_OWN_PROCESSES]

    def _connect(self) -> None:
        inner = f"{self._cable}i"
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", inner, "netns", self._namespace)
        _ip("addr", "add", f"{self.near}/30", "dev", self._cable)
        _ip("link", "set", self._cable, "up")
        _ip("-n", self._namespace, "addr", "add", f"{self.far}/30", "dev", inner)
        _ip("-n", self._namespace, "link", "set", inner, "up")
        _ip("-n", self._namespace, "link", "set", "lo", "up")

    def cut(self) -> None:
        """Nothing gets through any more, and nobody is told."""
        _ip("link", "set", self._cable, "down")

    def mend(self) -> None:
        _ip("link", "set", self._cable, "up")

    def remove(self) -> None:
        _ip("netns", "del", self._namespace)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
