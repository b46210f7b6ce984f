"""What is made of a table that the target lacks, and when a table is looked at again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import ReplicaIdentity
from pgsluice.testing.batch import STREAM_CREATED, write
from pgsluice.testing.changes_builder import insert, table, truncate, update
from pgsluice.worker.sinks.postgres import target_tables
from tests.worker.sinks.postgres.conftest import WITH_AND_WITHOUT_STAGES, Target

ORDERS = table("public.orders", "id bigint", "note text")


def columns(target: Target, name: str) -> list[tuple[Any, ...]]:
    return target.rows(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute"
        f" WHERE attrelid = '{name}'::regclass AND attnum > 0 ORDER BY attnum"
    )


def indexes(target: Target, name: str) -> list[tuple[Any, ...]]:
    return target.rows(f"SELECT pg_get_indexdef(indexrelid), indisprimary FROM pg_index WHERE indrelid = '{name}'::regclass")


@WITH_AND_WITHOUT_STAGES
def test_a_missing_table_is_made_with_its_schema_types_and_key(target: Target) -> None:
    made = table(
        'Sales.Order "lines"', ("note", "character varying(7)"), "b bigint", "tags text[]", "A numeric(10,2)", key=("A", "b")
    )
    target.apply(insert(made, b"x", b"1", b"{a,b}", b"1.50"))
    assert columns(target, '"Sales"."Order ""lines"""') == [
        ("note", "character varying(7)", False),
        ("b", "bigint", True),
        ("tags", "text[]", False),
        ("A", "numeric(10,2)", True),
    ]
    assert [definition.endswith('btree ("A", b)') for definition, _ in indexes(target, '"Sales"."Order ""lines"""')] == [True]


def test_types_that_the_target_does_not_know_become_text(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    made = table("public.moods", "id bigint", "mood public.mood", "evil text);DROP/**/TABLE/**/moods;--")
    target.apply(insert(made, b"1", b"happy", b"x"))
    assert columns(target, "moods")[1:] == [("mood", "text", False), ("evil", "text", False)]
    assert "becomes text" in caplog.text


def test_a_type_that_the_target_has_is_used(target: Target) -> None:
    target.execute("CREATE TYPE public.mood AS ENUM ('happy', 'sad')")
    target.apply(insert(table("public.moods", "id bigint", "mood public.mood"), b"1", b"sad"))
    assert columns(target, "moods")[1] == ("mood", "mood", False)


def test_a_replica_identity_index_beside_the_primary_key_is_made_too(target: Target) -> None:
    people = table("public.people", "id bigint", "email text", identity=ReplicaIdentity.INDEX, identity_columns=("email",))
    target.apply(insert(people, b"1", b"a@x"))
    assert sorted(primary for _, primary in indexes(target, "people")) == [False, True]


def test_a_table_that_is_only_truncated_is_made(target: Target) -> None:
    target.apply(truncate(ORDERS))
    assert target.table("public", "orders") == []


def test_a_missing_table_is_an_error_when_schemas_are_not_synchronised(target: Target) -> None:
    target.settings = replace(target.settings, sync_schema=False)
    with pytest.raises(TerminalError, match=r"'public\.orders' does not exist at the target.*set target-sync-schema: true"):
        target.apply(insert(ORDERS, b"1", b"a"))


def test_all_tables_that_do_not_fit_are_named_at_once(new_target: Callable[..., Target]) -> None:
    target = new_target()
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY); CREATE TABLE people (id bigint)")
    with pytest.raises(TerminalError, match="2 things are wrong") as refusal:
        target.apply(insert(ORDERS, b"1", b"a"), insert(table("public.people", "id bigint"), b"1"))
    for text in ("no column 'note'", "no unique index on its key"):
        assert text in refusal.value.remedy


@WITH_AND_WITHOUT_STAGES
def test_a_table_that_was_altered_under_the_worker_is_looked_at_again(target: Target) -> None:
    target.apply(insert(ORDERS, b"1", b"a"))
    target.execute("ALTER TABLE orders ALTER COLUMN id TYPE integer")
    target.apply(update(ORDERS, b"1", b"b"), insert(ORDERS, b"2", b"c"))
    target.execute("DROP TABLE orders")
    target.apply(insert(ORDERS, b"3", b"c"))
    assert target.table("public", "orders") == [("3", "c")]
    target.execute("ALTER TABLE orders DROP COLUMN note")
    with pytest.raises(TerminalError, match="has no column 'note'"):
        target.apply(insert(ORDERS, b"4", b"d"))


def test_a_table_that_another_task_made_meanwhile_is_not_called_renamed(
    target: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The catalog was read before."""
    target.apply(insert(ORDERS, b"1", b"a"))
    monkeypatch.setattr(target_tables, "read_catalog", lambda connection, tables: {})
    task = target.new_sink()
    task.open()
    task.commit(write(task, [target.messages([insert(ORDERS, b"2", b"b")])]), STREAM_CREATED)
    assert target.table("public", "orders") == [("1", "a"), ("2", "b")]
    assert "was renamed" not in caplog.text
