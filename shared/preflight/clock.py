"""The difference to another machine's clock: lag and the ends of leases are measured by clocks."""

from __future__ import annotations

from datetime import datetime, timedelta

from pgsluice.shared.preflight.finding import Finding, Severity, Subject

MOST_SKEW_S = 1.0


def clock_findings(subject: Subject, asked: datetime, told: datetime, answered: datetime) -> list[Finding]:
    """``told`` is the other clock's time, between ``asked`` and ``answered`` of this one: taken as the time in the
    middle."""
    middle: timedelta = told - (asked + (answered - asked) / 2)
    skew_s = middle.total_seconds()
    if abs(skew_s) - (answered - asked).total_seconds() / 2 <= MOST_SKEW_S:
        return []
    where = "ahead of" if skew_s > 0 else "behind"
    fact = f"the clock of {subject} is {abs(skew_s):.1f} s {where} this machine's: lag in seconds is wrong by that"
    return [Finding("clock", Severity.WARNING, subject, fact, "have both machines keep time by NTP (chrony, systemd-timesyncd)")]
