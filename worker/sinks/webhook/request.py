"""Requests: which lines travel together, the body, the key, the headers and the signature.

The key of a request names the worker, the first and the last of its changes, and a digest of its body: the same request has the
same key whenever it is sent again, by this process or a successor, and two requests that differ in anything never share one.

The signature follows the Standard Webhooks specification (https://www.standardwebhooks.com, version 1.0) in three headers:
``webhook-id``, ``webhook-timestamp`` (seconds since 1970, of this attempt) and ``webhook-signature``: one or more, with spaces
between, of ``v1,`` and the base64 of HMAC-SHA256 over ``<id>.<timestamp>.<body>``. The receiver accepts any one of them, so two
secrets allow changing them without a moment at which signatures fail.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.webhook.placed_lines import BARRIER, PARTS, PlacedLine, read_line

USER_AGENT = "pgsluice"

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.1
_VALUE = re.compile(r"[!-~]+(?:[ \t]+[!-~]+)*")  # RFC 9110, 5.5, without what is not ASCII
_OURS = frozenset({"host", "connection", "content-length", "content-type", "transfer-encoding", "expect", "idempotency-key"})


def fixed_headers(given: Mapping[str, str], token: str) -> dict[str, str]:
    """Returns ``given`` and what goes with them. Raises UsageError, which names a header but not its value."""
    for name, value in given.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise UsageError(f"webhook-headers: the header {name!r} is malformed", "write NAME=VALUE, in printable ASCII")
        if name.lower() in _OURS or name.lower().startswith("webhook-"):
            raise UsageError(f"webhook-headers: the header {name} is made by the worker itself", "remove it")
    names = {name.lower() for name in given}
    headers = dict(given) if "user-agent" in names else {"User-Agent": USER_AGENT} | dict(given)
    if not token:
        return headers
    if "authorization" in names:
        raise UsageError("webhook-token and a header Authorization in webhook-headers are both given", "give one of them")
    if not _VALUE.fullmatch(token):
        raise UsageError(
            "webhook-token contains characters that a header cannot carry", "give the token alone, in printable ASCII"
        )
    return headers | {"Authorization": f"Bearer {token}"}


_PREFIX = "whsec_"
_SECRET_BYTES = range(24, 65)  # "Symmetric signatures": between 24 and 64 bytes


class Signer:
    """Signs with each of its keys; without keys it adds no header."""

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        self._keys = keys

    @classmethod
    def parse(cls, secrets: str) -> Signer:
        """``secrets``: ``whsec_`` and base64, one or several with spaces between; "" for none. Raises UsageError."""
        return cls(decode_secrets(secrets))

    def headers(self, request_id: str, timestamp: int, body: bytes) -> Mapping[str, str]:
        if not self._keys:
            return {}
        signed = b"%s.%d.%s" % (request_id.encode(), timestamp, body)
        signatures = [base64.b64encode(hmac.digest(key, signed, "sha256")).decode() for key in self._keys]
        return {
            "webhook-id": request_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
        }


def decode_secrets(secrets: str, option: str = "webhook-secret") -> tuple[bytes, ...]:
    """Returns the keys of what ``Signer.parse`` takes. Raises UsageError, which names ``option`` but no secret."""
    return tuple(_decode_secret(secret, option) for secret in secrets.split())


def _decode_secret(secret: str, option: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True) if secret.startswith(_PREFIX) else b""
    except ValueError:  # binascii.Error is one, and there is another for what is not ASCII
        key = b""
    if len(key) not in _SECRET_BYTES:
        raise UsageError(
            f"{option} is not '{_PREFIX}' and the base64 of {_SECRET_BYTES.start} to {_SECRET_BYTES.stop - 1} bytes",
            f"make one with: echo {_PREFIX}$(openssl rand -base64 32)",
        )
    return key


DIGEST_BYTES = 8  # of SHA-256; a collision would need the same worker and positions too


class Format(enum.StrEnum):
    """``value`` is how the option spells it."""

    ARRAY = "array"
    """A JSON array of the objects."""
    LINES = "lines"
    """One object on each line."""
    SINGLE = "single"
    """One object, one request for each change."""

    @property
    def content_type(self) -> str:
        return "application/x-ndjson" if self is Format.LINES else "application/json"

    def body(self, lines: Sequence[PlacedLine]) -> bytes:
        texts = [line.text for line in lines]
        match self:
            case Format.ARRAY:
                return b"[" + b",".join(texts) + b"]"
            case Format.LINES:
                return b"".join(texts)
            case Format.SINGLE:
                (text,) = texts
                return text
            case unreachable:
                assert_never(unreachable)


@dataclass(frozen=True, slots=True)
class RequestLimit:
    """Most lines and bytes of one request; a line that is larger goes alone."""

    lines: int
    bytes: int


class RequestCutter:
    """Gathers the lines of each lane until they fill a request.

    Where requests are cut depends on the lines since the last ``flush`` and on the settings alone.
    """

    def __init__(self, lanes: int, limit: RequestLimit) -> None:
        self._limit = limit
        self._open: list[list[PlacedLine]] = [[] for _ in range(lanes)]
        self._bytes = [0] * lanes

    def add(self, lane: int, line: PlacedLine) -> list[PlacedLine]:
        """Adds a line; returns the request that is full now, without or with ``line``; empty if none is."""
        size = len(line.text)
        full: list[PlacedLine] = []
        if self._open[lane] and self._bytes[lane] + size > self._limit.bytes:
            full = self._take(lane)
        self._open[lane].append(line)
        self._bytes[lane] += size
        return full or (self._take(lane) if len(self._open[lane]) == self._limit.lines else full)

    @property
    def is_empty(self) -> bool:
        return not any(self._open)

    def flush(self) -> Iterator[tuple[int, list[PlacedLine]]]:
        """Yields the rest of each lane that has lines."""
        for lane, lines in enumerate(self._open):
            if lines:
                yield lane, self._take(lane)

    def _take(self, lane: int) -> list[PlacedLine]:
        lines, self._open[lane], self._bytes[lane] = self._open[lane], [], 0
        return lines


def request_key(group: str, worker: str, lines: Sequence[PlacedLine], body: bytes) -> str:
    """Returns ``orders/webhook/16/B374D848:3-16/B374D848:9/1f0c…``: no full stop, which separates what is signed."""
    first, last = change_name(lines[0]), change_name(lines[-1])
    span = first if len(lines) == 1 else f"{first}-{last}"
    return f"{group}/{worker}/{span}/{hashlib.sha256(body).hexdigest()[: 2 * DIGEST_BYTES]}"


def change_name(line: PlacedLine) -> str:
    """Returns the change's position, or what takes its place for a copied row and for a transaction's begin and commit."""
    facts = read_line(line.text)
    if facts.position:
        return facts.position
    if facts.commit_lsn:
        return f"{facts.commit_lsn}:{facts.operation.lower()}"
    return f"copy:{line.sequence}:{(line.number >> PARTS) + 1}"


def is_barrier(line: PlacedLine) -> bool:
    return line.lane == BARRIER
