"""The look-up of dependencies in the databases of vulnerabilities, against databases played by the test."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

NOBODY = "http://127.0.0.1:1"
KNOWN = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fixed_in": ["1.1"], "withdrawn": None}


@contextmanager
def database(answers: dict[str, Any]) -> Iterator[str]:
    """A server that answers paths with JSON and all others with 404; to a POST its one answer is under "osv"."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(answers.get(self.path))

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(answers.get(f"osv {asked['package']['name']} {asked['version']}", {}))

        def _answer(self, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(404 if value is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def audit(root: Path, folder: Path, pypi: str, osv: str, *pins: str) -> subprocess.CompletedProcess[str]:
    path = folder / "pins.txt"
    path.write_text("\n".join(pins))
    command = [sys.executable, root / "tools/audit.py", "--pypi", pypi, "--osv", osv, "--pins", path]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_known_vulnerability_is_told_with_its_remedy(root: Path, tmp_path: Path) -> None:
    with database({"/a/1.0/json": {"vulnerabilities": [KNOWN]}, "/b/2.0/json": {"vulnerabilities": []}}) as pypi:
        answer = audit(root, tmp_path, pypi, NOBODY, "a==1.0", "b==2.0")
    assert answer.returncode == 1
    assert "a==1.0: PYSEC-1, CVE-1, fixed in 1.1" in answer.stdout
    assert "2 of 2" in answer.stdout
    assert "b==2.0" not in answer.stdout


def test_what_was_withdrawn_does_not_count(root: Path, tmp_path: Path) -> None:
    with database({"/a/1.0/json": {"vulnerabilities": [KNOWN | {"withdrawn": "2026-01-01"}]}}) as pypi:
        assert audit(root, tmp_path, pypi, NOBODY, "a==1.0").returncode == 0


def test_a_mirror_that_knows_the_newest_version_only_is_used_for_that(root: Path, tmp_path: Path) -> None:
    about = {"info": {"version": "1.0"}, "vulnerabilities": [KNOWN]}
    with database({"/a/json": about, "/b/json": about}) as pypi:
        answer = audit(root, tmp_path, pypi, NOBODY, "a==1.0", "b==0.9")
    assert "a==1.0: PYSEC-1" in answer.stdout
    assert "not known: b==0.9" in answer.stderr


def test_the_second_database_is_asked_where_the_first_is_silent(root: Path, tmp_path: Path) -> None:
    with database({"osv a 1.0": {"vulns": [{"id": "GHSA-1"}]}}) as osv:
        answer = audit(root, tmp_path, NOBODY, osv, "a==1.0", "b==2.0")
    assert answer.returncode == 1
    assert "a==1.0: GHSA-1" in answer.stdout
    assert "2 of 2" in answer.stdout


def test_silence_is_not_taken_for_health(root: Path, tmp_path: Path) -> None:
    answer = audit(root, tmp_path, NOBODY, NOBODY, "a==1.0")
    assert answer.returncode == 2
    assert "0 of 1" in answer.stdout
    assert "not known: a==1.0 (http://127.0.0.1:1/a/json does not answer" in answer.stderr


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"info": {"version": "1.0"}}, "tells nothing of vulnerabilities"),
        ({"vulnerabilities": None}, "answers in a form of its own"),
        ({"vulnerabilities": ["CVE-1"]}, "answers in a form of its own"),
        ({"vulnerabilities": [{}, KNOWN]}, "answers in a form of its own: KeyError('id')"),
        ("nothing", "answers no JSON object"),
    ],
)
def test_an_answer_that_does_not_tell_is_not_taken_for_health(
    root: Path, tmp_path: Path, answer: Any, reason: str
) -> None:
    with database({"/a/1.0/json": answer, "/a/json": answer}) as pypi:
        ended = audit(root, tmp_path, pypi, NOBODY, "a==1.0")
    assert ended.returncode == 2
    assert ended.stdout == "0 of 1 pinned dependencies looked up, 0 with known vulnerabilities\n"
    assert f"not known: a==1.0 ({pypi}" in ended.stderr
    assert reason in ended.stderr


def test_a_database_that_does_not_answer_is_not_waited_for_again(root: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections: list[socket.socket] = []

        def refuse() -> None:
            with suppress(OSError):
                while True:
                    connections.append(listener.accept()[0])
                    connections[-1].close()

        threading.Thread(target=refuse, daemon=True).start()
        pins = [f"a{number}==1.0" for number in range(200)]
        ended = audit(root, tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}", NOBODY, *pins)
        listener.shutdown(socket.SHUT_RDWR)
    assert ended.returncode == 2
    assert ended.stderr.count("not known") == 200
    # As many as ask at once.
    assert len(connections) <= 16
