"""Sends an alert: a request to a webhook, or a program that is run.

Either may receive the same alert twice, when a process is killed between sending and recording that: ``id`` is the same
then.
"""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson

from pgsluice.shared.alerts.alert_state import AlertRecord
from pgsluice.shared.config.alert_settings import AlertSettings
from pgsluice.shared.errors import Cause, TerminalError, TransientError
from pgsluice.shared.http.receiver import AllowedHosts, Receiver, ReceiverConnection, trusted_certificates

OPTIONS = "alert-webhook"
DEADLINE_S = 10.0
"""Time limit of a request, and of a program."""


class Channel(Protocol):
    """A way to send alerts. ``tell`` blocks for DEADLINE_S at most; it raises TransientError or TerminalError when it
    failed."""

    name: str

    def tell(self, alert: dict[str, Any]) -> None: ...


def channels(settings: AlertSettings) -> list[Channel]:
    """Raises UsageError or TerminalError for settings that cannot be meant."""
    found: list[Channel] = []
    if settings.webhook:
        found.append(WebhookChannel(settings))
    if settings.command:
        found.append(CommandChannel(settings.command))
    return found


def alert_content(group: str, alert: AlertRecord, sender: str) -> dict[str, Any]:
    """Returns the messages of alerts, as docs/how-to/alert-messages.md describes them."""
    return {
        "id": f"{group}/{alert.alert}/{alert.subject}/{alert.since}",
        "group": group,
        "alert": alert.alert,
        "subject": alert.subject,
        "severity": alert.severity,
        "state": "firing" if alert.is_firing else "resolved",
        "since": alert.since,
        "resolved_at": alert.resolved_at or None,
        "fact": alert.fact,
        "remedy": alert.remedy,
        "repeated": bool(alert.told_at) and alert.is_firing,
        "sent_by": sender,
        "sent_at": datetime.now(UTC).isoformat(),
    }


class WebhookChannel:
    """Makes a connection for each alert: there are few of them."""

    name = "webhook"

    def __init__(self, settings: AlertSettings) -> None:
        self._receiver = Receiver.parse(settings.webhook, OPTIONS)
        self._allowed = AllowedHosts.parse(settings.allow_hosts, OPTIONS)
        self._certificates = trusted_certificates(settings.ca_file, OPTIONS)
        self._headers = {"Content-Type": "application/json"}
        if settings.token:
            self._headers["Authorization"] = f"Bearer {settings.token}"

    def tell(self, alert: dict[str, Any]) -> None:
        connection = ReceiverConnection(self._receiver, self._allowed, self._certificates, DEADLINE_S)
        try:
            answer = connection.post(self._headers | {"Idempotency-Key": _header_text(alert)}, orjson.dumps(alert))
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            raise TransientError(
                f"{self._receiver.origin} answered an alert with status {answer.status}",
                "check alert-webhook and its token",
                Cause.TARGET,
            )


class CommandChannel:
    """Runs a program: the alert is its standard input, as JSON, and in variables PGSLUICE_ALERT_…; its arguments are
    fixed by configuration, independent of the alert. Exit status 0 means success."""

    name = "command"

    def __init__(self, arguments: tuple[str, ...]) -> None:
        self._arguments = arguments

    def tell(self, alert: dict[str, Any]) -> None:
        variables = {f"PGSLUICE_ALERT_{key.upper()}": str(value) for key, value in alert.items() if value is not None}
        try:
            ended = subprocess.run(  # noqa: S603  what the operator configured, and nothing else
                self._arguments,
                input=orjson.dumps(alert),
                env=_without_ours(os.environ) | variables,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=DEADLINE_S,
                start_new_session=True,  # a Ctrl-C at pgsluice's terminal is not meant for it
                check=False,
            )
        except subprocess.TimeoutExpired:
            # no cause: not pgsluice's program
            raise TransientError(f"alert-command {self._arguments[0]} did not end within {DEADLINE_S:g} s") from None
        except OSError as error:
            raise TerminalError(
                f"alert-command {self._arguments[0]} cannot be run ({error.strerror or type(error).__name__})",
                "check its path and that this user may run it",
            ) from None
        if ended.returncode:
            # no cause: not pgsluice's program, which reports its own errors
            raise TransientError(f"alert-command {self._arguments[0]} ended with {ended.returncode}", "read its output")


def _without_ours(environment: os._Environ[str]) -> dict[str, str]:
    """Removes pgsluice's own settings, which may contain passwords."""
    return {name: value for name, value in environment.items() if not name.startswith(("PGSLUICE_", "PG_FLO_"))}


def _header_text(alert: dict[str, Any]) -> str:
    """Returns the identity of this notice, in characters that a header accepts."""
    text = f"{alert['id']}/{alert['state']}/{alert['sent_at'] if alert['repeated'] else 'first'}"
    return text.encode("ascii", "backslashreplace").decode()
