"""Names of topics."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.kafka.topic_pattern import LONGEST_TOPIC, KeyPattern, TopicPattern, check_topic

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=63)


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
def test_every_table_has_a_topic_of_its_own_that_kafka_takes(one: tuple[str, str], other: tuple[str, str]) -> None:
    pattern = TopicPattern.parse("{schema}.{table}")
    topic = pattern.topic(*one)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", topic)
    assert len(topic) <= LONGEST_TOPIC
    assert (topic == pattern.topic(*other)) == (one == other)


def test_bytes_that_are_no_letters_are_told_by_their_number() -> None:
    assert TopicPattern.parse("shop.{table}").topic("public", "order.items-é") == "shop.order-2Eitems-2D-C3-A9"
    assert TopicPattern.parse("{schema}.{table}").topic(None, None) == "_._"


@pytest.mark.parametrize("text", ["{db}.{table}", "shop/{table}", ".."])
def test_a_pattern_that_makes_no_topic_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="kafka-topic"):
        TopicPattern.parse(text)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * (LONGEST_TOPIC + 1)])
def test_a_name_that_kafka_does_not_take_is_refused(name: str) -> None:
    assert check_topic("x" * LONGEST_TOPIC, "kafka-positions-topic") == "x" * LONGEST_TOPIC
    with pytest.raises(UsageError, match="kafka-positions-topic"):
        check_topic(name, "kafka-positions-topic")


def test_a_key_pattern_knows_its_fields() -> None:
    assert KeyPattern.parse("").names_row
    assert KeyPattern.parse("{schema}.{table}:{key}").around("public", "a") == [b"public.a:", b""]
    with pytest.raises(UsageError, match=r"kafka-key: there is no \{id\}"):
        KeyPattern.parse("{id}")
