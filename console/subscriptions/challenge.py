"""The challenge of a receiver: it must send back the text that it is sent. So a receiver is never subscribed by others."""

from __future__ import annotations

import hmac
import secrets
import time

import orjson

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.http.receiver import AllowedHosts, Receiver, ReceiverConnection, trusted_certificates
from pgsluice.shared.subscriptions.subscription_settings import OPTIONS, SubscriptionSettings
from pgsluice.worker.sinks.webhook.request import USER_AGENT, Signer

CHALLENGE = "pgsluice.subscription.challenge"
"""The ``type`` of the request."""

_REMEDY = 'answer with status 200 and {"challenge": "…"}, or that text alone'


def challenge(url: str, subscription: str, settings: SubscriptionSettings, signer: Signer) -> None:
    """Blocks for ``subscriptions-timeout`` at most. Raises TerminalError when the receiver may not be reached or does not send
    back what it was sent, TransientError when it gives no answer."""
    receiver = Receiver.parse(url, OPTIONS)
    allowed, certificates = AllowedHosts.parse(settings.allow_hosts, OPTIONS), trusted_certificates(settings.ca_file, OPTIONS)
    text = secrets.token_urlsafe(24)
    body = orjson.dumps({"type": CHALLENGE, "subscription": subscription, "challenge": text})
    key = f"{subscription}/challenge/{secrets.token_hex(4)}"
    headers = {"User-Agent": USER_AGENT, "Content-Type": "application/json", "Idempotency-Key": key}
    connection = ReceiverConnection(receiver, allowed, certificates, settings.timeout_s)
    try:
        answer = connection.post(headers | dict(signer.headers(key, int(time.time()), body)), body)
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        raise TerminalError(f"{receiver.origin} answered the challenge with status {answer.status}", _REMEDY)
    if not hmac.compare_digest(_sent_back(answer.body), text.encode()):
        raise TerminalError(f"{receiver.origin} did not send the challenge back", _REMEDY)


def _sent_back(body: bytes) -> bytes:
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.strip()
    found = content.get("challenge") if isinstance(content, dict) else content
    return found.encode() if isinstance(found, str) else b""
