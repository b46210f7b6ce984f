"""When an alert is told, told again, and told to be over: over the looks of hours."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from pgsluice.shared.alerts.alert_overrides import Silence
from pgsluice.shared.alerts.alert_state import AlertPolicy, AlertRecord, advance
from pgsluice.shared.alerts.conditions import AlertFindings, AlertName, Condition
from pgsluice.shared.broker.record import decode, encode

POLICY = AlertPolicy(for_s=60.0, repeat_s=3600.0, channels=("webhook",))
START = datetime(2026, 1, 31, 12, tzinfo=UTC)
ERRORED = Condition(AlertName.TABLE_ERRORED, "public.t", "permission denied", "grant it")
LAGS = Condition(AlertName.LAG, "lake", "it is 400 s behind")
SLOT = Condition(AlertName.SLOT_AT_RISK, "s", "it may be lost")


class Pager:
    """Looks when it is told to; what is to be told is delivered unless ``is_down``."""

    def __init__(self, policy: AlertPolicy = POLICY) -> None:
        self.policy = policy
        self.alerts: tuple[AlertRecord, ...] = ()
        self.told: list[tuple[str, str, float]] = []
        self.is_down = False

    def look(self, after_s: float, *conditions: Condition, unknown: frozenset[AlertName] = frozenset()) -> None:
        now = START + timedelta(seconds=after_s)
        self.alerts = advance(self.alerts, AlertFindings(conditions, unknown), now, self.policy)
        if not self.is_down:
            self.alerts = tuple(self._delivered(alert, after_s, now) for alert in self.alerts)

    def _delivered(self, alert: AlertRecord, after_s: float, now: datetime) -> AlertRecord:
        for channel in alert.untold:
            self.told.append((alert.subject, "firing" if alert.is_firing else "resolved", after_s))
            alert = alert.told(channel, now)
        return alert


def test_what_needs_a_person_is_told_at_once_and_again_after_the_repeat_and_when_it_is_over() -> None:
    pager = Pager()
    for at_s in range(0, 7300, 10):
        pager.look(at_s, ERRORED)
    for at_s in range(7300, 7400, 10):
        pager.look(at_s)
    assert pager.told == [
        ("public.t", "firing", 0),
        ("public.t", "firing", 3600),
        ("public.t", "firing", 7200),
        ("public.t", "resolved", 7300),
    ]
    assert pager.alerts == ()


def test_what_may_pass_by_itself_is_told_when_it_has_lasted() -> None:
    pager = Pager()
    for at_s in range(0, 50, 10):
        pager.look(at_s, LAGS)
    pager.look(50)
    for at_s in range(60, 130, 10):
        pager.look(at_s, LAGS)
    assert pager.told == [("lake", "firing", 120)]


def test_what_nobody_was_told_of_is_not_told_to_be_over() -> None:
    pager = Pager()
    pager.look(0, LAGS)
    pager.look(10)
    assert (pager.told, pager.alerts) == ([], ())


def test_what_is_not_known_stays_as_it_was() -> None:
    pager = Pager()
    pager.look(0, SLOT)
    pager.look(60, SLOT)
    pager.look(70, unknown=frozenset({AlertName.SLOT_AT_RISK}))
    assert pager.told == [("s", "firing", 60)]
    pager.look(80)
    assert pager.told[1:] == [("s", "resolved", 80)]


def test_a_receiver_that_is_down_is_told_when_it_is_back() -> None:
    pager = Pager()
    pager.is_down = True
    for at_s in range(0, 100, 10):
        pager.look(at_s, ERRORED)
    pager.is_down = False
    pager.look(100, ERRORED)
    pager.is_down = True
    pager.look(110)
    pager.look(120)
    pager.is_down = False
    pager.look(130)
    pager.look(140)
    assert pager.told == [("public.t", "firing", 100), ("public.t", "resolved", 130)]
    assert pager.alerts == ()


def test_what_comes_back_before_its_end_was_told_goes_on() -> None:
    pager = Pager()
    pager.look(0, ERRORED)
    pager.is_down = True
    pager.look(10)
    pager.is_down = False
    pager.look(20, ERRORED)
    assert [(state, at_s) for _, state, at_s in pager.told] == [("firing", 0), ("firing", 20)]
    assert pager.alerts[0].since == START.isoformat()


def test_what_comes_back_after_its_end_was_told_begins_anew() -> None:
    pager = Pager()
    pager.look(0, LAGS)
    pager.look(60, LAGS)
    pager.look(70)
    pager.look(80, LAGS)
    assert [(state, at_s) for _, state, at_s in pager.told] == [("firing", 60), ("resolved", 70)]
    assert pager.alerts[0].since == (START + timedelta(seconds=80)).isoformat()


def test_the_words_are_those_of_the_last_look() -> None:
    pager = Pager()
    pager.look(0, ERRORED)
    pager.look(10, Condition(AlertName.TABLE_ERRORED, "public.t", "another reason", "another way"))
    assert (pager.alerts[0].fact, pager.alerts[0].remedy) == ("another reason", "another way")


def test_a_channel_that_is_no_longer_configured_is_not_waited_for() -> None:
    pager = Pager(AlertPolicy(60.0, 3600.0, ("webhook", "command")))
    pager.is_down = True
    pager.look(0, ERRORED)
    assert [alert.untold for alert in pager.alerts] == [("webhook", "command")]
    pager.policy = POLICY
    pager.look(10, ERRORED)
    assert [alert.untold for alert in pager.alerts] == [("webhook",)]


def test_the_record_comes_back_from_the_bucket_as_it_was() -> None:
    pager = Pager()
    pager.is_down = True
    pager.look(0, ERRORED)
    assert decode(AlertRecord, encode(pager.alerts[0])) == pager.alerts[0]


def test_nobody_is_told_of_what_is_silenced_before_that_ends() -> None:
    until = (START + timedelta(seconds=100)).isoformat()
    pager = Pager(replace(POLICY, silences=(Silence(until, AlertName.TABLE_ERRORED), Silence(until, None, "lake"))))
    for at_s in range(0, 200, 10):
        pager.look(at_s, ERRORED, LAGS, Condition(AlertName.GROUP_HALTED, "group", "another history"))
    assert pager.told == [("group", "firing", 0), ("public.t", "firing", 100), ("lake", "firing", 100)]


def test_what_was_told_before_it_was_silenced_is_told_to_be_over() -> None:
    pager = Pager()
    pager.look(0, ERRORED)
    pager.policy = replace(POLICY, silences=(Silence((START + timedelta(days=1)).isoformat()),))
    pager.look(3700, ERRORED)
    pager.look(3710)
    assert pager.told == [("public.t", "firing", 0), ("public.t", "resolved", 3710)]
