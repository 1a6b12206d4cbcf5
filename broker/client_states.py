"""What a client may say in which state, as nsqd has it: 0 before SUB, 3 after it, 4 after CLS."""

from typing import Final

from pyspark_nsq.broker.client_auth import FatalError
from pyspark_nsq.proto import parser

STATE_INIT: Final = 0
STATE_SUBSCRIBED: Final = 3
STATE_CLOSING: Final = 4

_LEGAL_STATES: Final = {
    b"IDENTIFY": (STATE_INIT,),
    b"AUTH": (STATE_INIT,),
    b"SUB": (STATE_INIT,),
    b"RDY": (STATE_SUBSCRIBED, STATE_CLOSING),
    b"FIN": (STATE_SUBSCRIBED, STATE_CLOSING),
    b"REQ": (STATE_SUBSCRIBED, STATE_CLOSING),
    b"TOUCH": (STATE_SUBSCRIBED, STATE_CLOSING),
    b"CLS": (STATE_SUBSCRIBED,),
}

_WORDS: Final[dict[type, bytes]] = {
    parser.Identify: b"IDENTIFY",
    parser.Auth: b"AUTH",
    parser.Subscribe: b"SUB",
    parser.Ready: b"RDY",
    parser.Finish: b"FIN",
    parser.Requeue: b"REQ",
    parser.Touch: b"TOUCH",
    parser.Close: b"CLS",
    parser.Nop: b"NOP",
}


def check_state(word: bytes, state: int) -> None:
    if word in _LEGAL_STATES and state not in _LEGAL_STATES[word]:
        raise FatalError("E_INVALID", f"cannot {word.decode()} in current state")


def tls_required(word: bytes) -> FatalError:
    text = word.decode("utf-8", "surrogateescape")
    return FatalError("E_INVALID", f"cannot {text} in current state (TLS required)")


def word_of(command: parser.Command) -> bytes:
    return command.word if isinstance(command, parser.Publish | parser.Malformed) else _WORDS[type(command)]
