"""The one way in which bytes from a peer can be wrong."""


class WireError(Exception):
    """The peer's bytes break the protocol; the stream they came on cannot be read any further."""
