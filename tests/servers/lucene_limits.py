"""What a real search server refuses and the fake takes: terms that Lucene does not index. For ``HttpProxy.before``."""

from __future__ import annotations

import gzip
import http.client
from collections.abc import Iterator
from typing import Any

import orjson

from tests.servers.http_proxy import HOST, Exchange, Fault, Refusal

LONGEST_TERM = 32_766
_FLAT = ("flat_object", "flattened")
_GZIP = b"\x1f\x8b"


class LuceneLimits:
    """``port`` is the fake's. Called with a request, gives the answer to one that has documents with such terms: these are
    refused, each alone."""

    def __init__(self, port: int) -> None:
        self._port = port

    def __call__(self, exchange: Exchange) -> Fault | None:
        if exchange.target.partition("?")[0] != "/_bulk":
            return None
        body = gzip.decompress(exchange.body) if exchange.body.startswith(_GZIP) else exchange.body
        if len(body) <= LONGEST_TERM:
            return None
        operations = list(_operations(body))
        refused = {i: field for i, (head, document) in enumerate(operations) if (field := self._immense(head, document))}
        if not refused:
            return None
        kept = [line for i, each in enumerate(operations) if i not in refused for line in each if line]
        answer: dict[str, Any] = {"took": 0, "items": []}
        if kept:
            answer = self._ask("POST", exchange.target, b"".join(line + b"\n" for line in kept))
        items = iter(answer["items"])
        every = [_refusal(head, refused[i]) if i in refused else next(items) for i, (head, _) in enumerate(operations)]
        return Refusal(200, {"Content-Type": "application/json"}, orjson.dumps(answer | {"errors": True, "items": every}))

    def _immense(self, head: bytes, document: bytes) -> str:
        """The first field that has such a term; "" for none."""
        if len(document) <= LONGEST_TERM:
            return ""
        [operation] = orjson.loads(head).values()
        found = self._ask("GET", f"/{operation['_index']}/_mapping", b"")
        properties = {name: each for index in found.values() for name, each in index["mappings"]["properties"].items()}
        fields: dict[str, Any] = orjson.loads(document)
        for name, value in fields.items():
            kind = properties.get(name, {})
            if kind.get("type") in _FLAT and any(size > LONGEST_TERM for size in _sizes(value, len(name.encode()))):
                return name
            if kind.get("type") == "keyword" and "ignore_above" not in kind and _is_long(value):
                return name
        return ""

    def _ask(self, method: str, target: str, body: bytes) -> Any:
        connection = http.client.HTTPConnection(HOST, self._port)
        try:
            connection.request(method, target, body or None, {"Content-Type": "application/json"})
            return orjson.loads(connection.getresponse().read())
        finally:
            connection.close()


def _operations(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Each with its document, b"" for a deletion."""
    lines = iter(body.split(b"\n"))
    for head in lines:
        if head:
            yield head, b"" if head.startswith(b'{"delete"') else next(lines)


def _sizes(value: Any, path_bytes: int) -> Iterator[int]:
    """Of the terms that a flat object becomes: a path, and a path with a value."""
    yield path_bytes
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _sizes(each, path_bytes + 1 + len(name.encode()))
    elif isinstance(value, list):
        for each in value:
            yield from _sizes(each, path_bytes)
    else:
        yield path_bytes + 1 + len(str(value).encode())


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and len(value.encode()) > LONGEST_TERM


def _refusal(head: bytes, field: str) -> dict[str, Any]:
    [(name, operation)] = orjson.loads(head).items()
    reason = f'Document contains at least one immense term in field="{field}" (whose UTF8 encoding is longer than the max length'
    error = {"type": "illegal_argument_exception", "reason": f"{reason} {LONGEST_TERM})"}
    return {name: {"_index": operation["_index"], "_id": operation["_id"], "status": 400, "error": error}}
