"""TLS, SASL and addresses, with real brokers: who is let in, what is said when not, and no secret in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.testing.batch import apply
from pgsluice.testing.tried_batches import batch, events, position
from pgsluice.worker.kafka_source.topic_ends import SourceTopics
from pgsluice.worker.sinks.incoming import NOTHING_KNOWN
from pgsluice.worker.sinks.kafka import cluster_brokers
from pgsluice.worker.sinks.kafka.findings import find
from tests.servers.kafka import RealKafka
from tests.waiting import wait_until
from tests.worker.sinks.kafka.cluster import KafkaDestination
from tests.worker.sinks.kafka.rights import SCRAM_LOGIN
from tests.worker.sinks.kafka.tls_files import TlsFiles
from tests.worker.sinks.settings import worker_settings

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

USER, PASSWORD, WRONG = "shop", "Pa55-word-of-shop", "Wr0ng-word"
TLS, MUTUAL, PLAIN, BOTH = "TLS", "MUTUAL", "PLAINSASL", "BOTH"
PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
PROTOCOLS = {TLS: "SSL", MUTUAL: "SSL", PLAIN: "SASL_PLAINTEXT", BOTH: "SASL_SSL"}


@dataclass(frozen=True)
class Secured:
    broker: RealKafka
    ca: Path
    client: Path

    def destination(self, listener: str, group: str, **changed: Any) -> KafkaDestination:
        brokers = (self.broker.bootstrap_of(listener),)
        tls = {"tls": True, "ca_file": str(self.ca)} if "SSL" in PROTOCOLS[listener].split("_") else {}
        sasl = {"sasl": "scram-sha-256", "user": USER, "password": PASSWORD} if "SASL" in PROTOCOLS[listener] else {}
        more: dict[str, Any] = {"brokers": brokers} | tls | sasl | changed
        return KafkaDestination(self.broker, group, **more)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    files = TlsFiles.make(tmp_path_factory.mktemp("kafka-access"))
    settings = files.broker_settings() | {
        f"listener.name.{MUTUAL.lower()}.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    }
    for listener in (PLAIN, BOTH):
        of_listener = f"listener.name.{listener.lower()}"
        plain = f'{PLAIN_LOGIN} required user_{USER}="{PASSWORD}";'
        settings[f"{of_listener}.plain.sasl.jaas.config"] = plain
        settings[f"{of_listener}.scram-sha-256.sasl.jaas.config"] = SCRAM_LOGIN
    with RealKafka(settings, listeners=PROTOCOLS, users={USER: PASSWORD}) as broker:
        yield Secured(broker, files.ca, files.client)


def produces(destination: KafkaDestination) -> bool:
    sink = destination.new_sink()
    try:
        sink.open()
        apply(sink, batch([1], [2]))
    finally:
        sink.close()
    return [line["after"]["id"] for line in destination.reader("events").values()] == events(2)


def refusal(destination: KafkaDestination) -> TerminalError:
    """What ``open`` says, which ``pgsluice check`` and who reads from there say too."""
    sink = destination.new_sink()
    with pytest.raises(TerminalError) as raised:
        sink.open()
    sink.close()
    said = f"{raised.value}"
    assert PASSWORD not in said
    assert WRONG not in said
    with pytest.raises(TerminalError) as told:
        SourceTopics(destination.settings().cluster).cluster_id()
    assert f"{told.value}" == said
    found = find(worker_settings(destination.group), destination.settings(), NOTHING_KNOWN)
    [finding] = [each for each in found if each.check == "kafka-brokers"]
    assert finding.fact in said
    return raised.value


@pytest.mark.parametrize("listener", [TLS, PLAIN, BOTH])
def test_a_worker_that_is_who_it_says_produces(secured: Secured, group: str, listener: str) -> None:
    assert produces(secured.destination(listener, group))


@pytest.mark.parametrize("listener", [PLAIN, BOTH])
def test_a_password_may_be_told_as_it_is(secured: Secured, group: str, listener: str) -> None:
    assert produces(secured.destination(listener, group, sasl="plain"))


def test_a_client_certificate_is_shown_where_it_is_asked_for(secured: Secured, group: str) -> None:
    shown = {"cert_file": str(secured.client), "key_file": str(secured.client)}
    assert produces(secured.destination(MUTUAL, group, **shown))
    assert "TLS with Kafka's brokers fails" in str(refusal(secured.destination(MUTUAL, f"{group}-2")))


@pytest.mark.parametrize("mechanism", ["plain", "scram-sha-256"])
@pytest.mark.parametrize("listener", [PLAIN, BOTH])
def test_a_wrong_password_is_told_without_it(secured: Secured, group: str, listener: str, mechanism: str) -> None:
    error = refusal(secured.destination(listener, group, sasl=mechanism, password=WRONG))
    assert "does not accept the worker's credentials" in str(error)
    assert "kafka-password" in str(error)


def test_a_mechanism_that_the_brokers_do_not_have_is_told(secured: Secured, group: str) -> None:
    assert "kafka-sasl" in str(refusal(secured.destination(PLAIN, group, sasl="scram-sha-512")))


def test_a_certificate_that_nobody_vouches_for_is_refused(secured: Secured, group: str, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    error = refusal(secured.destination(BOTH, group, ca_file=str(tmp_path / "other.pem")))
    assert "TLS with Kafka's brokers fails" in str(error)
    assert "kafka-ca" in str(error)


@pytest.mark.parametrize("told", ["ca_file", "cert_file"])
def test_a_file_that_holds_no_certificate_is_told(secured: Secured, group: str, tmp_path: Path, told: str) -> None:
    (tmp_path / "empty.pem").write_text("nothing of that\n")
    files = {"cert_file": str(secured.client), "key_file": str(secured.client)} | {told: str(tmp_path / "empty.pem")}
    error = refusal(secured.destination(MUTUAL, group, **files))
    assert "kafka-ca, kafka-client-cert and kafka-client-key" in str(error)


def test_a_broker_that_comes_later_and_must_not_be_connected_to_stops_the_worker(
    group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the next batch, however soon that comes."""
    monkeypatch.setattr(cluster_brokers, "JUDGED_FOR_S", 0.0)
    with RealKafka() as broker:
        destination = KafkaDestination(broker, group)
        sink = destination.new_sink()
        sink.open()
        apply(sink, batch([1]))
        topics = SourceTopics(destination.settings().cluster)
        assert topics.cluster_id()
        broker.stop()
        broker.advertised_host = "127.0.0.2"
        broker.start()
        assert "127.0.0.2" in _refusal(lambda: apply(sink, batch([2])))
        sink.close()
        assert "127.0.0.2" in _refusal(lambda: destination.new_sink().open())
        assert "127.0.0.2" in _refusal(lambda: SourceTopics(destination.settings().cluster).cluster_id())
        assert "127.0.0.2" in _refusal(lambda: topics.described([destination.reader("events").topic]))
        allowed = KafkaDestination(broker, group, allow_hosts=("127.0.0.0/8",)).new_sink()
        broker.stop()
        broker.advertised_host = "127.0.0.1"
        broker.start()
        assert allowed.open() == position(1)
        allowed.close()


def _refusal(call: Callable[[], object]) -> str:
    """Returns the error of the call, once it has reached a broker: a client may first try the address that is not allowed."""

    def refused() -> TerminalError | None:
        try:
            call()
        except TransientError:
            return None
        except TerminalError as error:
            return error
        raise AssertionError("a broker was taken that must not be connected to")

    return str(wait_until(refused, what="a refusal"))
