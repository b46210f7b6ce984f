"""Findings of ``pgsluice check`` about a receiver: address, TLS, and the permitted hosts. Nothing is posted."""

from __future__ import annotations

import contextlib

from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.http.receiver import (
    AllowedHosts,
    Receiver,
    ReceiverConnection,
    trusted_certificates,
)
from pgsluice.shared.preflight.finding import Finding, Findings, Severity, Subject
from pgsluice.worker.sinks.incoming import Incoming
from pgsluice.worker.sinks.webhook.options import WebhookSinkSettings
from pgsluice.worker.sinks.webhook.request import Signer


def find(worker: WorkerSettings, settings: WebhookSinkSettings, incoming: Incoming) -> list[Finding]:
    """The address is looked up and judged, and TLS is agreed upon; then the connection is closed."""
    found = Findings(Subject.SINK)
    with found.looking("webhook-secret"):
        Signer.parse(settings.secret)
    receiver = Receiver.parse(settings.url)
    if not receiver.is_tls:
        fact = f"{receiver.origin} is posted to without TLS: rows and credentials can be read on the way"
        found.note("webhook-plain", Severity.WARNING, fact, "give a https:// URL")
    try:
        allowed, certificates = AllowedHosts.parse(settings.allow_hosts), trusted_certificates(settings.ca_file)
        connection = ReceiverConnection(receiver, allowed, certificates, settings.timeout_s)
        with contextlib.closing(connection):
            connection.reach()
    except PgsluiceError as error:
        found.take([Finding.of(error, "webhook-receiver", Subject.SINK)])
    return list(found)
