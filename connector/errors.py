"""What the connector raises. No text shows a secret or the content of a message."""

from pyspark_nsq.connector.settings import Address, HttpAddress


class OptionError(ValueError):
    """An option that is unknown, missing, malformed or at odds with another."""


class NsqError(Exception):
    """Something went wrong between this process and NSQ's."""


class ConnectError(NsqError):
    """A connection that could not be made or did not last."""

    def __init__(self, address: Address, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"nsqd {self.address}: {self.reason}"


class RefusedError(ConnectError):
    """nsqd answered with an error: its code, and the text behind the code."""

    def __init__(self, address: Address, code: str, text: str) -> None:
        super().__init__(address, f"{code} {text}".rstrip())
        self.args = (address, code, text)
        self.code = code
        self.text = text


class SecurityError(ConnectError):
    """TLS, a certificate, a secret, a feature or a value that one side refuses: only a change helps, not a new try."""


class DeadLetterError(ConnectError):
    """The secret does not open publishing to ``deadLetterTopic``."""


class DiscoveryError(NsqError):
    """A lookupd or an nsqd did not answer a question over HTTP, or not in the form it has to."""

    def __init__(self, address: HttpAddress, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}"
