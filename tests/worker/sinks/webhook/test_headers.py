"""Headers from the configuration."""

from __future__ import annotations

import pytest

from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.webhook.request import fixed_headers


def test_given_headers_and_the_token_are_sent() -> None:
    headers = fixed_headers({"X-Tenant": "shop 7", "user-agent": "mine"}, "s3cret")
    assert headers == {"X-Tenant": "shop 7", "user-agent": "mine", "Authorization": "Bearer s3cret"}


def test_without_a_token_a_header_authorization_may_be_given() -> None:
    assert fixed_headers({"authorization": "Basic QQ=="}, "")["authorization"] == "Basic QQ=="


@pytest.mark.parametrize(
    ("given", "token"),
    [
        ({"X-A": "s3cret\r\nX-B: 1"}, ""),
        ({"X-A": "s3cret\n"}, ""),
        ({"X-A": "s3crét"}, ""),
        ({"X-A\r\n": "s3cret"}, ""),
        ({"X A": "s3cret"}, ""),
        ({"X-A": ""}, ""),
        ({"Content-Type": "s3cret"}, ""),
        ({"idempotency-key": "s3cret"}, ""),
        ({"Webhook-Id": "s3cret"}, ""),
        ({"Host": "s3cret"}, ""),
        ({"Authorization": "s3cret"}, "other"),
        ({}, "s3cret\r\nX-B: 1"),
    ],
)
def test_headers_that_cannot_be_sent_are_mistakes_whose_values_are_not_shown(given: dict[str, str], token: str) -> None:
    with pytest.raises(UsageError) as raised:
        fixed_headers(given, token)
    assert "s3cr" not in str(raised.value)
