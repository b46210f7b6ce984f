"""What SQL a step may be, what it makes of batches, and how it says what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pytest

from pgsluice.replicator.pipelines.steps import sql_engine
from pgsluice.replicator.pipelines.steps.sql_engine import SqlEngine, SqlFailedError
from pgsluice.replicator.pipelines.steps.sql_rules import FUNCTIONS, MOST_CHARACTERS, SqlRefusedError

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("v", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("n", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("is_new", pa.bool_()),
    ]
)


@pytest.fixture(scope="module")
def engine() -> Iterator[SqlEngine]:
    made = SqlEngine({"spark.driver.memory": "512m", "spark.master": "spark://elsewhere:7077"})
    yield made
    made.close()


def batch(*values: str | None) -> pa.RecordBatch:
    count = len(values)
    rows = {
        "id": range(1, count + 1),
        "v": values,
        "at": [1_700_000_000_000_000] * count,
        "n": [Decimal("1.50")] * count,
        "day": [1] * count,
        "is_new": [None] * count,
    }
    return pa.RecordBatch.from_pydict({name: list(each) for name, each in rows.items()}, schema=SCHEMA)


def given(engine: SqlEngine, text: str, *values: str | None) -> list[object]:
    """The second column of what comes out, or the first."""
    made = engine.compile(text, SCHEMA).apply(batch(*values))
    listed: list[object] = made.column(min(1, made.num_columns - 1)).to_pylist()
    return listed


def test_rows_come_out_in_their_order_as_far_as_they_are_wanted(engine: SqlEngine) -> None:
    many = [str(n) for n in range(20_000)]
    found = given(engine, "SELECT id, v || '!' AS v FROM rows WHERE id % 3 = 0 AND v <> '2'", *many)
    assert found == [f"{n}!" for n in range(20_000) if n % 3 == 2 and n != 2]


def test_types_are_known_before_any_row_and_are_those_of_the_rows(engine: SqlEngine) -> None:
    compiled = engine.compile(
        "SELECT *, n * 2 AS doubled, at + INTERVAL 1 DAY AS later, cast(at AS date) AS d, length(v) AS size,"
        " cast(v AS binary) AS raw, NOT is_new AS is_old FROM rows",
        SCHEMA,
    )
    assert [str(each) for each in compiled.schema.types[len(SCHEMA) :]] == [
        "decimal128(12, 2)",
        "timestamp[us, tz=UTC]",
        "date32[day]",
        "int32",
        "binary",
        "bool",
    ]
    assert compiled.schema.types[: len(SCHEMA)] == SCHEMA.types
    for rows in (batch(), batch("a"), batch("a", None)):
        assert compiled.apply(rows).schema == compiled.schema
        assert compiled.apply(rows).num_rows == rows.num_rows


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("CASE WHEN v LIKE 'a%' THEN 1 ELSE 2 END", 1),
        ("id + 1 BETWEEN length(v) AND 5", True),
        ("nullif(v, 'ab')", None),
        ("try_cast(v AS int)", None),
        ("split_part('x,y', ',', 2)", "y"),
        ("extract(YEAR FROM at)", 2023),
        ("regexp_replace(v, 'b', 'c')", "ac"),
        ("'${env:HOME}${system:user.home}'", "${env:HOME}${system:user.home}"),
        ("v = 'now'", False),
        ("length(cast(v AS char(1000)))", 2),
        ("TIMESTAMP '2020-01-01 00:00:00' < at", True),
        ("rows.id <=> n OR is_new IS NULL", True),
        ("timestampdiff(HOUR, at, at + INTERVAL 1 DAY)", 24),
    ],
)
def test_what_a_row_gives_by_itself_is_evaluated(engine: SqlEngine, expression: str, value: object) -> None:
    assert given(engine, f"SELECT id, {expression} AS x FROM rows", "ab") == [value]


def test_a_subquery_after_from_and_a_list_of_columns_to_leave_out_are_ways_to_write_the_same(engine: SqlEngine) -> None:
    text = "SELECT * EXCEPT (at, n, day) FROM (SELECT * EXCEPT (v), upper(v) AS v FROM rows r WHERE r.id < 3) WHERE v > 'A';"
    assert engine.compile(text, SCHEMA).apply(batch("a", "b", "c")).to_pylist() == [{"id": 2, "is_new": None, "v": "B"}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT id, v FROM other", "reads 'other', and may read nothing but rows"),
        ("SELECT * FROM parquet.`/etc/passwd`", "reads 'parquet./etc/passwd'"),
        ("SELECT * FROM default.rows", "reads 'default.rows'"),
        ("SELECT * FROM rows WITH (path = '/etc/passwd')", "reads 'rows', and may read nothing but rows"),
        ("SELECT * FROM read_files('/etc')", "UnresolvedTableValuedFunction"),
        ("SELECT * FROM range(9)", "UnresolvedTableValuedFunction"),
        ("SELECT * FROM rows TIMESTAMP AS OF '2020-01-01'", "RelationTimeTravel"),
        ("SELECT * FROM STREAM rows", "StreamingRelation|reads 'rows'"),
        ("SELECT 1", "reads no rows"),
        ("VALUES (1)", "is no plain SELECT"),
        ("SELECT a.id FROM rows a JOIN rows b ON a.id = b.id", "Join"),
        ("SELECT * FROM rows UNION ALL SELECT * FROM rows", "Union"),
        ("SELECT id FROM rows WHERE id IN (SELECT id FROM rows)", "InSubquery"),
        ("SELECT (SELECT 1) FROM rows", "ScalarSubquery"),
        ("SELECT id FROM rows WHERE EXISTS (SELECT 1 FROM rows)", "Exists"),
        ("WITH x AS (SELECT 1) SELECT * FROM rows", "has a WITH"),
        ("SELECT count(*) FROM rows", "calls count"),
        ("SELECT id, max(v) FROM rows GROUP BY id", "groups rows"),
        ("SELECT id FROM rows HAVING id > 1", "Having"),
        ("SELECT DISTINCT id FROM rows", "compares rows"),
        ("SELECT row_number() OVER (ORDER BY id) FROM rows", "reads other rows"),
        ("SELECT id FROM rows QUALIFY id = 1", "Qualify"),
        ("SELECT id FROM rows ORDER BY id", "sorts rows"),
        ("SELECT id FROM rows LIMIT 5", "counts rows"),
        ("SELECT id FROM rows TABLESAMPLE (10 PERCENT)", "Sample"),
        ("SELECT explode(array(1)) FROM rows", "calls explode"),
        ("SELECT id FROM rows LATERAL VIEW explode(array(1)) t AS c", "makes several rows of one"),
        ("SELECT TRANSFORM (id) USING 'cat' FROM rows", "ScriptTransformation"),
        ("SELECT reflect('java.lang.System', 'exit', 1) FROM rows", "calls reflect"),
        ("SELECT java_method('java.lang.System', 'getenv', 'HOME') FROM rows", "calls java_method"),
        ("SELECT try_reflect('java.lang.System', 'getenv', 'HOME') FROM rows", "calls try_reflect"),
        ("SELECT system.builtin.upper(v) FROM rows", "calls system.builtin.upper"),
        ("SELECT IDENTIFIER('uuid')() FROM rows", "Identifier"),
        ("SELECT rand() FROM rows", "calls rand"),
        ("SELECT uuid() FROM rows", "calls uuid"),
        ("SELECT now() FROM rows", "calls now"),
        ("SELECT unix_timestamp() FROM rows", "calls unix_timestamp"),
        ("SELECT current_timestamp FROM rows", "names current_timestamp, which is no column"),
        ("SELECT Current_Date FROM rows", "names Current_Date, which is no column"),
        ("SELECT user FROM rows", "names user, which is no column"),
        ("SELECT TIMESTAMP 'now' FROM rows", "not written in digits"),
        ("SELECT DATE 'to\\u0064ay' FROM rows", "not written in digits"),
        ('SELECT DATE /* 1 */ " tomorrow" FROM rows', "not written in digits"),
        ("SELECT monotonically_increasing_id() FROM rows", "calls monotonically_increasing_id"),
        ("SELECT input_file_name() FROM rows", "calls input_file_name"),
        ("SELECT repeat(v, 1000000000) FROM rows", "calls repeat"),
        ("SELECT id, replace(v, 'a', v) FROM rows", r"has replace insert .* no bound \(line 1, column 12\)"),
        ("SELECT id, replace(v, 'a', concat('b', v)) FROM rows", "has replace insert"),
        ("SELECT id, regexp_replace(v, 'a', v) FROM rows", "has regexp_replace insert"),
        ("SELECT id, regexp_replace(v, '(?=(.*))', '$1') FROM rows", "groups of a pattern with lookaround"),
        ("SELECT id, regexp_replace(v, concat('(?=(', '.*))'), '$1') FROM rows", "groups of a pattern with lookaround"),
        (f"SELECT id, {'hex(' * 13}v{')' * 13} FROM rows", "more than 4096 times as large as its row"),
        (f"SELECT id FROM rows WHERE {'hex(' * 13}v{')' * 13} = 'a'", "more than 4096 times as large as its row"),
        (f"SELECT id, replace(v, 'a', '{'b' * 5000}') FROM rows", "more than 4096 times as large as its row"),
        (f"SELECT id, {' || '.join(['v'] * 5000)[:7001]} FROM rows", "expressions in each other|more than 4096"),
        (f"{'SELECT v || v || v || v AS v FROM (' * 7}SELECT v FROM rows{')' * 7}", "more than 4096 times as large as its row"),
        ("SELECT :x FROM rows", "NamedParameter"),
        ("SELECT upper(DISTINCT v) FROM rows", "with a clause like DISTINCT or FILTER"),
        ("SELECT upper(v) FILTER (WHERE id > 1) FROM rows", "with a clause like DISTINCT or FILTER"),
        ("SELECT /*+ BROADCAST(rows) */ id FROM rows", "Hint"),
        ("SET spark.sql.ansi.enabled = false", "is not valid"),
        ("CREATE TEMPORARY FUNCTION f AS 'a.B'", "is not valid|is no plain SELECT"),
        ("DROP TABLE rows", "is no plain SELECT"),
        ("USE CATALOG other", "is not valid|is no plain SELECT"),
        ("INSERT INTO rows SELECT * FROM rows", "is no plain SELECT"),
        ("BEGIN SELECT id FROM rows; END", "is no plain SELECT"),
        ("SELECT id FROM rows; SELECT id FROM rows", "is not valid"),
        ("SELECT id FORM rows", r"Syntax error at or near.*line 1, pos"),
        ("SELECT id,\n  uper(v) FROM rows", r"calls uper, .* \(line 2, column 3\)"),
        ("SELECT tilte FROM rows", r"`tilte` cannot be resolved.*line 1 pos 7"),
        ("SELECT ID FROM rows", "`ID` cannot be resolved"),
        ("SELECT id + day FROM rows", "DATATYPE_MISMATCH"),
        ("SELECT '" + "x" * MOST_CHARACTERS + "' FROM rows", f"{MOST_CHARACTERS} is the most"),
        ("SELECT " + "(" * 999 + "id" + ")" * 999 + " FROM rows", "999 parentheses"),
        ("SELECT " + "- " * 999 + "id FROM rows", "expressions in each other"),
        ("", "is not valid"),
    ],
)
def test_anything_else_is_refused_with_the_reason(engine: SqlEngine, text: str, said: str) -> None:
    with pytest.raises(SqlRefusedError, match=said):
        engine.compile(text, SCHEMA)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT rand() AS x FROM rows", "gives something else the next time"),
        ("SELECT id FROM rows WHERE uuid() < 'a'", "gives something else the next time"),
        ("SELECT count(*) FROM rows", "Aggregate"),
        ("SELECT id FROM rows LIMIT 1", "Limit"),
        ("SELECT a.id FROM rows a JOIN rows b", "Join"),
        ("SELECT id FROM rows WHERE id IN (SELECT 1)", "subquery"),
        ("SELECT * FROM text.`/etc/passwd`", "is not valid"),
        ("SELECT 1 AS x", "OneRowRelation"),
        ("DROP VIEW rows", "not allowed"),
    ],
)
def test_a_statement_that_came_past_the_rules_is_not_evaluated_either(
    engine: SqlEngine, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setattr(sql_engine, "check_statement", lambda root: None)
    with pytest.raises(SqlRefusedError, match=said):
        engine.compile(text, SCHEMA)


def test_text_becomes_no_time_of_the_clock(engine: SqlEngine) -> None:
    for expression in ("cast('now' AS timestamp)", "cast(concat('to', 'day') AS date)", "to_date(v)", "at < 'now'"):
        with pytest.raises(SqlFailedError):
            given(engine, f"SELECT id, {expression} AS x FROM rows", "today")


@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        ("cast(v AS int)", "CAST_INVALID_INPUT"),
        ("id % (id - 1)", "REMAINDER_BY_ZERO"),
        ("9223372036854775807 + id", "ARITHMETIC_OVERFLOW"),
        ("cast(n * 1000000 AS smallint)", "CAST_OVERFLOW"),
        ("cast(unhex('FF') AS string)", "INVALID_UTF8_STRING"),
    ],
)
def test_an_error_on_a_row_is_told_by_spark_s_name_of_it(engine: SqlEngine, expression: str, condition: str) -> None:
    with pytest.raises(SqlFailedError, match=f"^{condition}$"):
        given(engine, f"SELECT id, {expression} AS x FROM rows", "secret")
    assert given(engine, f"SELECT id, {expression} AS x FROM rows WHERE id > 1", "secret") == []


ESCAPED = "v"
for character, entity in {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\\'": "&apos;"}.items():
    ESCAPED = f"replace({ESCAPED}, '{character}', '{entity}')"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (ESCAPED, "a&lt;b&gt; &amp; &apos;c&apos;"),
        ("replace('Dear {name}', '{name}', v)", "Dear a<b> & 'c'"),
        ("concat_ws('-', v, v, v, v, v, v, v, v, id)", "-".join(["a<b> & 'c'"] * 8 + ["1"])),
        ("regexp_replace(v, '([a-z])', '$1$1')", "aa<bb> & 'cc'"),
        ("replace(v, '<b>')", "a & 'c'"),
    ],
)
def test_what_grows_a_little_is_evaluated(engine: SqlEngine, expression: str, value: object) -> None:
    assert given(engine, f"SELECT id, {expression} AS x FROM rows", "a<b> & 'c'") == [value]


@pytest.mark.parametrize(
    ("expression", "count"),
    [("replace(v, 'a', '" + "b" * 1000 + "')", 100), ("hex(hex(hex(hex(hex(hex(v))))))", 10_000), ("repeated", 1_000_000)],
)
def test_a_row_becomes_sixteen_times_its_size_and_64_kib_at_most(engine: SqlEngine, expression: str, count: int) -> None:
    """The last one is more than the JVM has memory for."""
    expression = expression.replace("repeated", "replace(v, 'a', '" + "b" * 4000 + "')")
    text = f"SELECT id, {expression} AS x FROM rows"
    assert len(str(given(engine, text, "a")[0])) < 5000
    with pytest.raises(SqlFailedError, match=r"^(ROW_TOO_LARGE|OutOfMemoryError)$"):
        given(engine, text, "a" * count)
    assert given(engine, "SELECT id, upper(v) AS x FROM rows", "a") == ["A"]


def refused(engine: SqlEngine, text: str) -> str:
    """Why, "" where it is not."""
    try:
        engine.compile(text, SCHEMA)
    except SqlRefusedError as refusal:
        return refusal.reason
    return ""


@pytest.mark.long
def test_every_function_that_is_allowed_exists(engine: SqlEngine) -> None:
    names = " ".join(FUNCTIONS.values()).split()
    assert [name for name in names if "UNRESOLVED_ROUTINE" in refused(engine, f"SELECT id, {name}(v) AS x FROM rows")] == []
