"""Alerts of groups' processes: firing ones, operators' settings, and a test of their delivery."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from pgsluice.console.server.access.principal import Role
from pgsluice.console.server.api.group_api import bucket_of, found_bucket
from pgsluice.console.server.audit import now
from pgsluice.console.server.endpoint_table import PREFIX, Answer, Call, Endpoint, Rows
from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.console.server.revisions import check_revision, stale
from pgsluice.shared.alerts.alert_overrides import (
    OVERRIDES,
    REFERENCE_REMEDY,
    TEST_KEY,
    AlertOverrides,
    AlertTest,
    Silence,
    is_reference,
)
from pgsluice.shared.alerts.alert_state import ALERTS_KEY, AlertRecord, AlertsRecord
from pgsluice.shared.alerts.alert_watch import is_kept
from pgsluice.shared.alerts.conditions import AlertName
from pgsluice.shared.broker.bucket import StateBucket

LONGEST_S = 366 * 86_400.0
MOST_SILENCES = 100
MOST_TEXT = 200


@dataclass(frozen=True, slots=True)
class AlertList:
    """``is_watched``: a process of the group evaluates and sends alerts; ``holder`` is that process. Without one alerts
    are unknown, which is no error. ``settings`` are operators' changes of the processes' configuration; ``problem`` is
    why the holder does not apply them, "" when it does; ``revision`` is the settings' revision, None without any."""

    is_watched: bool
    alerts: tuple[AlertRecord, ...]
    holder: str
    problem: str
    settings: AlertOverrides
    revision: int | None


@dataclass(frozen=True, slots=True)
class SilenceRequest:
    """Suppresses ``alert`` (None: all) about ``subject`` ("": all) until then."""

    until: str
    alert: AlertName | None = None
    subject: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AlertsRequest:
    """A change of the alerts. A field that is left out keeps the value with which the processes were started. ``webhook`` and
    ``token`` are references to variables of the processes with ALERT in their names, like ``${ALERT_URL}``; only an admin
    changes them. ``reason`` is for the audit."""

    webhook: str = ""
    token: str = ""
    lag_s: float | None = None
    for_s: float | None = None
    repeat_s: float | None = None
    silences: tuple[SilenceRequest, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AlertTestRequest:
    """``reason`` is for the audit."""

    reason: str = ""


async def list_alerts(call: Call) -> Answer:
    """Returns alerts, with the revision of the settings, if any were set."""
    bucket = await found_bucket(call)
    if bucket is None:
        return Answer(AlertList(False, (), "", "", AlertOverrides(), None))
    revision, settings = await _settings(bucket)
    entry = await bucket.read(ALERTS_KEY, AlertsRecord)
    if entry is None:
        return Answer(AlertList(False, (), "", "", settings, revision), revision=revision)
    record = entry.value
    is_watched = await is_kept(bucket, record)
    holder, problem = (record.holder, record.problem) if is_watched else ("", "")
    return Answer(AlertList(is_watched, record.alerts, holder, problem, settings, revision), revision=revision)


async def set_alerts(call: Call) -> Answer:
    bucket, request, group = await bucket_of(call), call.body, call.path["group"]
    revision, before = await _settings(bucket)
    check_revision(call, revision, _spoken(group))
    if (request.webhook, request.token) != (before.webhook, before.token) and not call.who.role.includes(Role.ADMIN):
        raise Problem(ProblemKind.FORBIDDEN, "only an admin sets the receivers of alerts", "leave webhook and token as they are")
    problem = next(_problems(request), None)
    if problem is not None:
        raise problem
    silences = tuple(_silence(each, before, call.who.name) for each in request.silences)
    limits = (request.lag_s, request.for_s, request.repeat_s)
    wanted = AlertOverrides(request.webhook, request.token, *limits, silences, by=call.who.name, at=now())
    written = await (bucket.create(OVERRIDES.key, wanted) if revision is None else bucket.update(OVERRIDES.key, wanted, revision))
    if written is None:
        raise stale(_spoken(group))
    return Answer(wanted, revision=written, target=group, revision_before=revision)


async def ask_for_test(call: Call) -> Answer:
    """Requests a test. The process with alerts sends it at its next check, and records the outcome."""
    test = AlertTest(call.request_id, call.who.name, now())
    await (await bucket_of(call)).put(TEST_KEY, test)
    group = call.path["group"]
    return Answer(test, location=f"{PREFIX}/groups/{group}/alerts/test", target=group)


async def show_test(call: Call) -> Answer:
    bucket = await found_bucket(call)
    entry = None if bucket is None else await bucket.read(TEST_KEY, AlertTest)
    if entry is None:
        raise Problem(
            ProblemKind.NOT_FOUND, "no test of this group's alerts was requested", "POST to the same path requests a test"
        )
    return Answer(entry.value)


async def _settings(bucket: StateBucket) -> tuple[int | None, AlertOverrides]:
    """Returns the settings with their revision, None without any."""
    entry = await OVERRIDES.read(bucket)
    return entry.revision or None, entry.value


def _silence(request: SilenceRequest, before: AlertOverrides, who: str) -> Silence:
    """Returns the silence; one that exists keeps its first author."""
    found = Silence(request.until, request.alert, request.subject, who, request.reason)
    kept = (each for each in before.silences if replace(each, by=found.by, reason=found.reason) == found)
    return next(kept, found)


def _problems(request: AlertsRequest) -> Iterator[Problem]:
    for name, text in (("webhook", request.webhook), ("token", request.token)):
        if text and not is_reference(text):
            yield Problem(ProblemKind.MALFORMED, f"{name} is no reference to a variable for alerts", REFERENCE_REMEDY, name)
    for name, seconds, least in (("lag_s", request.lag_s, 0), ("for_s", request.for_s, 0), ("repeat_s", request.repeat_s, 1)):
        if seconds is not None and not least <= seconds <= LONGEST_S:
            yield Problem(ProblemKind.MALFORMED, f"{name} is not from {least} to {LONGEST_S:.0f} seconds", "write seconds", name)
    if len(request.silences) > MOST_SILENCES:
        yield Problem(
            ProblemKind.MALFORMED, f"there are more than {MOST_SILENCES} silences", "silence several at once", "silences"
        )
    for number, silence in enumerate(request.silences):
        if not _is_time(silence.until):
            where = f"silences[{number}].until"
            yield Problem(ProblemKind.MALFORMED, "until is no time with its zone", "write it like 2026-01-31T12:00:00Z", where)
        if max(len(silence.subject), len(silence.reason)) > MOST_TEXT:
            yield Problem(
                ProblemKind.MALFORMED, f"a text has more than {MOST_TEXT} characters", "shorten it", f"silences[{number}]"
            )


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _spoken(group: str) -> str:
    return f"the alert configuration of group '{group}' is"


ENDPOINTS = (
    Endpoint(
        "GET",
        "/groups/{group}/alerts",
        "List a group's alerts, their deliveries and the alert settings",
        Role.VIEWER,
        list_alerts,
        answer=AlertList,
        rows=Rows.STAY,
    ),
    Endpoint(
        "PUT",
        "/groups/{group}/alerts",
        "Set where and when a group's alerts are sent, and which are silenced",
        Role.OPERATOR,
        set_alerts,
        answer=AlertOverrides,
        body=AlertsRequest,
        names_revision=True,
        rows=Rows.STAY,
    ),
    Endpoint(
        "POST",
        "/groups/{group}/alerts/test",
        "Send a test alert",
        Role.OPERATOR,
        ask_for_test,
        answer=AlertTest,
        status=202,
        body=AlertTestRequest,
        takes_key=True,
        rows=Rows.STAY,
    ),
    Endpoint(
        "GET",
        "/groups/{group}/alerts/test",
        "The outcome of the newest test",
        Role.VIEWER,
        show_test,
        answer=AlertTest,
        rows=Rows.STAY,
    ),
)
