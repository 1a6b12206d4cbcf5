"""A parser with a fault, for the tests of the fuzzer itself."""

from fuzz.target import Target


def stumble(data: bytes) -> None:
    if data[:4] == b"bad!":
        raise RuntimeError("what no parser may do")


TARGETS = {"planted": Target("planted", stumble, [b"good"], [b"bad!"], runs=1_000_000)}
