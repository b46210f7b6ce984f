"""Batches of events and accounts that sinks are tested with, and the expected results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pgsluice.shared.rows.changes import CopiedRows
from pgsluice.shared.wire.table import ReplicaIdentity, Table
from pgsluice.testing.batch import (
    STREAM_CREATED,
    Batch,
)
from pgsluice.testing.changes_builder import copied, insert, message, table
from pgsluice.worker.sinks.sink import Applied

EVENTS = table("public.events", "id bigint", "note text", key=(), identity=ReplicaIdentity.FULL)
KEYED_EVENTS = table("public.events", "id bigint", "note text")
"""A table for sinks that require keys."""

ACCOUNTS = table("public.accounts", "id bigint", "note text")
LARGE_NOTE = b"x" * 300_000  # several of these fill more than one receipt, and more than a receipt may carry inline


def batch(*partitions: Iterable[int], note: bytes = b"n", table: Table = EVENTS) -> Batch:
    """Returns partitions of messages with the given sequences; each message is one transaction of two events."""
    return [
        [message(n, insert(table, b"%d" % (2 * n), note), insert(table, b"%d" % (2 * n + 1), note)) for n in sequences]
        for sequences in partitions
    ]


def events(last_sequence: int) -> list[int]:
    """Returns the ids of all events in the messages 1 to ``last_sequence``, in commit order."""
    return list(range(2, 2 * last_sequence + 2))


def position(sequence: int) -> Applied:
    """Returns the worker's position after that message of ``batch``."""
    return Applied(sequence, commit_lsn=1000 * sequence, committed_at=sequence, stream_created=STREAM_CREATED)


def copied_batch(
    *partitions: Iterable[int], note: bytes = b"n", snapshot: str = "first", table: Table = EVENTS
) -> list[list[CopiedRows]]:
    """Returns the events of ``batch``, in messages of the snapshot stream."""
    return [
        [copied(n, table, (b"%d" % (2 * n), note), (b"%d" % (2 * n + 1), note), snapshot=snapshot) for n in sequences]
        for sequences in partitions
    ]


def copied_position(snapshot_sequence: int) -> Applied:
    return Applied(0, 0, 0, STREAM_CREATED, snapshot_sequence)


def followed_accounts(lines: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Returns the accounts after the objects of ``worker.sinks.lines.json_lines``, in the delivered sequence."""
    notes: dict[int, str] = {}
    for line in lines:
        if line["table"] != ACCOUNTS.name:
            continue
        notes.pop((line["before"] or line["key"])["id"], None)
        if line["after"] is not None:
            notes[line["after"]["id"]] = line["after"]["note"]
    return notes


def counting_events(lines: Iterable[Mapping[str, Any]]) -> list[int]:
    """Returns the ids of the events in objects of ``worker.sinks.lines.json_lines``, without rows copied before their
    table was begun again."""
    counting: list[Mapping[str, Any]] = []
    for line in lines:
        if line["operation"] == "RESTART":
            counting = [other for other in counting if (other["operation"], other["table"]) != ("READ", line["table"])]
        else:
            counting.append(line)
    return [line["after"]["id"] for line in counting if line["table"] == EVENTS.name]
