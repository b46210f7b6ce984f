"""How far a copy is, as figures, as a log line and as bars on a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pgsluice.replicator.snapshot import table_progress as display
from pgsluice.replicator.snapshot.copy_state import anew, begin_attempt
from pgsluice.replicator.snapshot.copy_task_messages import RangeOutcome, RangeStatus
from pgsluice.replicator.snapshot.table_progress import Figures, TableProgress, measure
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.ledger import Ledger, Phase, Retry, TableRecord, now
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import PgsluiceError, SlotTimeoutError, TerminalError, TransientError
from pgsluice.shared.wire.names import GroupNames
from tests.replicator.copier import page_range
from tests.servers import NatsServer

MIB = 1 << 20


class NoBucket:
    """Nothing here is written."""


def book(*records: TableRecord) -> TableProgress:
    return TableProgress(Ledger(NoBucket()), records)  # type: ignore[arg-type]


def table(oid: int, phase: Phase, ranges: int = 4) -> TableRecord:
    return TableRecord(oid, "public", f"t{oid}", phase, "then", ranges=ranges, bytes_total=ranges * MIB)


def copy_range(tables: TableProgress, oid: int, number: int) -> None:
    tables.note_done(RangeOutcome(page_range(oid, number, MIB), RangeStatus.DONE, rows=1000, bytes=100_000))


def test_figures_count_what_this_run_copies() -> None:
    tables = book(table(1, Phase.DATA_SYNC), table(2, Phase.FINISHED_COPY), table(3, Phase.DATA_SYNC, 1))
    copy_range(tables, 1, 1)
    copy_range(tables, 3, 1)
    figures = measure(tables, frozenset({2}), elapsed_s=4.0)
    assert (figures.tables, figures.tables_done, figures.rows, figures.percent) == (2, 1, 2000, 40.0)
    assert (figures.rows_per_s, figures.bytes_per_s, figures.remaining_s) == (500.0, 50_000.0, 6.0)


def test_a_finished_table_says_up_to_where_its_rows_are_in_the_stream() -> None:
    tables = book(table(1, Phase.DATA_SYNC, 2), table(2, Phase.DATA_SYNC, 0))
    for oid, sequence in ((1, 3), (2, 4)):
        tables.note_begun(oid, sequence)
    for number, sequence in ((2, 9), (1, 7)):
        pages = page_range(1, number, MIB)
        tables.note_done(RangeOutcome(pages, RangeStatus.DONE, last_sequence=sequence))
    assert {record.oid: (record.phase, record.last_sequence) for record in tables.records} == {
        1: (Phase.FINISHED_COPY, 9),
        2: (Phase.FINISHED_COPY, 4),
    }
    tables.put(anew(tables.records[0]))
    assert tables.records[0].last_sequence == 0


@pytest.mark.parametrize(
    ("error", "tries_again", "retry"),
    [
        (TransientError("busy"), True, Retry.TIMED),
        (SlotTimeoutError("open"), True, Retry.TIMED),
        (TerminalError("refused"), True, Retry.MANUAL),
        (TransientError("busy"), False, Retry.MANUAL),
    ],
)
def test_a_table_that_is_given_up_is_tried_again_where_the_cause_may_pass(
    error: PgsluiceError, tries_again: bool, retry: Retry
) -> None:
    tables = TableProgress(Ledger(NoBucket()), [table(1, Phase.INIT)], tries_again=tries_again)  # type: ignore[arg-type]
    tables.note_errored(1, error)
    [errored] = tables.errored
    assert (errored.retry, bool(errored.retry_at), errored.failures) == (retry, retry is Retry.TIMED, 1)
    assert not errored.is_due(datetime.now(UTC))
    assert errored.is_due(datetime.now(UTC) + timedelta(hours=2)) == (retry is Retry.TIMED)


def test_pauses_grow_with_each_failure_and_begin_again_after_a_finished_copy() -> None:
    tables = book(table(1, Phase.INIT, 0))
    pauses = []
    for _ in range(3):
        tables.note_errored(1, TransientError("busy"))
        pauses.append(datetime.fromisoformat(tables.records[0].retry_at) - datetime.fromisoformat(tables.records[0].since))
        tables.put(anew(tables.records[0]))
    assert pauses == sorted(pauses)
    tables.put(begin_attempt(tables.records[0]))
    tables.note_begun(1, 1)
    assert tables.records[0].failures == 0


def test_before_anything_is_done_nothing_is_foretold() -> None:
    figures = Figures(1, 0, 0, 0, 0, 0, 0, 0.0)
    assert (figures.percent, figures.rows_per_s, figures.remaining_s) == (0.0, 0.0, None)


async def test_without_a_terminal_a_line_is_logged_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(display, "LOG_INTERVAL_S", 0.01)
    tables = book(table(1, Phase.DATA_SYNC))
    copy_range(tables, 1, 1)
    caplog.set_level("INFO")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(display.show_progress(tables), 0.2)
    fields = caplog.records[-1].pgsluice_fields  # type: ignore[attr-defined]
    assert caplog.records[-1].getMessage() == "copying"
    assert (fields["tables"], fields["rows"], fields["percent"]) == ("0/1", 1000, 25.0)
    assert fields["rows_per_s"] > 0
    assert isinstance(fields["eta_s"], int)


async def test_on_a_terminal_bars_show_tables_and_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "160")
        tables = book(table(1, Phase.DATA_SYNC), table(2, Phase.DATA_SYNC))
        copy_range(tables, 1, 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(display.show_progress(tables), 0.6)
        terminal.flush()
    shown = b""
    while chunk := _read(reader):
        shown += chunk
    os.close(reader)
    text = shown.decode()
    assert "0/2 tables" in text
    assert "public.t1" in text
    assert "1/4 ranges  1,000 rows" in text
    assert "public.t2" not in text


def _read(descriptor: int) -> bytes:
    """Empty at the end: Linux says EIO when the other side of a terminal is closed."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


def test_a_table_begun_anew_has_nothing_done() -> None:
    tables = book(table(1, Phase.DATA_SYNC))
    copy_range(tables, 1, 1)
    tables.put(replace(table(1, Phase.DATA_SYNC), attempt=2))
    assert measure(tables, frozenset(), 1.0).pages_done == 0


def test_a_range_that_ends_after_its_table_waits_for_another_copy_does_not_count() -> None:
    tables = book(table(1, Phase.DATA_SYNC))
    copy_range(tables, 1, 1)
    tables.put(anew(tables.records[0]))
    copy_range(tables, 1, 2)
    [record] = tables.records
    assert (record.phase, record.rows, record.ranges_done) == (Phase.INIT, 0, 0)


async def test_what_is_noted_while_the_ledger_is_written_is_written_the_next_time(group: str, nats_server: NatsServer) -> None:
    async with connected(nats_server.settings(), "test") as client:
        bucket = StateBucket(client, GroupNames(group))
        await bucket.ensure(StreamSettings(1, (), 1 << 20, "none", 60.0))
        ledger = Ledger(bucket)
        tables = TableProgress(ledger, [replace(table(1, Phase.DATA_SYNC), since=now())])
        copy_range(tables, 1, 1)
        writing = asyncio.ensure_future(tables.write())
        await asyncio.sleep(0)  # it waits for the broker now
        copy_range(tables, 1, 2)
        await writing
        assert (await ledger.load()).tables[1].ranges_done == 1
        await tables.write()
        assert (await ledger.load()).tables[1].ranges_done == 2
