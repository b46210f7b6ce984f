"""Signatures, checked by a computation of their own and by the example of the Standard Webhooks libraries."""

from __future__ import annotations

import base64
import hashlib

import pytest

from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.webhook.request import Signer

EXAMPLE_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_SECRET = "whsec_" + base64.b64encode(bytes(range(64))).decode()


def expected_signature(secret: str, request_id: str, timestamp: str, body: bytes) -> str:
    """HMAC by its definition (RFC 2104), from the hash function alone."""
    key = base64.b64decode(secret.removeprefix("whsec_")).ljust(64, b"\0")
    content = request_id.encode() + b"." + timestamp.encode() + b"." + body
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key) + content).digest()
    return "v1," + base64.b64encode(hashlib.sha256(bytes(byte ^ 0x5C for byte in key) + inner).digest()).decode()


def test_the_libraries_example_is_signed_as_by_them() -> None:
    headers = Signer.parse(EXAMPLE_SECRET).headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_each_of_two_secrets_signs() -> None:
    headers = Signer.parse(f"{OTHER_SECRET} {EXAMPLE_SECRET}").headers("id", 17, b"[]")
    assert headers["webhook-signature"].split() == [
        expected_signature(secret, "id", "17", b"[]") for secret in (OTHER_SECRET, EXAMPLE_SECRET)
    ]


def test_without_a_secret_nothing_is_signed() -> None:
    assert Signer.parse("").headers("id", 17, b"[]") == {}


@pytest.mark.parametrize("secret", ["hunter2", "whsec_", "whsec_not base64", "whsec_c2hvcnQ=", "whsec_" + "A" * 88, "whsec_ä"])
def test_a_secret_of_another_form_is_a_mistake_and_is_not_shown(secret: str) -> None:
    with pytest.raises(UsageError, match="webhook-secret is not 'whsec_'") as raised:
        Signer.parse(secret)
    assert secret.removeprefix("whsec_") == "" or secret.removeprefix("whsec_") not in str(raised.value)
