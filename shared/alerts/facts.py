"""Gathers what the broker holds of a group, for ``conditions``."""

from __future__ import annotations

from collections.abc import Mapping

from nats.aio.client import Client

from pgsluice.shared.alerts.conditions import GroupFacts
from pgsluice.shared.alerts.slot_record import FRESH_S, SLOT_KEY, SlotRecord
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream, LetterCounts
from pgsluice.shared.broker.halt import read_halt
from pgsluice.shared.broker.lag import Lag, measure_lag
from pgsluice.shared.broker.ledger import Ledger
from pgsluice.shared.broker.streams import ChangeStream, SnapshotStream, StreamState
from pgsluice.shared.broker.worker_records import WorkerReport, read_reports
from pgsluice.shared.pipelines.run_facts import read_run_facts
from pgsluice.shared.subscriptions.subscription_records import read_paused
from pgsluice.shared.units.found_units import known_units, read_units
from pgsluice.shared.units.unit_states import unit_state
from pgsluice.shared.wire.names import GroupNames


async def gather_facts(client: Client, names: GroupNames, letters: LetterCounts) -> GroupFacts:
    """Raises TransientError when NATS does not answer, TerminalError when a record is malformed. ``letters`` is kept
    from one call to the next."""
    bucket = StateBucket(client, names)
    changes, dead = ChangeStream(client, names), DeadLetterStream(client, names)
    streams = {stream.name: await stream.state() for stream in (changes, SnapshotStream(client, names), dead)}
    ledger = await Ledger(bucket).load()
    reports = await read_reports(bucket)
    units = await read_units(bucket, await known_units(bucket), ledger.snapshot)
    return GroupFacts(
        halt=await read_halt(bucket),
        slot=await _slot(bucket),
        units=tuple(unit_state(unit) for unit in units),
        tables=tuple(ledger.tables.values()),
        streams={name: state for name, state in streams.items() if state is not None},
        lags=await _lags(reports, changes, streams[changes.name]),
        missed={name: report.missed for name, report in reports.items()},
        letters=await letters.of(dead),
        runs=await read_run_facts(bucket),
        paused_subscriptions=await read_paused(bucket),
    )


async def _slot(bucket: StateBucket) -> SlotRecord | None:
    entry = await bucket.read(SLOT_KEY, SlotRecord)
    age_s = None if entry is None else await bucket.age_s(SLOT_KEY)
    return entry.value if entry is not None and age_s is not None and age_s <= FRESH_S else None


async def _lags(reports: Mapping[str, WorkerReport], stream: ChangeStream, state: StreamState | None) -> dict[str, Lag]:
    """Returns the lag of each worker whose position in the stream is known."""
    if state is None:
        return {}
    return {
        name: await measure_lag(stream, state, report.catch_up_sequence if report.catching_up else report.sequence)
        for name, report in reports.items()
        if report.stream_created in (state.created, "")
    }
