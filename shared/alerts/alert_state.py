"""The state of each alert, which decides when it is sent and repeated; kept in the bucket so that no restart repeats or forgets.

a condition     lasts as long as alert-for (or is immediate)     → sent as firing
persists                                                         → sent again after alert-repeat
is gone                                                          → sent as resolved, if it was sent as firing
is not known now                                                 → stays as it was
is silenced                                                      → sent when the silence ends, if it still fires
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from pgsluice.shared.alerts.alert_overrides import Silence
from pgsluice.shared.alerts.conditions import AlertFindings, AlertName, AlertSeverity, Condition
from pgsluice.shared.broker.record import TimeText

ALERTS_KEY = "alerts"


@dataclass(frozen=True, slots=True)
class AlertRecord:
    """One alert. ``told_at`` is when it was last sent as firing ("": never); ``resolved_at`` is "" while it fires.
    ``untold`` are the channels that must still receive its current state."""

    alert: AlertName
    subject: str
    severity: AlertSeverity
    fact: str
    remedy: str
    since: TimeText
    told_at: TimeText = ""
    resolved_at: TimeText = ""
    untold: tuple[str, ...] = ()

    @property
    def is_firing(self) -> bool:
        return not self.resolved_at

    def told(self, channel: str, now: datetime) -> AlertRecord:
        """Returns the alert after ``channel`` has sent it."""
        untold = tuple(each for each in self.untold if each != channel)
        return replace(self, untold=untold, told_at=now.isoformat() if self.is_firing else self.told_at)


@dataclass(frozen=True, slots=True)
class AlertsRecord:
    """The key ``alerts``: the known state of each alert, and the process that sends them (``holder``; "": any may take
    over at once). It checks every ``interval_s``, and writes the record each time. ``problem`` is why it does not apply
    the operator's settings, "" when it does."""

    holder: str
    interval_s: float
    alerts: tuple[AlertRecord, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AlertPolicy:
    """``for_s``: how long a condition must last before it is sent, unless it is immediate."""

    for_s: float
    repeat_s: float
    channels: tuple[str, ...]
    silences: tuple[Silence, ...] = ()

    def is_silenced(self, alert: AlertName, subject: str, now: datetime) -> bool:
        return any(silence.covers(alert, subject, now) for silence in self.silences)


def advance(
    alerts: Iterable[AlertRecord], findings: AlertFindings, now: datetime, policy: AlertPolicy
) -> tuple[AlertRecord, ...]:
    """Returns the alerts after a check. Pure."""
    before = {(each.alert, each.subject): each for each in alerts}
    found = {(each.alert, each.subject): each for each in findings.conditions}
    return tuple(
        [_going_on(condition, before.get(key), now, policy) for key, condition in found.items()]
        + [record for key, each in before.items() if key not in found for record in _gone(each, findings, now, policy)]
    )


def _going_on(condition: Condition, before: AlertRecord | None, now: datetime, policy: AlertPolicy) -> AlertRecord:
    text, at = (condition.severity, condition.fact, condition.remedy), now.isoformat()
    if before is None or not (before.is_firing or before.untold):
        before = AlertRecord(condition.alert, condition.subject, *text, since=at)
    elif not before.is_firing:  # it returned before every channel had sent that it was resolved
        before = replace(before, resolved_at="", untold=policy.channels)
    untold = tuple(each for each in before.untold if each in policy.channels)
    if not untold and _is_due(condition, before, now, policy):
        untold = policy.channels
    if policy.is_silenced(condition.alert, condition.subject, now):
        untold = ()
    return replace(before, severity=text[0], fact=text[1], remedy=text[2], untold=untold)


def _is_due(condition: Condition, before: AlertRecord, now: datetime, policy: AlertPolicy) -> bool:
    if before.told_at:
        return _age_s(before.told_at, now) >= policy.repeat_s
    return condition.is_told_at_once or _age_s(before.since, now) >= policy.for_s


def _gone(alert: AlertRecord, findings: AlertFindings, now: datetime, policy: AlertPolicy) -> Iterator[AlertRecord]:
    """Yields nothing once all channels have sent that it is resolved, or if none had sent it."""
    untold = tuple(each for each in alert.untold if each in policy.channels)
    if alert.is_firing and alert.alert in findings.unknown:
        yield replace(alert, untold=untold)
    elif alert.is_firing and alert.told_at:
        yield replace(alert, resolved_at=now.isoformat(), untold=policy.channels)
    elif not alert.is_firing and untold:
        yield replace(alert, untold=untold)


def _age_s(text: str, now: datetime) -> float:
    return (now - datetime.fromisoformat(text)).total_seconds()
