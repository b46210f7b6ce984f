"""Secrets of subscriptions: each is made of the group's one and the subscription's id, so none is stored or sent anywhere.

The holder of ``subscriptions-secret`` can compute a subscriber's secret (``pgsluice subscriptions secret``); no other
can be derived from one subscription's secret.
"""

from __future__ import annotations

import base64
import hmac

from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.webhook.request import Signer, decode_secrets

_PREFIX = "whsec_"


def master_keys(secrets: str) -> tuple[bytes, ...]:
    """Returns the keys of the option ``subscriptions-secret``. Raises UsageError; there is at least one."""
    keys = decode_secrets(secrets, "subscriptions-secret")
    if not keys:
        raise UsageError("subscriptions-secret is empty", f"make one with: echo {_PREFIX}$(openssl rand -base64 32)")
    return keys


def _own_key(master: bytes, group: str, identifier: str) -> bytes:
    return hmac.digest(master, b"pgsluice subscription\0%s\0%s" % (group.encode(), identifier.encode()), "sha256")


def subscription_signer(masters: tuple[bytes, ...], group: str, identifier: str) -> Signer:
    """Signs with what is made of each of the ``masters``."""
    return Signer(tuple(_own_key(master, group, identifier) for master in masters))


def subscription_secrets(masters: tuple[bytes, ...], group: str, identifier: str) -> list[str]:
    """Returns the secrets in the form of subscribers' libraries, one for each of the ``masters``."""
    return [_PREFIX + base64.b64encode(_own_key(master, group, identifier)).decode() for master in masters]
