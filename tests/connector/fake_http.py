"""A server that answers HTTP as told, in the place of a lookupd or of an nsqd."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyspark_nsq.connector.settings import Address, HttpAddress

Answers = dict[str, Any]


class FakeLookupd:
    """Answers paths from a dict: an object as JSON, bytes as they are, a function by being called."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = HttpAddress(Address("127.0.0.1", self.server.server_port))
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        found = self.answers.get(handler.path)
        if callable(found):
            found(handler)
            return
        content = found if isinstance(found, bytes) else json.dumps(found).encode()
        handler.send_response(404 if found is None else 200)
        handler.end_headers()
        handler.wfile.write(content)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
