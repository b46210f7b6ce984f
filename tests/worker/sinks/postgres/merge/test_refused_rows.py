"""Which changes the Postgres sink rejects when the target refuses a batch, and that it takes the rest."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

import psycopg
import pytest

from pgsluice.shared.errors import TransientError
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.shared.wire.table import ReplicaIdentity
from pgsluice.testing.changes_builder import Change, delete, insert, table, update
from pgsluice.worker.dead_letters.refusals import MOST_REFUSALS
from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection
from pgsluice.worker.sinks.postgres.merge.refused_rows import CHUNK_ROWS, RefusalBound, refused_rows
from tests.worker.sinks.postgres.conftest import EVERY_WAY, WITH_AND_WITHOUT_STAGES, Target

ORDERS = table("public.orders", "id bigint", "note text")
EVENTS = table("public.events", "id bigint", "note text", key=(), identity=ReplicaIdentity.FULL)
INCOMPRESSIBLE = random.Random(1).randbytes(20_000).hex().encode()

Partitions = Sequence[Sequence[Sequence[Change]]]


def rejected(target: Target, partitions: Partitions) -> tuple[Rejection, ...]:
    """What the sink rejects of a batch. A constraint that folding may have broken is looked at a second time."""
    batch = [target.messages(*partition) for partition in partitions]
    for _ in range(2):
        try:
            target.commit(batch)
        except TransientError:
            continue
        except RejectedChanges as error:
            return tuple(sorted(error.rejections, key=lambda rejection: rejection.position))
    return ()


def positions(rejections: Sequence[Rejection]) -> list[Position]:
    return [rejection.position for rejection in rejections]


def at(*places: tuple[int, int]) -> list[Position]:
    """Positions of changes, by message and ordinal."""
    return [Position(LSN(1000 * message), ordinal) for message, ordinal in places]


@WITH_AND_WITHOUT_STAGES
@pytest.mark.parametrize(
    ("definition", "note", "reason"),
    [
        ("note varchar(5)", b"too long", "string data right truncation, SQLSTATE 22001, column 'note'"),
        ("note integer", b"1e9", "invalid text representation, SQLSTATE 22P02, column 'note'"),
        ("note text NOT NULL", None, "not null violation, SQLSTATE 23502, column 'note'"),
        ("note text CHECK (note <> 'bad')", b"bad", "check violation, SQLSTATE 23514, constraint 'orders_note_check'"),
        ("note text UNIQUE", b"7", "unique violation, SQLSTATE 23505, constraint 'orders_note_key'"),
        ("note bigint REFERENCES parents", b"77", "foreign key violation, SQLSTATE 23503, constraint 'orders_note_fkey'"),
        ("note small", b"200", "check violation, SQLSTATE 23514, constraint 'small_check'"),
        ("note text", INCOMPRESSIBLE, "program limit exceeded, SQLSTATE 54000"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("note") else "",
)
def test_one_bad_row_is_named_and_the_others_are_applied(
    target: Target, definition: str, note: bytes | None, reason: str
) -> None:
    target.execute("CREATE TABLE parents (id bigint PRIMARY KEY); INSERT INTO parents SELECT generate_series(1, 20)")
    target.execute("CREATE DOMAIN small AS integer CHECK (value < 100)")
    target.execute(f"CREATE TABLE orders (id bigint PRIMARY KEY, {definition}); CREATE INDEX ON orders (note)")
    good = [[insert(ORDERS, b"%d" % n, b"%d" % n)] for n in range(1, 11)]
    (rejection,) = rejected(target, [good, [[insert(ORDERS, b"99", note)]]])
    assert rejection.position == at((11, 1))[0]
    assert reason in rejection.reason
    assert target.table("public", "orders") == []
    target.sequence = 0
    target.apply_partitions(good)
    assert len(target.table("public", "orders")) == 10


@WITH_AND_WITHOUT_STAGES
def test_the_last_change_of_a_row_that_is_refused_is_named_first(target: Target) -> None:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note varchar(3))")
    changes = [[insert(ORDERS, b"1", b"a")], [update(ORDERS, b"1", b"long")], [update(ORDERS, b"1", b"longer")]]
    assert positions(rejected(target, [changes])) == at((3, 1))
    target.sequence = 0
    assert positions(rejected(target, [changes[:2]])) == at((2, 1))
    target.sequence = 0
    target.apply_partitions(changes[:1])
    assert target.table("public", "orders") == [("1", "a")]


@WITH_AND_WITHOUT_STAGES
def test_a_delete_that_the_target_refuses_is_named(target: Target) -> None:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text); CREATE TABLE tags (item bigint REFERENCES orders)")
    target.apply(insert(ORDERS, b"1", b"a"), insert(ORDERS, b"2", b"b"))
    target.execute("INSERT INTO tags VALUES (1)")
    assert positions(rejected(target, [[[delete(ORDERS, b"2", None)], [delete(ORDERS, b"1", None)]]])) == at((3, 1))


@WITH_AND_WITHOUT_STAGES
def test_changes_of_a_table_without_a_key_are_named(target: Target) -> None:
    target.execute("CREATE TABLE events (id bigint, note varchar(3))")
    target.apply(insert(EVENTS, b"1", b"a"), insert(EVENTS, b"2", b"b"))
    changes = [update(EVENTS, b"1", b"long", old=(b"1", b"a")), delete(EVENTS, b"2", b"b"), insert(EVENTS, b"3", b"long")]
    assert positions(rejected(target, [[[change] for change in changes]])) == at((2, 1), (4, 1))


@EVERY_WAY
def test_all_bad_rows_of_all_partitions_and_tables_are_named_at_once(target: Target) -> None:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text CHECK (note <> 'bad'))")
    target.execute("CREATE TABLE events (id bigint, note text CHECK (note <> 'bad'))")
    partitions = [
        [[insert(each, b"%d" % (10 * message + n), b"bad" if n == message else b"good") for n in range(5)]]
        for message, each in enumerate([ORDERS, EVENTS, ORDERS], 1)
    ]
    assert positions(rejected(target, partitions)) == at((1, 2), (2, 3), (3, 4))


@WITH_AND_WITHOUT_STAGES
def test_a_row_that_another_one_of_the_round_makes_possible_is_taken(target: Target) -> None:
    """Halves of a set of rows may fail where the whole would not; the row that is bad in itself is the only one rejected."""
    nodes = table("public.nodes", "id bigint", "parent bigint")
    target.execute("CREATE TABLE nodes (id bigint PRIMARY KEY, parent bigint REFERENCES nodes)")
    rows = [insert(nodes, b"%d" % n, b"%d" % (n + 1) if n < 16 else None) for n in range(1, 17)]
    bad = insert(nodes, b"100", b"999")
    assert positions(rejected(target, [[[*rows, bad]]])) == at((1, 17))


def test_bad_rows_are_found_in_few_attempts() -> None:
    bad = {5, 40_000, 40_001, 99_999}
    applied: list[int] = []
    attempts = 0

    def attempt(low: int, high: int) -> None:
        nonlocal attempts
        attempts += 1
        if any(low <= row < high for row in bad):
            raise psycopg.errors.CheckViolation
        applied.extend(range(low, high))

    found = refused_rows(0, 100_000, attempt)
    assert [row for row, _ in found] == sorted(bad)
    assert applied == [row for row in range(100_000) if row not in bad]
    assert attempts <= 1 + 100_000 // CHUNK_ROWS + 1 + len(bad) * 2 * 10


def test_the_search_ends_when_more_rows_are_refused_for_what_they_are_than_may_be() -> None:
    bound = RefusalBound(3)

    def attempt(low: int, high: int) -> None:
        raise psycopg.errors.CheckViolation if high > 50 else psycopg.errors.UniqueViolation

    found = refused_rows(0, 20_000, attempt, bound)
    refused = [psycopg.errors.UniqueViolation] * 50 + [psycopg.errors.CheckViolation] * MOST_REFUSALS
    assert [type(error) for _, error in found] == refused


@pytest.mark.parametrize("column", ["note text CHECK (length(note) < 3)", "note varchar(2)"])
def test_no_more_rows_are_tried_than_are_needed_to_know_that_there_are_too_many(
    new_target: Callable[..., Target], column: str
) -> None:
    target = new_target(max_dead_letters=10)
    target.execute(f"CREATE TABLE orders (id bigint PRIMARY KEY, {column})")
    rows = [insert(ORDERS, b"%d" % n, b"long" if n else b"") for n in range(20_000)]
    assert len(rejected(target, [[rows]])) == MOST_REFUSALS


def test_an_error_that_is_not_about_rows_ends_the_search() -> None:
    def attempt(low: int, high: int) -> None:
        raise psycopg.errors.UndefinedColumn

    with pytest.raises(psycopg.errors.UndefinedColumn):
        refused_rows(0, 10, attempt)


def test_a_reason_holds_no_value(target: Target) -> None:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note text CHECK (length(note) < 3))")
    (rejection,) = rejected(target, [[[insert(ORDERS, b"987654321", b"s3cret")]]])
    assert re.search("s3cret|987654321", rejection.reason) is None


@WITH_AND_WITHOUT_STAGES
def test_a_refused_row_with_many_changes_takes_few_passes(target: Target) -> None:
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY, note varchar(3))")
    changes = [[insert(ORDERS, b"1", b"long")], *([update(ORDERS, b"1", b"longer %d" % n)] for n in range(30))]
    batch = [*target.messages(*changes), *target.messages([insert(ORDERS, b"2", b"ok")])]
    passes = 0
    while True:
        passes += 1
        try:
            target.commit([batch])
            break
        except RejectedChanges as error:
            first = min(rejection.position for rejection in error.rejections)
            batch = [each for each in batch if each.transactions[0].commit_lsn < first.commit_lsn or each is batch[-1]]
    assert target.table("public", "orders") == [("2", "ok")]
    assert passes <= 7
