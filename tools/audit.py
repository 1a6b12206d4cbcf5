"""Look up every pinned dependency in the databases of known vulnerabilities that pip-audit reads: PyPI's and OSV's.

    ./run audit

ends with 0 where nothing is known against any of them, 1 where something is, and 2 where nobody could be asked, or not
about all of them.
"""

import argparse
import json
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_PYPI = "https://pypi.org/pypi"
_OSV = "https://api.osv.dev/v1/query"
_TIMEOUT_S = 20
_ANSWER_SIZE_MAX = 32 * 1024 * 1024
_AT_ONCE = 16


class UnknownError(Exception):
    """A database that does not answer, or not about this."""


@dataclass(frozen=True)
class Pin:
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


@dataclass
class Verdict:
    """What is known against a pin; or, in ``reasons``, why nothing is known at all."""

    pin: Pin
    vulnerabilities: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def read_pins(path: Path) -> list[Pin]:
    return [Pin(*line.split("==")) for line in path.read_text().splitlines()]


def judge(pin: Pin, pypi: str, osv: str) -> Verdict:
    reasons = []
    for ask, address in ((_ask_pypi, pypi), (_ask_osv, osv)):
        try:
            return Verdict(pin, ask(pin, address))
        except UnknownError as error:
            reasons.append(str(error))
        except (AttributeError, KeyError, TypeError) as error:
            reasons.append(f"{address} answers in a form of its own: {error!r}")
    return Verdict(pin, reasons=reasons)


def _ask_pypi(pin: Pin, address: str) -> list[str]:
    try:
        about = _fetch(f"{address}/{pin.name}/{pin.version}/json")
    except UnknownError:
        # Mirrors may tell of the newest version only.
        about = _fetch(f"{address}/{pin.name}/json")
        version = about.get("info", {}).get("version")
        if version != pin.version:
            raise UnknownError(f"{address} tells of {version} only") from None
    if "vulnerabilities" not in about:
        # So do mirrors that leave them out.
        raise UnknownError(f"{address} tells nothing of vulnerabilities")
    return [_told(each, each.get("fixed_in")) for each in about["vulnerabilities"] if not each.get("withdrawn")]


def _ask_osv(pin: Pin, address: str) -> list[str]:
    question = {"package": {"name": pin.name, "ecosystem": "PyPI"}, "version": pin.version}
    answer = _fetch(address, json.dumps(question).encode())
    return [_told(each, None) for each in answer.get("vulns", []) if not each.get("withdrawn")]


def _told(vulnerability: dict[str, Any], fixed_in: list[str] | None) -> str:
    names = ", ".join([vulnerability["id"], *vulnerability.get("aliases", [])])
    remedy = f", fixed in {', '.join(fixed_in)}" if fixed_in else ""
    return f"{names}{remedy}: https://osv.dev/{vulnerability['id']}"


@cache
def _opener() -> urllib.request.OpenerDirector:
    """One for all: to read the authorities' certificates takes longer than a question."""
    return urllib.request.build_opener(urllib.request.HTTPSHandler(context=ssl.create_default_context()))


# Why hosts do not answer: nobody waits for them again.
_silent: dict[str, str] = {}


def _fetch(address: str, body: bytes | None = None) -> dict[str, Any]:
    host = urlsplit(address).netloc
    if host in _silent:
        raise UnknownError(f"{address} does not answer: {_silent[host]}")
    request = urllib.request.Request(address, body, {"Accept": "application/json"})
    try:
        with _opener().open(request, timeout=_TIMEOUT_S) as answer:
            content = json.loads(answer.read(_ANSWER_SIZE_MAX))
    except urllib.error.HTTPError as error:
        raise UnknownError(f"{address} answers {error.code} {HTTPStatus(error.code).phrase}") from error
    except OSError as error:
        reason = _silent[host] = str(getattr(error, "reason", error))
        raise UnknownError(f"{address} does not answer: {reason}") from error
    except ValueError as error:
        raise UnknownError(f"{address} answers no JSON: {error}") from error
    if not isinstance(content, dict):
        raise UnknownError(f"{address} answers no JSON object")
    return content


def report(verdicts: Iterable[Verdict]) -> int:
    """Tell what was found, and with which code to end."""
    known, vulnerable, unknown = 0, 0, []
    for verdict in verdicts:
        known += not verdict.reasons
        vulnerable += bool(verdict.vulnerabilities)
        if verdict.reasons:
            unknown.append(verdict)
        for each in verdict.vulnerabilities:
            print(f"{verdict.pin}: {each}")
    print(f"{known} of {known + len(unknown)} pinned dependencies looked up, {vulnerable} with known vulnerabilities")
    for verdict in unknown:
        print(f"not known: {verdict.pin} ({'; '.join(verdict.reasons)})", file=sys.stderr)
    return 1 if vulnerable else 2 if unknown else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./run audit", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pypi", default=_PYPI, help=f"where PyPI's JSON API is ({_PYPI})")
    parser.add_argument("--osv", default=_OSV, help=f"where OSV is asked what PyPI does not tell ({_OSV})")
    parser.add_argument("--pins", type=Path, default=Path(__file__).parents[1] / "constraints.txt")
    chosen = parser.parse_args()
    with ThreadPoolExecutor(_AT_ONCE) as asking:
        return report(asking.map(lambda pin: judge(pin, chosen.pypi, chosen.osv), read_pins(chosen.pins)))


if __name__ == "__main__":
    sys.exit(main())
