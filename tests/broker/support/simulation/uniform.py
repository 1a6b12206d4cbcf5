"""Bodies as the parser hands them on when they are large and of one size."""

from pyspark_nsq.proto.commands import sized
from pyspark_nsq.proto.uniform import UniformBodies


def together(bodies: list[bytes]) -> list[bytes] | UniformBodies:
    """The same bodies in one piece, if they have one size."""
    if len(set(map(len, bodies))) > 1:
        return bodies
    return UniformBodies(b"".join(map(sized, bodies)), len(bodies))
