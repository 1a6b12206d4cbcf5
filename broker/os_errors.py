"""The system's errors in the words of Go, for clients and operators who look for them."""


def os_error_text(error: OSError) -> str:
    """``/data/t.log: no space left on device``: what failed, and why."""
    reason = error.strerror.lower() if error.strerror else str(error)
    return f"{error.filename}: {reason}" if error.filename else reason
