"""How many files and sockets this process may have."""

import resource
from contextlib import suppress


def raise_file_limit() -> int:
    """Take all that the system grants, as Go's runtime does at its start: the usual 1,024 are a precaution for programs
    that use select(). How many files may be open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # an unlimited hard limit may be beyond what the kernel allows
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft
