"""Subjects by a pattern, and names that would meet those of others."""

from __future__ import annotations

import pytest

from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.nats.subject_pattern import SubjectPattern


def test_each_name_is_one_token_whatever_it_holds() -> None:
    pattern = SubjectPattern.parse("", "SHOP")
    assert pattern.subject("public", "order.items", "insert") == b"SHOP.public.order%2Eitems.insert"
    assert pattern.subject(None, "a b*>", "ddl") == b"SHOP._.a%20b%2A%3E.ddl"
    assert pattern.wildcard == "SHOP.*.*.*"
    assert SubjectPattern.parse("shop.{schema}-{table}", "SHOP").wildcard == "shop.*"


@pytest.mark.parametrize("text", ["pgsluice.{table}", "$JS.{table}", "shop..{table}", "shop.*", "shop.{row}", "shop {table}"])
def test_a_pattern_that_is_no_subject_or_begins_as_those_of_others_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="nats-subject"):
        SubjectPattern.parse(text, "SHOP")


@pytest.mark.parametrize("name", ["", "a.b", "a b", "pgsluice_shop_changes", "KV_pgsluice_shop"])
def test_a_stream_that_cannot_be_ours_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="nats-stream"):
        SubjectPattern.parse("", name)
