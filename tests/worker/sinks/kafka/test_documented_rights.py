"""The rights that the documents name, and no others, are enough for a worker's whole life: to write, and to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from pgsluice.shared.errors import MissingPrivilegeError, TerminalError, TransientError
from pgsluice.shared.wire.kafka_range import KafkaRange
from pgsluice.testing.batch import apply
from pgsluice.testing.tried_batches import ACCOUNTS, EVENTS, batch, position
from pgsluice.worker.kafka_source.record_fetcher import RecordFetcher
from pgsluice.worker.kafka_source.topic_ends import SourceTopics
from pgsluice.worker.sinks.incoming import Incoming
from pgsluice.worker.sinks.kafka.findings import find
from pgsluice.worker.sinks.kafka.sink import KafkaSink
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.sinks.kafka.cluster import KafkaDestination, apply_patiently
from tests.worker.sinks.kafka.committed_history import CommittedHistory, transactions
from tests.worker.sinks.kafka.rights import ANSWER_S, ASKS_FOR_RIGHTS, SCRAM_LOGIN, allow, allow_as_the_page_says
from tests.worker.sinks.settings import worker_settings

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

LISTENER, PASSWORD = "PLAINSASL", "Pa55-word"


@pytest.fixture(scope="module")
def guarded() -> Iterator[RealKafka]:
    """A broker that lets users do what it was told, and the tests themselves all."""
    settings = {
        **ASKS_FOR_RIGHTS,
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        f"listener.name.{LISTENER.lower()}.scram-sha-256.sasl.jaas.config": SCRAM_LOGIN,
    }
    users = {"writer": PASSWORD, "reader": PASSWORD, "stranger": PASSWORD}
    with RealKafka(settings, listeners={LISTENER: "SASL_PLAINTEXT"}, users=users) as broker:
        yield broker


def destination_of(broker: RealKafka, group: str, user: str) -> KafkaDestination:
    login: dict[str, Any] = {"sasl": "scram-sha-256", "user": user, "password": PASSWORD}
    return KafkaDestination(broker, group, brokers=(broker.bootstrap_of(LISTENER),), **login)


def test_a_worker_writes_is_killed_and_goes_on_with_the_rights_that_the_page_names(guarded: RealKafka, group: str) -> None:
    allow_as_the_page_says(guarded, "writer", group)
    destination = destination_of(guarded, group, "writer")
    sink = destination.new_sink()
    sink.open()
    apply(sink, transactions([1, 2]))
    del sink  # as one that is killed
    for sequence in (3, 4):
        again = destination.new_sink()
        assert again.open() == position(sequence - 1)
        apply(again, transactions([sequence]))
        again.close()
    guarded.kill()
    guarded.start()
    after = destination.new_sink()
    after.open()
    apply_patiently(after, transactions([5]))
    after.close()
    assert CommittedHistory.read(destination) == CommittedHistory.whole(5)
    found = find(worker_settings(group), destination.settings(), Incoming(tables=[EVENTS, ACCOUNTS]))
    assert {each.check for each in found} == {"kafka-plain"}


def test_a_reader_needs_the_rights_that_the_page_names_and_no_consumer_group(guarded: RealKafka, group: str) -> None:
    plain = KafkaDestination(guarded, group)
    sink = plain.new_sink()
    sink.open()
    apply(sink, batch([1], [2]))
    sink.close()
    topic = plain.reader("events").topic
    rights = AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS
    allow(guarded, "reader", ResourceType.TOPIC, topic, *rights)
    cluster = destination_of(guarded, group, "reader").settings().cluster
    assert SourceTopics(cluster).cluster_id()
    fetcher = RecordFetcher(cluster)
    records = plain.reader("events").records()
    fetched = fetcher.fetch(KafkaRange("", topic, "", 0, 0, records[-1].offset + 1))
    fetcher.close()
    assert len(fetched.records) == len(records)


def test_who_has_no_rights_is_told_which_are_missing(guarded: RealKafka, group: str) -> None:
    sink = destination_of(guarded, group, "stranger").new_sink()
    with pytest.raises(TerminalError, match="does not let this user do that"):
        sink.open()
    sink.close()


def test_a_right_to_the_transactional_id_that_is_missing_is_told(guarded: RealKafka, group: str) -> None:
    every = AclOperation.WRITE, AclOperation.CREATE, AclOperation.READ, AclOperation.DESCRIBE_CONFIGS
    allow(guarded, "writer", ResourceType.TOPIC, group, *every, prefix=True)
    destination = destination_of(guarded, group, "writer")
    sink = destination.new_sink()
    with pytest.raises(MissingPrivilegeError, match=f"transactional id pgsluice.{group}.sink"):
        sink.open()
    allow(guarded, "writer", ResourceType.TRANSACTIONAL_ID, f"pgsluice.{group}.sink", AclOperation.WRITE)
    wait_until(lambda: _opens(sink), deadline_s=ANSWER_S, what="the right")
    apply_patiently(sink, transactions([1]))
    sink.close()
    assert CommittedHistory.read(destination) == CommittedHistory.whole(1)


def _opens(sink: KafkaSink) -> bool:
    try:
        sink.open()
    except MissingPrivilegeError:
        return False
    return True


@pytest.mark.parametrize("refused", [".public.events", "-positions"])
def test_a_right_that_is_taken_from_a_running_worker_is_waited_for(guarded: RealKafka, group: str, refused: str) -> None:
    """Of the topics of a batch that one is named which the worker may not write to."""
    every = AclOperation.WRITE, AclOperation.CREATE, AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS
    allow(guarded, "writer", ResourceType.TOPIC, group, *every, prefix=True)
    allow(guarded, "writer", ResourceType.TRANSACTIONAL_ID, f"pgsluice.{group}.sink", AclOperation.WRITE, AclOperation.DESCRIBE)
    destination = destination_of(guarded, group, "writer")
    sink = destination.new_sink()
    sink.open()
    apply(sink, transactions([1]))
    topic, admin = f"{group}{refused}", AdminClient({"bootstrap.servers": guarded.bootstrap})
    literal, deny = ResourcePatternType.LITERAL, AclPermissionType.DENY
    denied = (ResourceType.TOPIC, topic, literal, "User:writer", "*", AclOperation.WRITE, deny)
    admin.create_acls([AclBinding(*denied)])[AclBinding(*denied)].result(ANSWER_S)
    applied = [1]

    def is_refused() -> bool:
        try:
            apply(sink, transactions([applied[-1] + 1]))
        except MissingPrivilegeError as error:
            return f"(TOPIC_AUTHORIZATION_FAILED, topic {topic})" in str(error)
        except TransientError:  # a transaction that the refusal broke
            return False
        applied.append(applied[-1] + 1)
        return False

    for _ in range(2):
        wait_until(is_refused, deadline_s=ANSWER_S, what="the refusal")
    for future in admin.delete_acls([AclBindingFilter(*denied)]).values():
        future.result(ANSWER_S)
    apply_patiently(sink, transactions([applied[-1] + 1]))
    sink.close()
    assert CommittedHistory.read(destination) == CommittedHistory.whole(applied[-1] + 1)
