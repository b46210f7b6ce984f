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
from pgsluice.testing.tried_batches import EVENTS, batch, events, position
from pgsluice.worker.kafka_source.record_fetcher import RecordFetcher
from pgsluice.worker.kafka_source.topic_ends import SourceTopics
from pgsluice.worker.sinks.incoming import Incoming
from pgsluice.worker.sinks.kafka.findings import find
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.sinks.kafka.cluster import KafkaDestination, apply_patiently
from tests.worker.sinks.settings import worker_settings

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

LISTENER, PASSWORD = "PLAINSASL", "Pa55-word"
ANSWER_S = 60.0


@pytest.fixture(scope="module")
def guarded() -> Iterator[RealKafka]:
    """A broker that lets users do what it was told, and the tests themselves all."""
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        f"listener.name.{LISTENER.lower()}.scram-sha-256.sasl.jaas.config": login,
    }
    users = {"writer": PASSWORD, "reader": PASSWORD, "stranger": PASSWORD}
    with RealKafka(settings, listeners={LISTENER: "SASL_PLAINTEXT"}, users=users) as broker:
        yield broker


def allow(broker: RealKafka, user: str, kind: ResourceType, name: str, *operations: AclOperation, prefix: bool = False) -> None:
    pattern = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
    acls = [AclBinding(kind, name, pattern, f"User:{user}", "*", each, AclPermissionType.ALLOW) for each in operations]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_acls(acls).values():
        future.result(ANSWER_S)


def destination_of(broker: RealKafka, group: str, user: str) -> KafkaDestination:
    login: dict[str, Any] = {"sasl": "scram-sha-256", "user": user, "password": PASSWORD}
    return KafkaDestination(broker, group, brokers=(broker.bootstrap_of(LISTENER),), **login)


def test_a_worker_writes_is_killed_and_goes_on_with_the_rights_that_the_page_names(guarded: RealKafka, group: str) -> None:
    allow(guarded, "writer", ResourceType.TOPIC, f"{group}.", AclOperation.WRITE, AclOperation.CREATE, prefix=True)
    positions = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE_CONFIGS, AclOperation.CREATE
    allow(guarded, "writer", ResourceType.TOPIC, f"{group}-positions", *positions)
    allow(guarded, "writer", ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE)
    own = AclOperation.WRITE, AclOperation.DESCRIBE
    allow(guarded, "writer", ResourceType.TRANSACTIONAL_ID, f"pgsluice.{group}.sink", *own)
    destination = destination_of(guarded, group, "writer")
    sink = destination.new_sink()
    sink.open()
    apply(sink, batch([1], [2]))
    del sink  # as one that is killed
    for sequence in (3, 4):
        again = destination.new_sink()
        assert again.open() == position(sequence - 1)
        apply(again, batch([sequence]))
        again.close()
    guarded.kill()
    guarded.start()
    after = destination.new_sink()
    after.open()
    apply_patiently(after, batch([5]))
    after.close()
    assert [line["after"]["id"] for line in destination.reader("events").values()] == events(5)
    found = find(worker_settings(group), destination.settings(), Incoming(tables=[EVENTS]))
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


def test_a_right_that_is_taken_from_a_running_worker_is_waited_for(guarded: RealKafka, group: str) -> None:
    every = AclOperation.WRITE, AclOperation.CREATE, AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS
    allow(guarded, "writer", ResourceType.TOPIC, group, *every, prefix=True)
    allow(guarded, "writer", ResourceType.TRANSACTIONAL_ID, f"pgsluice.{group}.sink", AclOperation.WRITE, AclOperation.DESCRIBE)
    destination = destination_of(guarded, group, "writer")
    sink = destination.new_sink()
    sink.open()
    apply(sink, batch([1]))
    topic, admin = destination.reader("events").topic, AdminClient({"bootstrap.servers": guarded.bootstrap})
    literal, deny = ResourcePatternType.LITERAL, AclPermissionType.DENY
    denied = (ResourceType.TOPIC, topic, literal, "User:writer", "*", AclOperation.WRITE, deny)
    admin.create_acls([AclBinding(*denied)])[AclBinding(*denied)].result(ANSWER_S)
    applied = [1]

    def is_refused() -> bool:
        try:
            apply(sink, batch([applied[-1] + 1]))
        except MissingPrivilegeError as error:
            return topic in str(error)
        except TransientError:  # a transaction that the refusal broke
            return False
        applied.append(applied[-1] + 1)
        return False

    for _ in range(2):
        wait_until(is_refused, deadline_s=ANSWER_S, what="the refusal")
    for future in admin.delete_acls([AclBindingFilter(*denied)]).values():
        future.result(ANSWER_S)
    apply_patiently(sink, batch([applied[-1] + 1]))
    sink.close()
    assert [line["after"]["id"] for line in destination.reader("events").values()] == events(applied[-1] + 1)
