from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgsluice.shared.wire.table import UNCHANGED, Value
from pgsluice.worker.sinks.postgres.fold.piece_text import encode_columns, encode_rows
from tests.servers import PostgresServer

VALUES = st.one_of(st.none(), st.text("ab\\\t\n\r.N\b é", max_size=6).map(str.encode))
ROWS = st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[VALUES] * width), min_size=1, max_size=8))


def test_separators_and_backslashes_inside_values_are_escaped() -> None:
    assert encode_rows([(b"a\tb", b"c\nd"), (b"e\\f", b"g\rh")]) == b"a\\tb\tc\\nd\ne\\\\f\tg\\rh\n"


def test_null_and_the_text_of_the_null_marker_differ() -> None:
    assert encode_columns([[None, b"\\N", b""]], 3) == b"\\N\n\\\\N\n\n"


def test_an_unchanged_value_travels_as_null() -> None:
    assert encode_rows([(b"1", UNCHANGED)]) == b"1\t\\N\n"


@given(ROWS)
def test_rows_and_columns_encode_alike(rows: list[tuple[Value, ...]]) -> None:
    assert encode_rows(rows) == encode_columns(list(zip(*rows, strict=True)), len(rows))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(rows=ROWS)
def test_postgres_reads_the_very_values_back(postgres: PostgresServer, rows: list[tuple[Value, ...]]) -> None:
    columns = ", ".join(f"c{i} text" for i in range(len(rows[0])))
    with postgres.connect() as connection:
        connection.execute(f"CREATE TEMPORARY TABLE copied (position serial, {columns})".encode())
        names = ", ".join(f"c{i}" for i in range(len(rows[0])))
        with connection.cursor() as cursor, cursor.copy(f"COPY copied ({names}) FROM STDIN".encode()) as copy:
            copy.write(encode_rows(rows))
        read = connection.execute(f"SELECT {names} FROM copied ORDER BY position".encode()).fetchall()
    expected = [tuple(value.decode() if isinstance(value, bytes) else None for value in row) for row in rows]
    assert read == expected
