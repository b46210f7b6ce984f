"""The signature of a request, by the Standard Webhooks specification (https://www.standardwebhooks.com, version 1.0).

Three headers: ``webhook-id``, ``webhook-timestamp`` (seconds since 1970, of this attempt) and ``webhook-signature``: one or more,
with spaces between, of ``v1,`` and the base64 of HMAC-SHA256 over ``<id>.<timestamp>.<body>``. The receiver accepts any one of
them, so two secrets allow changing them without a moment at which signatures fail.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping

from shared.errors import UsageError

_PREFIX = "whsec_"
_SECRET_BYTES = range(24, 65)  # "Symmetric signatures": between 24 and 64 bytes


class Signer:
    """Signs with each of its keys; without keys it adds no header."""

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        self._keys = keys

    @classmethod
    def parse(cls, secrets: str) -> Signer:
        """``secrets``: ``whsec_`` and base64, one or several with spaces between; "" for none. Raises UsageError."""
        return cls(tuple(_decode_secret(secret) for secret in secrets.split()))

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


def _decode_secret(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True) if secret.startswith(_PREFIX) else b""
    except binascii.Error:
        key = b""
    if len(key) not in _SECRET_BYTES:
        raise UsageError(
            f"webhook-secret is not '{_PREFIX}' and the base64 of {_SECRET_BYTES.start} to {_SECRET_BYTES.stop - 1} bytes",
            f"make one with: echo {_PREFIX}$(openssl rand -base64 32)",
        )
    return key
