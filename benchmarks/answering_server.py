"""``answering_server.py PORT``: says of every document that it is indexed, and keeps none.

What a worker does for a search index without what the server does for it: the fake server of the tests takes 0.2 ms of a core for
each document, a real one much more.
"""

from __future__ import annotations

import gzip
import http.server
import sys
from typing import Any

import orjson

_ITEM = b'{"index":{"status":201}}'


class AnsweringHandler(http.server.BaseHTTPRequestHandler):
    """Operations of one request are all of the kind that brings a document."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    documents = 0

    def do_GET(self) -> None:
        """Also tells how many documents came, at ``/documents``."""
        if self.path == "/documents":
            self._answer(200, orjson.dumps(AnsweringHandler.documents))
        elif self.path == "/":
            self._answer(200, orjson.dumps({"version": {"distribution": "opensearch"}}))
        else:
            self._answer(404, b"{}")

    def do_HEAD(self) -> None:
        """Whatever is asked for is there, if nobody wants to see it."""
        self._answer(200, b"")

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        count = body.count(b"\n") // 2
        AnsweringHandler.documents += count
        self._answer(200, b'{"errors":false,"items":[%b]}' % b",".join([_ITEM] * count))

    def log_message(self, format: str, *arguments: Any) -> None:
        """Silent."""

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), AnsweringHandler)
    server.serve_forever()
