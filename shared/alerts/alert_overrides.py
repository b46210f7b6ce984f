"""Settings of a group's alerts that operators change while its processes run, and tests of delivery, in the state bucket.

    alert_settings    settings that replace those of the processes; applied at their next check
    alert_test        the newest test: who asked, and the result

An address is a reference to a variable of the processes, ``${NAME}`` and nothing else, and ALERT is in that name: the
bucket holds no secret, and a writer of it can have no other variables sent anywhere. Which hosts may be posted to
remains the configuration's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar

from pgsluice.shared.alerts.conditions import AlertName
from pgsluice.shared.broker.record import TimeText
from pgsluice.shared.broker.wishes import WishKey
from pgsluice.shared.config.alert_settings import AlertSettings
from pgsluice.shared.errors import UsageError

TEST_KEY = "alert_test"

_REFERENCE = re.compile(r"\$\{((?=[A-Za-z0-9_]*ALERT)[A-Za-z_][A-Za-z0-9_]*)\}")
REFERENCE_REMEDY = "write ${NAME}, with a variable of the processes that has ALERT in its name"


@dataclass(frozen=True, slots=True)
class Silence:
    """Suppresses ``alert`` (None: all) about ``subject`` ("": all) until ``until``. The alert is still evaluated and
    shown; if it still fires when the silence ends, it is sent."""

    until: TimeText
    alert: AlertName | None = None
    subject: str = ""
    by: str = ""
    reason: str = ""

    def covers(self, alert: AlertName, subject: str, now: datetime) -> bool:
        if self.alert not in (None, alert) or self.subject not in ("", subject):
            return False
        return now < datetime.fromisoformat(self.until)


@dataclass(frozen=True, slots=True)
class AlertOverrides:
    """None, and "" of an address: as the processes were started. ``webhook`` and ``token`` are references. ``by`` set it ``at``
    that time."""

    webhook: str = ""
    token: str = ""
    lag_s: float | None = None
    for_s: float | None = None
    repeat_s: float | None = None
    silences: tuple[Silence, ...] = ()
    by: str = ""
    at: TimeText = ""

    MALFORMED_REMEDY: ClassVar[str] = "set the group's alerts again"

    def applied_to(self, settings: AlertSettings, environment: Mapping[str, str]) -> AlertSettings:
        """Returns the settings that apply in a process with that environment. Raises UsageError if a variable is
        missing."""
        return replace(
            settings,
            webhook=_resolved("webhook", self.webhook, environment) if self.webhook else settings.webhook,
            token=_resolved("token", self.token, environment) if self.token else settings.token,
            lag_s=settings.lag_s if self.lag_s is None else self.lag_s,
            for_s=settings.for_s if self.for_s is None else self.for_s,
            repeat_s=settings.repeat_s if self.repeat_s is None else self.repeat_s,
        )


OVERRIDES = WishKey("alert_settings", AlertOverrides())


@dataclass(frozen=True, slots=True)
class AlertTest:
    """``outcomes`` holds, for each channel, why it did not accept the test, "" if it did; empty before ``done_at``.
    ``sent_by`` is the process that sent it."""

    id: str
    by: str
    asked_at: TimeText
    done_at: TimeText = ""
    sent_by: str = ""
    outcomes: Mapping[str, str] = field(default_factory=dict)

    MALFORMED_REMEDY: ClassVar[str] = "ask for another test"


def is_reference(text: str) -> bool:
    """Returns whether the text is a reference to a variable that is meant for alerts."""
    return _REFERENCE.fullmatch(text) is not None


def _resolved(name: str, text: str, environment: Mapping[str, str]) -> str:
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise UsageError(f"the {name} of the alerts is no reference to a variable for alerts", REFERENCE_REMEDY)
    value = environment.get(match[1], "").strip()
    if not value:
        raise UsageError(f"the {name} of the alerts is {text}, and this process has no such variable", "set it, and start again")
    return value
