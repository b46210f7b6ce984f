"""Requests to the search server, over one kept-alive connection to one of its nodes.

The server's answer to a request as a whole becomes a PgsluiceError here; answers about single documents are ``bulk``'s.
Reasons of the server quote values of rows, so none is handed on: errors name its status and the type of its error.
"""

from __future__ import annotations

import base64
import gzip
import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn
from urllib.parse import quote

import orjson

from pgsluice.shared.errors import Cause, MissingPrivilegeError, OverloadError, TerminalError, TransientError
from pgsluice.shared.http.receiver import AllowedHosts, Receiver, ReceiverAnswer, ReceiverConnection, trusted_certificates
from pgsluice.worker.sinks.search.index_name import PLACEHOLDER
from pgsluice.worker.sinks.search.options import OPTIONS, SearchSinkSettings

JSON = "application/json"
NDJSON = "application/x-ndjson"

BLOCK = "cluster_block_exception"
"""Type of the error of an index that may not be written for now: a full disk, or an operator's block."""

CLOSED = "index_closed_exception"
"""Type of the error of an index that an operator closed, as some of its settings require."""

MOST_ANSWER_BYTES = 1 << 28
"""A hundred times what a node answers to a full request. Documents that were asked for at once may be more."""
_GZIP_LEVEL = 1  # of what is sent a tenth is left; more would cost more than it saves in a data centre
_GZIP_FROM_BYTES = 1024
_TOO_MANY_REQUESTS = 429
_TOO_LATE = (408, 504)
_UNAUTHENTICATED, _FORBIDDEN = 401, 403
_ACTION = re.compile(r"\b(?:cluster|indices):[a-z_/]{1,80}")

Answered = tuple[int, bytes]
"""Status and body."""


class ServerConnection:
    """Blocking; for a single thread, except ``abort``. Connects at the first request, to the nodes in turn when one
    fails."""

    def __init__(self, settings: SearchSinkSettings, first: int = 0) -> None:
        """``first`` is the number of the node to begin with."""
        allowed = AllowedHosts.parse(settings.allow_hosts, OPTIONS)
        certificates = trusted_certificates(settings.ca_file, OPTIONS)
        receivers = [Receiver.parse(url, OPTIONS) for url in settings.urls]
        self._nodes = [ReceiverConnection(receiver, allowed, certificates, settings.timeout_s) for receiver in receivers]
        self._paths = [receiver.target.partition("?")[0].rstrip("/") for receiver in receivers]
        self._node = first % len(self._nodes)
        self.timeout_s = settings.timeout_s
        self._authorization = _authorization(settings)
        self.rights_remedy = rights_remedy(settings)

    def ask(self, method: str, path: str, content: Any = None, *, accepted: Iterable[int] = ()) -> tuple[int, Any]:
        """Status and JSON of the answer to a request whose body is ``content`` as JSON. Raises TransientError when the server
        cannot answer now, TerminalError for any other status than 2xx and ``accepted``."""
        body = None if content is None else orjson.dumps(content)
        status, answer = self.send(method, path, body, JSON)
        if not 200 <= status < 300 and status not in accepted:
            self.refuse(status, answer, f"{method} {path}")
        try:
            return status, orjson.loads(answer) if answer else None
        except orjson.JSONDecodeError:
            raise TerminalError(f"the search server answered {method} {path} with something else than JSON", _NOT_IT) from None

    def send(self, method: str, path: str, body: bytes | None, content_type: str, *, is_bulky: bool = False) -> Answered:
        """Returns the server's answer, whatever it is. Raises TransientError without one. A request that ``is_bulky``
        is not sent unchanged to the next node when a node had no answer to it (OverloadError): it may be too much for
        that one too."""
        headers = {"Content-Type": content_type, **self._authorization}
        if body is not None and len(body) >= _GZIP_FROM_BYTES:
            body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
            headers["Content-Encoding"] = "gzip"
        answer = self._exchange((method, path, headers, body), is_bulky=is_bulky)
        if len(answer.body) < MOST_ANSWER_BYTES:
            return answer.status, answer.body
        fact = f"the search server answered {method} {path} with {MOST_ANSWER_BYTES} bytes or more"
        if is_bulky:
            raise OverloadError(fact, "the worker asks for less at once", Cause.TARGET)
        raise TerminalError(fact, _NOT_IT)

    def refuse(self, status: int, answer: bytes, what: str) -> NoReturn:
        """Raises the error of the request ``what``, which was refused as a whole."""
        kind = error_type(answer)
        if status != _FORBIDDEN or kind == BLOCK:
            _raise_refused(status, kind, what)
        action = denied_action(error_reason(answer))
        fact = f"the search server answered {what} with status {status} ({': '.join(filter(None, (kind, action)))})"
        raise MissingPrivilegeError(fact, self.rights_remedy)

    def abort(self) -> None:
        """Aborts from any thread and for good: requests under way fail now."""
        for node in self._nodes:
            node.abort()

    def close(self) -> None:
        for node in self._nodes:
            node.close()

    def _exchange(self, sent: tuple[str, str, Mapping[str, str], bytes | None], *, is_bulky: bool) -> ReceiverAnswer:
        method, path, headers, body = sent
        for left in reversed(range(len(self._nodes))):
            target = self._paths[self._node] + path
            try:
                return self._nodes[self._node].request(method, target, headers, body, MOST_ANSWER_BYTES)
            except TransientError as error:
                self._node = (self._node + 1) % len(self._nodes)
                if not left or (is_bulky and isinstance(error, OverloadError)):
                    raise
        raise AssertionError("there is at least one node")


_NOT_IT = "check search-url: this is not OpenSearch or Elasticsearch"


def _raise_refused(status: int, kind: str, what: str) -> NoReturn:
    """``kind`` is the type of the error."""
    fact = f"the search server answered {what} with status {status}" + (f" ({kind})" if kind else "")
    if status == _TOO_MANY_REQUESTS:
        raise OverloadError(fact, "it has too much to do: it is asked again", Cause.THROTTLED)
    if status in _TOO_LATE:
        raise OverloadError(fact, "it is asked again", Cause.TARGET)
    if status >= 500:
        raise TransientError(fact, "it is asked again", Cause.TARGET)
    if kind == BLOCK:
        raise TransientError(fact, BLOCK_REMEDY, Cause.DISK_FULL)
    if status == _UNAUTHENTICATED:
        raise MissingPrivilegeError(fact, "check search-user and search-password, or search-api-key")
    raise TerminalError(fact, _NOT_IT if status < 400 or not kind else "see the server's log")


BLOCK_REMEDY = (
    "the server does not let indexes be written: free disk space, or take index.blocks.write, index.blocks.read_only and "
    "index.blocks.read_only_allow_delete back; the worker continues automatically then"
)


def error_type(answer: bytes) -> str:
    """Returns the type of the error in an answer's body; "" when it names none."""
    return _of_error(answer, "type")


def error_reason(answer: bytes) -> str:
    """Returns the server's description of the error, which may quote values of rows; "" without one."""
    return _of_error(answer, "reason")


def _of_error(answer: bytes, name: str) -> str:
    try:
        error = orjson.loads(answer).get("error")
        said = error.get(name) if isinstance(error, dict) else ""
    except (orjson.JSONDecodeError, AttributeError):
        return ""
    return said if isinstance(said, str) else ""


def denied_action(reason: str) -> str:
    """Returns the action that a server's reason names as not permitted, as in its manual; "" when it names none."""
    found = _ACTION.search(reason)
    return found[0] if found else ""


def rights_remedy(settings: SearchSinkSettings) -> str:
    """Returns the remedy for a user without all rights of a worker."""
    templates = (PLACEHOLDER.sub("*", settings.index).lower(), settings.schema_index)
    names = [f"{each.rstrip('*')}*" for each in templates if each]
    return (
        f"give the user or API key cluster:monitor/main, and manage, read and write on {', '.join(names)}; on OpenSearch "
        "cluster:monitor/main and cluster_composite_ops, and indices:admin/* and indices:data/* on these names"
    )


def path_of(name: str) -> str:
    """Returns an index's or alias's name as a part of a path."""
    return quote(name, safe="*,-_.")


def _authorization(settings: SearchSinkSettings) -> dict[str, str]:
    if settings.api_key:
        return {"Authorization": f"ApiKey {settings.api_key}"}
    if settings.user:
        pair = base64.b64encode(f"{settings.user}:{settings.password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}
    return {}


class ConnectionPool:
    """One connection for each thread that asks, and all of them closed at once."""

    def __init__(self, settings: SearchSinkSettings) -> None:
        self._settings = settings
        self._own = threading.local()
        self._lock = threading.Lock()
        self._all: list[ServerConnection] = []
        self._is_aborted = False

    def mine(self) -> ServerConnection:
        """Returns the calling thread's connection."""
        connection: ServerConnection | None = getattr(self._own, "connection", None)
        if connection is None:
            with self._lock:
                connection = self._own.connection = ServerConnection(self._settings, len(self._all))
                self._all.append(connection)
                if self._is_aborted:
                    connection.abort()
        return connection

    def abort(self) -> None:
        """Aborts from any thread and for good."""
        with self._lock:
            self._is_aborted = True
            for connection in self._all:
                connection.abort()

    def close(self) -> None:
        """No other thread may use one any more."""
        with self._lock:
            for connection in self._all:
                connection.close()
            self._all.clear()
        self._own = threading.local()
