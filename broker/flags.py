"""Command line flags in Go's syntax and a TOML file, resolved into a frozen dataclass.

A daemon declares its options once; type, default, usage, TOML key and the name in /config all come from there::

    @dataclass(frozen=True, kw_only=True)
    class LookupdOptions:
        tcp_address: str = flag("tcp-address", STRING, "0.0.0.0:4160", "<addr>:<port> to listen on")
        tombstone_lifetime_ns: int = flag("tombstone-lifetime", DURATION, 45 * SECOND, "duration of ...")

    options = load(LookupdOptions, "nsqlookupd", sys.argv[1:])     # prints and exits as Go does, or returns
    config_values(options)                                          # {"tcp_address": "0.0.0.0:4160", ...}
    dataclasses.replace(options, tombstone_lifetime_ns=0)           # a run-time change

Command line wins over the file, the file over the default. In the file the key is the flag's name with ``_`` for
``-`` unless the declaration names another; keys nobody declared are ignored, so that one file may serve several
daemons.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from pyspark_nsq.broker.flag_kinds import BOOL, STRING, Kind, quoted
from pyspark_nsq.broker.logs import Logger
from pyspark_nsq.broker.version import version_text

T = TypeVar("T")

_METADATA_KEY = "flag"


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag as declared; ``key`` names it in TOML and in /config."""

    name: str
    kind: Kind
    usage: str
    key: str


class ExitError(Exception):
    """The process is to end before it started: with this code, after these texts."""

    def __init__(self, code: int, out: str = "", err: str = "", fatal: str = "") -> None:
        super().__init__(err or fatal or out)
        self.code, self.out, self.err, self.fatal = code, out, err, fatal


class _Entry(NamedTuple):
    flag: Flag
    default: Any


_COMMON = (
    _Entry(Flag("config", STRING, "path to config file", ""), ""),
    _Entry(Flag("version", BOOL, "print version string", ""), False),
    _Entry(Flag("verbose", BOOL, "[deprecated] has no effect, use --log-level", ""), False),
)


def flag(name: str, kind: Kind, default: Any, usage: str, *, key: str = "") -> Any:
    """Declare a dataclass field as an option; ``key`` only where it is not the name with ``_`` for ``-``."""
    declared = Flag(name, kind, usage, key or name.replace("-", "_"))
    return field(default=default, metadata={_METADATA_KEY: declared})


def load(options_type: type[T], program: str, args: Sequence[str], accepted: Mapping[str, str] | None = None) -> T:
    """The options of this start of ``program``. Ends the process where Go's does: 0 for --version and --help, 2 for
    an unknown flag or a bad value, 1 for a config file that cannot be used. ``accepted`` are boolean flags (name to
    usage) that old scripts pass and nothing reads."""
    try:
        return resolve(options_type, program, args, accepted)
    except ExitError as end:
        sys.stdout.write(end.out)
        sys.stderr.write(end.err)
        sys.stderr.flush()
        if end.fatal:
            Logger(f"[{program}] ").fatal("%s", end.fatal)
        sys.exit(end.code)


def resolve(options_type: type[T], program: str, args: Sequence[str], accepted: Mapping[str, str] | None = None) -> T:
    """:func:`load` without the ending: raises :class:`ExitError` instead."""
    declared = _declared(options_type)
    ignored = [_Entry(Flag(name, BOOL, usage, ""), False) for name, usage in (accepted or {}).items()]
    table = {entry.flag.name: entry for entry in (*declared.values(), *_COMMON, *ignored)}
    try:
        given = _parse(table, args)
    except ValueError as error:
        raise ExitError(2, err=f"{error}\n{_usage(program, table)}") from None
    except _HelpAskedError:
        raise ExitError(0, err=_usage(program, table)) from None
    if given.get("version"):
        raise ExitError(0, out=version_text(program) + "\n")
    path = given.get("config", "")
    from_file = _read_toml(path) if path else {}
    values = {}
    for field_name, entry in declared.items():
        if entry.flag.name in given:
            values[field_name] = given[entry.flag.name]
        elif entry.flag.key in from_file:
            values[field_name] = _coerced(entry.flag, from_file[entry.flag.key])
    return options_type(**values)


def config_values(options: Any) -> dict[str, Any]:
    """Every option under its config key, with the value as /config shows it: strings are shown raw, anything else
    as JSON (durations are nanoseconds, lists are tuples)."""
    return {entry.flag.key: getattr(options, name) for name, entry in _declared(type(options)).items()}


class _HelpAskedError(Exception):
    """-h or -help, where no such flag is declared."""


def _declared(options_type: Any) -> dict[str, _Entry]:
    """Field name to flag and default, of the fields that are flags."""
    return {
        item.name: _Entry(item.metadata[_METADATA_KEY], item.default)
        for item in dataclasses.fields(options_type)
        if _METADATA_KEY in item.metadata
    }


def _parse(table: Mapping[str, _Entry], args: Sequence[str]) -> dict[str, Any]:
    """The values given, by flag name. The first word that is no flag ends the parsing; the rest is ignored."""
    given: dict[str, Any] = {}
    at = 0
    while at < len(args):
        word = args[at]
        if len(word) < 2 or word[0] != "-" or word == "--":
            break
        at += 1
        name, has_value, value = word[2 if word[1] == "-" else 1 :].partition("=")
        if not name or name[0] == "-":
            raise ValueError(f"bad flag syntax: {word}")
        entry = table.get(name)
        if entry is None:
            if name in ("h", "help"):
                raise _HelpAskedError
            raise ValueError(f"flag provided but not defined: -{name}")
        kind = entry.flag.kind
        if not has_value:
            if kind.takes_no_argument:
                value = "true"
            elif at < len(args):
                value = args[at]
                at += 1
            else:
                raise ValueError(f"flag needs an argument: -{name}")
        try:
            given[name] = kind.parse(value, given.get(name))
        except ValueError as error:
            form = "boolean value {} for" if kind.takes_no_argument else "value {} for flag"
            raise ValueError(f"invalid {form.format(quoted(value))} -{name}: {error}") from None
    return given


def _read_toml(path: str) -> dict[str, Any]:
    import tomllib  # 20 ms that only those who have a file pay

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise ExitError(1, fatal=f"failed to load config file {path} - {error}") from None


def _coerced(declared: Flag, value: Any) -> Any:
    try:
        return declared.kind.coerce(value)
    except ValueError as error:
        raise ExitError(1, fatal=f"config file: {declared.key} = {value!r}: {error}") from None


def _usage(program: str, table: Mapping[str, _Entry]) -> str:
    lines = [f"Usage of {program}:"]
    for name, (declared, default) in sorted(table.items()):
        type_name = f" {declared.kind.type_name}" if declared.kind.type_name else ""
        shown = declared.kind.show(default)
        lines.append(f"  -{name}{type_name}\n    \t{declared.usage}{f' (default {shown})' if shown else ''}")
    return "\n".join(lines) + "\n"
