"""Evaluates a group's alerts and sends them, in every process of the group that has a channel.

Channels come from the process's configuration, or from settings changed since (``alert_overrides``), which apply at the
next check.

One process does so at a time, the *holder*: it is named in the record of the alerts, which it writes at every check,
compared with the revision it read. When it has ended, or no longer writes, another one continues from the record: so
the other processes notice the death of any process, a restart repeats no alert, and none is forgotten.

Failures here do not affect replication: they are logged, and tried again.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime

from nats.aio.client import Client

from pgsluice.shared import telemetry
from pgsluice.shared.alerts.alert_overrides import OVERRIDES, TEST_KEY, AlertTest
from pgsluice.shared.alerts.alert_state import ALERTS_KEY, AlertPolicy, AlertRecord, AlertsRecord, advance
from pgsluice.shared.alerts.conditions import AlertName, AlertSeverity, find_conditions
from pgsluice.shared.alerts.delivery import Channel, alert_content, channels
from pgsluice.shared.alerts.facts import gather_facts
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.dead_letter_stream import LetterCounts
from pgsluice.shared.broker.wishes import SeenWish
from pgsluice.shared.config.alert_settings import AlertSettings
from pgsluice.shared.errors import PgsluiceError, TerminalError, UsageError
from pgsluice.shared.process.defect import place_of
from pgsluice.shared.process.retrying import Backoff, Pauses, RetryNews
from pgsluice.shared.wire.names import GroupNames

SILENCE_S = 30.0
"""A holder that has not written for this long plus three of its intervals has ended. Sending may take it that long."""
TEST_PATIENCE_S = 300.0
"""A test that could not be sent for this long is dropped."""

log = telemetry.logger(__name__)


async def is_kept(bucket: StateBucket, record: AlertsRecord) -> bool:
    """Returns whether a process evaluates alerts now, and writes the result into ``record``."""
    age_s = await bucket.age_s(ALERTS_KEY) if record.holder else None
    return age_s is not None and age_s < 3 * record.interval_s + SILENCE_S


class AlertWatch:
    """Used on one event loop. ``client`` gives the connection as the process has it now, None while it has none; ``unit`` is who
    the process is. Raises UsageError or TerminalError for settings that cannot be meant."""

    def __init__(
        self, settings: AlertSettings, names: GroupNames, unit: str, client: Callable[[], Client | None], pauses: Pauses
    ) -> None:
        self._started_with = self._settings = settings
        self._names = names
        self._unit = unit
        self._client = client
        self._seen = SeenWish(OVERRIDES)
        self._problem = ""
        """Why the operator's settings do not apply here."""
        self._channels = channels(settings)
        self.is_wanted = asyncio.Event()
        """Set once there is a channel."""
        self._me = f"{unit} {socket.gethostname()}:{os.getpid()}"
        self._letters = LetterCounts()
        self._news = RetryNews()
        self._pauses = pauses
        self._backoffs: dict[str, Backoff] = {}
        self._not_before: dict[str, float] = {}
        """Channel → time of the loop's clock before which it is not tried again after a failure."""
        self._held: tuple[AlertsRecord, int] | None = None
        """The record that this process wrote last, and its revision."""

    async def run(self) -> None:
        """Runs until it is cancelled; then another process may continue at once."""
        try:
            while True:
                await self._guarded(self._look)
                await asyncio.sleep(self._settings.interval_s)
        finally:
            await self._guarded(self._release_watch)

    async def _guarded(self, act: Callable[[], Awaitable[None]]) -> None:
        try:
            await act()
        except PgsluiceError as error:
            if self._news.is_due(error):
                log.warning("alerts cannot be looked at now", reason=str(error))
        except Exception as defect:  # noqa: BLE001  a defect here must not end replication, and its text may quote anything
            log.error("alerts cannot be looked at now, by a defect", reason=place_of(defect))

    async def _look(self) -> None:
        client = self._client()
        if client is None or client.is_closed:
            return
        bucket = StateBucket(client, self._names)
        if not await bucket.exists():
            return
        await self._obey(bucket)
        if not self._channels or not await self._is_ours(bucket):
            return
        await self._answer_test(bucket)
        record, _ = self._held or (AlertsRecord(self._me, self._settings.interval_s), 0)
        findings = find_conditions(await gather_facts(client, self._names, self._letters), self._settings.lag_s)
        now = datetime.now(UTC)
        advanced = advance(record.alerts, findings, now, self._policy())
        if not await self._write(bucket, advanced):
            return
        told = tuple([await self._tell(alert) for alert in advanced])
        if told != advanced:
            await self._write(bucket, told)

    async def _obey(self, bucket: StateBucket) -> None:
        """Applies settings changed since the last check. Settings that do not fit this process are skipped and logged."""
        if await self._seen.look(bucket):
            overrides, self._problem, self._not_before = self._seen.value, "", {}
            try:
                self._settings = overrides.applied_to(self._started_with, os.environ)
                self._channels = channels(self._settings)
            except (UsageError, TerminalError) as error:
                self._problem = str(error)
                self._settings = replace(overrides, webhook="", token="").applied_to(self._started_with, os.environ)
                self._channels = channels(self._settings)
                log.warning("the alert settings cannot be read here, continuing with those of the start", reason=str(error))
        if self._channels:
            self.is_wanted.set()

    def _policy(self) -> AlertPolicy:
        names = tuple(channel.name for channel in self._channels)
        return AlertPolicy(self._settings.for_s, self._settings.repeat_s, names, self._seen.value.silences)

    async def _answer_test(self, bucket: StateBucket) -> None:
        """Sends the test that was requested recently, and records the outcome."""
        entry = await bucket.read(TEST_KEY, AlertTest)
        if entry is None or entry.value.done_at or (await bucket.age_s(TEST_KEY) or 0.0) > TEST_PATIENCE_S:
            return
        outcomes = {"settings": self._problem} if self._problem else {}
        for channel in self._channels:
            try:
                await asyncio.to_thread(channel.tell, alert_content(self._names.group, _test_alert(entry.value), self._unit))
                outcomes[channel.name] = ""
            except PgsluiceError as error:
                outcomes[channel.name] = str(error)
        done = replace(entry.value, done_at=datetime.now(UTC).isoformat(), sent_by=self._me, outcomes=outcomes)
        await bucket.update(TEST_KEY, done, entry.revision)

    async def _is_ours(self, bucket: StateBucket) -> bool:
        """Returns whether this process is the holder. ``_held`` is up to date then."""
        entry = await bucket.read(ALERTS_KEY, AlertsRecord)
        if entry is None:
            self._held = None
            return True
        record = entry.value
        if record.holder not in (self._me, ""):
            if await is_kept(bucket, record):
                return False
            log.info("this process sends the group's alerts from now on", before=record.holder)
        self._held = record, entry.revision
        return True

    async def _write(self, bucket: StateBucket, alerts: tuple[AlertRecord, ...]) -> bool:
        """Returns False if another process wrote meanwhile."""
        record = AlertsRecord(self._me, self._settings.interval_s, alerts, self._problem)
        if self._held is None:
            revision = await bucket.create(ALERTS_KEY, record)
        else:
            revision = await bucket.update(ALERTS_KEY, record, self._held[1])
        self._held = None if revision is None else (record, revision)
        return revision is not None

    async def _tell(self, alert: AlertRecord) -> AlertRecord:
        """Sends the alert; returns it with the channels that succeeded."""
        for channel in self._channels:
            if channel.name in alert.untold and await self._is_told(channel, alert):
                alert = alert.told(channel.name, datetime.now(UTC))
        return alert

    async def _is_told(self, channel: Channel, alert: AlertRecord) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._not_before.get(channel.name, 0.0):
            return False
        try:
            await asyncio.to_thread(channel.tell, alert_content(self._names.group, alert, self._unit))
        except PgsluiceError as error:
            pause_s = self._backoffs.setdefault(channel.name, Backoff(self._pauses)).next_pause_s()
            self._not_before[channel.name] = asyncio.get_running_loop().time() + pause_s
            log.warning(
                "an alert could not be sent, trying again",
                alert=alert.alert,
                subject=alert.subject,
                channel=channel.name,
                reason=str(error),
                pause_s=round(pause_s, 1),
            )
            return False
        self._backoffs.pop(channel.name, None)
        log.info(
            "an alert was sent",
            alert=alert.alert,
            subject=alert.subject,
            state="firing" if alert.is_firing else "resolved",
            channel=channel.name,
        )
        return True

    async def _release_watch(self) -> None:
        held, client = self._held, self._client()
        if held is None or held[0].holder != self._me or client is None or not client.is_connected:
            return
        await StateBucket(client, self._names).update(ALERTS_KEY, replace(held[0], holder=""), held[1])


def _test_alert(test: AlertTest) -> AlertRecord:
    fact = f"{test.by or 'somebody'} asked whether alerts arrive"
    return AlertRecord(AlertName.TEST, "alerts", AlertSeverity.WARNING, fact, "no action is needed: they arrive", test.asked_at)
