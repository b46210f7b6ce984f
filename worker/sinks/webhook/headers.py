"""The headers that every request has, whatever is in it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shared.errors import UsageError

USER_AGENT = "pgsluice"

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.1
_VALUE = re.compile(r"[!-~]+(?:[ \t]+[!-~]+)*")  # RFC 9110, 5.5, without what is not ASCII
_OURS = frozenset({"host", "connection", "content-length", "content-type", "transfer-encoding", "expect", "idempotency-key"})


def fixed_headers(given: Mapping[str, str], token: str) -> dict[str, str]:
    """``given`` and what goes with them. Raises UsageError, which names a header but not its value."""
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
        raise UsageError("webhook-token holds what a header cannot carry", "give the token alone, in printable ASCII")
    return headers | {"Authorization": f"Bearer {token}"}
