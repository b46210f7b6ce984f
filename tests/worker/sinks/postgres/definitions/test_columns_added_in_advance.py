"""Columns that the target has before the source adds them: taken where their type fits, with what the source's rows have."""

from __future__ import annotations

from typing import Any

import pytest

from pgsluice.shared.wire.definition import TableDefined
from pgsluice.worker.definitions.policy import Policies
from pgsluice.worker.definitions.refusal import RefusedDefinitionError
from tests.servers import Database
from tests.worker.definitions.definitions_of import ID, column, with_columns
from tests.worker.sinks.postgres.definitions.test_policies import NEEDED, ROWS, SOURCE, TARGET, N, apply


def adding(kind: str, oid: int, **changed: Any) -> TableDefined:
    return TableDefined("ALTER TABLE", with_columns(ID, NEEDED, N, column(4, "more", type_oid=oid, type_name=kind, **changed)))


@pytest.mark.parametrize(
    ("there", "event", "rows"),
    [
        ("more text", adding("text", 25, missing="7"), ["7", "7"]),
        ("more text NOT NULL DEFAULT 'x'", adding("text", 25), [None, None]),
        ("more text NOT NULL DEFAULT 'x'", adding("text", 25, missing="7", not_null=True), ["7", "7"]),
        ("more text", adding("integer", 23, missing="7"), ["7", "7"]),
        ("more bigint DEFAULT 7", adding("integer", 23, missing="7"), ["7", "7"]),
        ("more varchar", adding("character varying(3)", 1043, missing="7"), ["7", "7"]),
        ("more box", adding("box", 603, missing="(1,1),(0,0)"), ["(1,1),(0,0)"] * 2),
        ("more json", adding("json", 114, missing='{"a": 1}'), ['{"a": 1}'] * 2),
        ("more text GENERATED ALWAYS AS ('own') STORED", adding("text", 25, missing="7"), ["own", "own"]),
    ],
)
def test_a_column_that_is_there_is_taken_and_rows_have_what_the_sources_have(
    target_database: Database, there: str, event: TableDefined, rows: list[str | None]
) -> None:
    target_database.execute(TARGET)
    target_database.execute(f"ALTER TABLE t ADD COLUMN {there}")
    target_database.execute(ROWS)
    for _ in range(2):
        apply(target_database, Policies(), event, SOURCE)
        assert [row[0] for row in target_database.execute("SELECT more::text FROM t ORDER BY id")] == rows


@pytest.mark.parametrize(
    ("there", "event"),
    [
        ("more integer", adding("text", 25, missing="7")),
        ("more integer", adding("bigint", 20, missing="7")),
        ("more real", adding("double precision", 701)),
        ("more varchar(3)", adding("character varying(9)", 1043)),
        ("more numeric(9,1)", adding("numeric", 1700)),
    ],
)
def test_a_column_that_does_not_take_every_value_of_the_source_stops_with_the_statement(
    target_database: Database, there: str, event: TableDefined
) -> None:
    target_database.execute(TARGET)
    target_database.execute(f"ALTER TABLE t ADD COLUMN {there}")
    with pytest.raises(
        RefusedDefinitionError, match=r"added column 'more' .*: give it the source's type there \(ALTER TABLE"
    ) as refused:
        apply(target_database, Policies(), event, SOURCE)
    statement = str(refused.value).partition("there (")[2].partition("), or")[0]
    target_database.execute(statement)
    apply(target_database, Policies(), event, SOURCE)


def test_inheriting_tables_of_the_target_keep_what_they_have(target_database: Database) -> None:
    target_database.execute(TARGET + "; ALTER TABLE t ADD COLUMN more text; CREATE TABLE own (c int) INHERITS (t)")
    target_database.execute("INSERT INTO own (id, note, more) VALUES (5, 'a', 'mine')")
    target_database.execute(ROWS)
    apply(target_database, Policies(), adding("text", 25, missing="7"), SOURCE)
    assert target_database.execute("SELECT id, more FROM t ORDER BY id") == [(1, "7"), (2, "7"), (5, "mine")]
