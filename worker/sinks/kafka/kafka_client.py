"""The settings of a Kafka client, and the translation of its errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pgsluice.shared import telemetry
from pgsluice.shared.errors import Cause, MissingPrivilegeError, PgsluiceError, TerminalError, TransientError, UsageError
from pgsluice.shared.kafka.kafka_settings import NO_SASL, KafkaSettings

try:
    from confluent_kafka import KafkaError, KafkaException
except ModuleNotFoundError as missing:
    raise UsageError(
        f"worker kafka needs the module '{missing.name}', which is not installed", "pip install confluent-kafka"
    ) from None

log = telemetry.logger(__name__)
_UNHEARD = logging.Logger("librdkafka", logging.CRITICAL + 1)
"""Drops the library's log at level 0, a fatal error: without a logger that goes to standard error, too."""

ANSWER_DEADLINE_S = 30.0

_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError._FATAL}
_FORBIDDEN = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
WITHOUT_GROUP = KafkaError.GROUP_AUTHORIZATION_FAILED
"""The error of a consumer without a group: the library asks for the coordinator of its ``group.id`` nevertheless, and
continues without one."""
_UNAUTHENTICATED = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
}
_TLS_ALERT = "SSL alert"
"""The library's text for a broker's refusal after the handshake, for example of a client without a certificate."""
UNKNOWN_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
SETTINGS_UNSEEN = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
"""Errors because this user may not read a topic's settings."""
_UNSUPPORTED = {KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION}
_REFUSED_TOPIC = {
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_CONFIG,
    KafkaError.POLICY_VIOLATION,
}


class Complaints:
    """The errors of a client in the background. It keeps trying; a caller that waits for it asks for the cause."""

    def __init__(self, transactional_id: str = "") -> None:
        self._transactional_id = transactional_id
        self._codes: set[int] = set()
        self.has_failed = False
        """Something did, that was not tried again."""
        self.is_fatal = False
        """The brokers take nothing more of this client."""

    def note(self, error: KafkaError) -> None:
        is_alert = error.code() == KafkaError._TRANSPORT and _TLS_ALERT in error.str()
        self._codes.add(KafkaError._SSL if is_alert else error.code())
        log.debug("message of Kafka's client", error=error.name())

    def forget(self) -> None:
        """Forgets complaints: the brokers have answered by now."""
        self._codes.clear()

    def cause(self) -> PgsluiceError | None:
        """Returns the reason that an operator has to remove, if known."""
        if self._codes & _UNAUTHENTICATED:
            return TerminalError(
                "Kafka does not accept the worker's credentials", "check kafka-sasl, kafka-user and kafka-password"
            )
        if KafkaError._SSL in self._codes:
            return TerminalError(
                "TLS with Kafka's brokers fails",
                "check kafka-tls, kafka-ca, kafka-client-cert and the names in the brokers' certificates",
            )
        return None

    @contextmanager
    def translated(self, topic: str = "") -> Iterator[None]:
        """Translates errors of the client, and the timeout of a future: the library itself waits longer."""
        try:
            yield
        except KafkaException as failure:
            raise self.of(failure.args[0], topic) from None
        except TimeoutError:
            raise self.of(KafkaError(KafkaError._TIMED_OUT), topic) from None

    def of(self, error: KafkaError, topic: str = "") -> PgsluiceError:
        self.has_failed = True
        self.is_fatal = self.is_fatal or error.fatal() or error.code() in _FENCED
        if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return _forbidden(error, f"transactional id {self._transactional_id}")
        known = _terminal(error, topic) or self.cause()
        return known or TransientError(
            f"Kafka does not answer as it should ({error.name()})", "check that the brokers run and can be reached", Cause.TARGET
        )


def _terminal(error: KafkaError, topic: str) -> TerminalError | None:
    code, named = error.code(), f"topic {topic}" if topic else "a topic"
    if code in _FORBIDDEN:
        return _forbidden(error, named)
    if code in UNKNOWN_TOPIC and topic:
        return TerminalError(f"there is no {named} in Kafka", "make it, or write kafka-create-topics: true")
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return TerminalError(
            f"{named} does not take a record as large as one of this batch",
            "raise max.message.bytes of the topic; or lower kafka-max-record-bytes to it, and larger records become dead letters",
        )
    if code == KafkaError.INVALID_RECORD:
        return TerminalError(
            f"{named} refuses a record, as compacted ones do without a key: of a TRUNCATE, a definition, a row without one",
            "set its cleanup.policy to delete, at least until the worker has passed that change",
        )
    if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        return TerminalError(
            "Kafka allows no such kafka-transaction-timeout", "lower it, or raise transaction.max.timeout.ms there"
        )
    if code == KafkaError._INVALID_ARG:  # its text would quote settings
        return TerminalError(
            "the library for Kafka does not take these settings",
            "check that the files of kafka-ca, kafka-client-cert and kafka-client-key are valid",
        )
    if code in _UNSUPPORTED:
        return TerminalError("these brokers have no transactions", "write kafka-transactions: false, for at least once")
    if code in _REFUSED_TOPIC:
        return TerminalError(
            f"Kafka refuses to make {named} ({error.name()})", "check kafka-topic, kafka-partitions and kafka-replication-factor"
        )
    return None


def _forbidden(error: KafkaError, named: str) -> MissingPrivilegeError:
    fact = f"Kafka does not let this user do that ({error.name()}, {named})"
    return MissingPrivilegeError(fact, "see the rights in docs: sink-kafka")


def client_settings(kafka: KafkaSettings, complaints: Complaints) -> dict[str, Any]:
    """Returns the settings of every client of the library."""
    settings: dict[str, Any] = {
        "bootstrap.servers": ",".join(kafka.brokers),
        "client.id": "pgsluice",
        "error_cb": complaints.note,
        "log_level": 0,  # it would write to standard error on its own; errors that matter come to error_cb
        "logger": _UNHEARD,
        "socket.keepalive.enable": True,
        "reconnect.backoff.max.ms": 2000,
    }
    has_sasl = kafka.sasl != NO_SASL
    settings["security.protocol"] = ("SASL_" if has_sasl else "") + ("SSL" if kafka.tls else "PLAINTEXT")
    if has_sasl:
        settings |= {"sasl.mechanism": kafka.sasl.upper(), "sasl.username": kafka.user, "sasl.password": kafka.password}
    if kafka.ca_file:
        settings["ssl.ca.location"] = kafka.ca_file
    if kafka.cert_file:
        settings |= {"ssl.certificate.location": kafka.cert_file, "ssl.key.location": kafka.key_file}
    return settings
