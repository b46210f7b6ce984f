"""Spark SQL over Arrow batches, without Spark's jobs: a JVM of this process that parses, types and evaluates statements.

Spark parses a statement and determines its columns; its generated code is then called for each batch, here and not in a
task, where no SQL can be planned. So a batch costs no job, and rows come out in the order in which they went in.
``sql_rules`` decides which statements are allowed; nothing is handed to Spark's analysis before it was checked against
these.

Statements are parsed by Catalyst's own parser, which knows no commands and puts in no variables (``${env:…}``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark.sql.pandas.types import from_arrow_schema

from pgsluice.replicator.pipelines.steps.sql_growth import check_growth
from pgsluice.replicator.pipelines.steps.sql_rules import (
    MOST_DEPTH,
    RELATION,
    SqlNode,
    SqlRefusedError,
    check_names,
    check_statement,
    check_text,
)
from pgsluice.replicator.snapshot.spark_job import DAEMON_MODULE
from pgsluice.shared import telemetry
from pgsluice.shared.rows.growth import ALLOWANCE_BYTES, MOST_GROWTH
from pgsluice.shared.spark.failure import jvm_ended
from pgsluice.shared.spark.session import JAVA_OPTIONS_KEY, Spark

_SETTINGS = {
    "spark.master": "local[1]",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings of the session; a configuration's Spark settings other than memory are for tasks."""
_KEPT = ("spark.driver.memory", JAVA_OPTIONS_KEY)

_CATALYST = "org.apache.spark.sql.catalyst."
_ARROW_CONVERTERS = "org.apache.spark.sql.execution.arrow.ArrowConverters"
_UNSAFE_PROJECTION = _CATALYST + "expressions.UnsafeProjection"
_REPLACING = (_CATALYST + "optimizer.ReplaceExpressions", _CATALYST + "optimizer.RewriteWithExpression")
"""Rules without which some functions cannot be evaluated. Of the optimizer no other is wanted: it takes 'now' for a time."""
_PASSED_THROUGH = ("SubqueryAlias", "View")
_MOMENTS = ("date", "timestamp", "timestamp_ntz", "timestamp_ltz", "time", "time(6)")
_WITHOUT_LIMIT = 1 << 40
_TOO_LARGE = "ROW_TOO_LARGE"
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)

_one_at_a_time = threading.Lock()
"""PySpark has one context in a process."""

log = telemetry.logger(__name__)


class SqlFailedError(Exception):
    """A batch has a row on which the statement fails. ``condition`` is Spark's name of the error, and holds no value of a row."""

    def __init__(self, condition: str) -> None:
        super().__init__(condition)
        self.condition = condition


@contextmanager
def _alive(spark: Spark) -> Iterator[None]:
    """Raises failures inside the block as TransientError if the JVM is gone. For an error in a statement or a row there
    is no wait for that: the JVM reported it."""
    said: Exception | None = None
    with spark.while_it_lives():
        try:
            yield
        except (SqlRefusedError, SqlFailedError) as error:
            said = error
    if said is not None:
        raise said


class SqlEngine:
    """Starts when it is first asked, and blocks then for the seconds that a JVM takes. ``close`` ends it, from any thread; an
    engine of another thread waits until then."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = {key: value for key, value in settings.items() if key in _KEPT} | _SETTINGS
        self._spark: Spark
        self._changing = threading.Lock()
        self._has_context = self._is_closed = False

    def check(self, text: str) -> None:
        """Raises SqlRefusedError, with the place, for a statement that no rows could be given to; TransientError."""
        self._start()
        with _alive(self._spark):
            self._parsed(text)

    def compile(self, text: str, schema: pa.Schema) -> CompiledSql:
        """Returns the statement for batches of ``schema``. Raises SqlRefusedError; TransientError."""
        self._start()
        with _alive(self._spark):
            # Before anything is parsed: the parser asks it whether casts fail.
            session = self._jvm.org.apache.spark.sql.classic.SparkSession.builder().getOrCreate()
            plan, root = self._parsed(text)
            check_names(root, frozenset(schema.names))
            try:
                return self._compiled(session, plan, schema)
            except Py4JJavaError as error:
                raise SqlRefusedError(_said(error)) from None

    def close(self) -> None:
        with self._changing:
            self._is_closed = True
            if self._has_context:
                self._spark.close()
                _one_at_a_time.release()
                self._has_context = False

    def _start(self) -> None:
        """Starts the JVM. After a failed start, it can be started again."""
        with self._changing:
            if self._is_closed:
                raise jvm_ended("it was closed")
            if self._has_context:
                return
            _one_at_a_time.acquire()
            self._spark = Spark("pgsluice steps", self._settings, DAEMON_MODULE)
            log.info("starting Spark for SQL steps")
            try:
                self._spark.start()
            except BaseException:
                self._spark.close()
                _one_at_a_time.release()
                raise
            self._has_context = True

    @property
    def _jvm(self) -> Any:
        return self._spark.context._jvm

    def _parsed(self, text: str) -> tuple[Any, SqlNode]:
        check_text(text)
        try:
            plan = self._jvm.org.apache.spark.sql.catalyst.parser.CatalystSqlParser().parsePlan(text)
        except Py4JJavaError as error:
            raise SqlRefusedError(_said(error)) from None
        root = _node(plan, text, is_plan=True)
        check_statement(root)
        check_growth(root)
        return plan, root

    def _compiled(self, session: Any, parsed: Any, schema: pa.Schema) -> CompiledSql:
        jvm = self._jvm
        types = from_arrow_schema(schema, prefer_timestamp_ntz=True)
        described = jvm.org.apache.spark.sql.types.DataType.fromJson(types.json())
        no_rows = session.createDataFrame(self._spark.context._jsc.emptyRDD(), described)
        no_rows.createOrReplaceTempView(RELATION)
        mode = jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
        execution = session.sessionState().executePlan(parsed, mode)
        execution.assertAnalyzed()
        analyzed = execution.analyzed()
        converters = self._module(_ARROW_CONVERTERS)
        nothing = jvm.scala.jdk.javaapi.CollectionConverters.asScala(jvm.java.util.ArrayList().iterator())
        given = _table(converters, nothing, analyzed.schema()).schema
        for rule in _REPLACING:
            analyzed = self._module(rule).apply(analyzed)
        passes = tuple(self._passes(analyzed))[::-1]
        return CompiledSql(self._spark, converters, passes, pa.schema([(each.name, each.type) for each in given]))

    def _passes(self, plan: Any) -> Iterator[_Pass]:
        """Yields the passes from the last to the first."""
        jvm, projection = self._jvm, self._module(_UNSAFE_PROJECTION)
        while (kind := _kind(plan)) != "LogicalRDD":
            _check_again(plan)
            if kind == "Project":
                yield _Pass(projection.create(plan.projectList(), plan.child().output()), plan.schema(), is_filter=False)
            elif kind == "Filter":
                condition = jvm.PythonUtils.toSeq([plan.condition()])
                keeps = jvm.org.apache.spark.sql.types.StructType().add("keeps", "boolean")
                yield _Pass(projection.create(condition, plan.child().output()), keeps, is_filter=True)
            elif kind not in _PASSED_THROUGH:
                raise SqlRefusedError(f"has a part that is not allowed here: {kind}")
            plan = plan.child()

    def _module(self, name: str) -> Any:
        """Returns a Scala object."""
        return self._jvm.java.lang.Class.forName(f"{name}$").getField("MODULE$").get(None)


@dataclass(frozen=True, slots=True)
class _Pass:
    """``projection`` makes of each row one of ``schema``; of a filter, whether the row stays."""

    projection: Any
    schema: Any
    is_filter: bool


@dataclass(frozen=True, slots=True)
class CompiledSql:
    """A statement compiled by one engine, for a single thread at a time. ``schema`` are the resulting columns."""

    spark: Spark
    converters: Any
    passes: tuple[_Pass, ...]
    schema: pa.Schema

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns as many rows as went in or fewer, in their order. Raises SqlFailedError, TransientError."""
        if not batch.num_rows:
            return pa.RecordBatch.from_arrays([pa.array([], each.type) for each in self.schema], schema=self.schema)
        with _alive(self.spark):
            try:
                for each in self.passes:
                    made = self._passed(each, batch)
                    _check_sizes(batch, made)
                    batch = batch.filter(made.column(0)) if each.is_filter else made
                    if not batch.num_rows:
                        return self.apply(batch)
            except Py4JJavaError as error:
                raise SqlFailedError(self._condition(error)) from None
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid:
            raise SqlFailedError("INVALID_UTF8_STRING") from None
        return batch.cast(self.schema)

    def _passed(self, each: _Pass, batch: pa.RecordBatch) -> pa.RecordBatch:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        rows = self.converters.fromIPCStream(sink.getvalue().to_pybytes())._1()
        try:
            made = _table(self.converters, rows.map(each.projection), each.schema).combine_chunks().to_batches()
        finally:
            rows.close()  # or the JVM keeps the batch where its limit does not hold
        if not made:  # where the JVM has no memory to send it
            raise SqlFailedError(_TOO_LARGE)
        return made[0]

    def _condition(self, error: Py4JJavaError) -> str:
        cause = error.java_exception
        is_of_spark = is_instance_of(self.spark.context._gateway, cause, "org.apache.spark.SparkThrowable")
        return str(cause.getCondition() if is_of_spark else cause.getClass().getSimpleName())


def _table(converters: Any, rows: Any, schema: Any) -> pa.Table:
    """Returns all rows of an iterator in the JVM."""
    zone = _SETTINGS["spark.sql.session.timeZone"]
    batches = converters.toBatchWithSchemaIterator(rows, schema, _WITHOUT_LIMIT, _WITHOUT_LIMIT, zone, True, False)
    try:
        return pa.ipc.open_stream(bytes(batches.next())).read_all()
    finally:
        batches.close()


def _check_sizes(given: pa.RecordBatch, made: pa.RecordBatch) -> None:
    """Raises SqlFailedError when a row has become too large."""
    sizes = _row_sizes(made)
    if sizes is None or pc.max(sizes).as_py() <= ALLOWANCE_BYTES:
        return
    before = _row_sizes(given)
    most = ALLOWANCE_BYTES if before is None else pc.add(pc.multiply(before, MOST_GROWTH), ALLOWANCE_BYTES)
    if pc.any(pc.greater(sizes, most)).as_py():
        raise SqlFailedError(_TOO_LARGE)


def _row_sizes(batch: pa.RecordBatch) -> pa.Array | None:
    """Returns the number of bytes of the texts in each row, None where there are no texts."""
    total = None
    for column in batch.columns:
        if any(is_kind(column.type) for is_kind in _TEXTS):
            size = pc.fill_null(pc.cast(pc.binary_length(column), pa.int64()), 0)
            total = size if total is None else pc.add(total, size)
    return total


def _check_again(plan: Any) -> None:
    """Checks again, as defence in depth: the parser already rejects functions that are not allow-listed."""
    if not all(expression.deterministic() for expression in _sequence(plan.expressions())):
        raise SqlRefusedError("gives something else the next time")
    if not plan.subqueries().isEmpty():
        raise SqlRefusedError("has a subquery in an expression")


def _node(tree: Any, text: str, *, is_plan: bool, depth: int = 1) -> SqlNode:
    """Converts the parser's tree; parts of a node beside its children are read where they could hold something."""
    if depth > MOST_DEPTH:
        raise SqlRefusedError(f"has more than {MOST_DEPTH} expressions in each other")
    kind, origin, below = _kind(tree), tree.origin(), depth + 1
    children = [_node(child, text, is_plan=is_plan, depth=below) for child in _sequence(tree.children())]
    if is_plan:
        children += [_node(expression, text, is_plan=False, depth=below) for expression in _sequence(tree.expressions())]
    name: Sequence[str] = ()
    is_plain, text_of_moment, written = True, "", ""
    match kind:
        case "UnresolvedRelation":
            name = _sequence(tree.multipartIdentifier())
            is_plain = not tree.isStreaming() and tree.options().isEmpty()
        case "UnresolvedFunction":
            name = _sequence(tree.nameParts())
            is_plain = not (tree.isDistinct() or tree.filter().isDefined() or _sequence(tree.orderingWithinGroup()))
        case "UnresolvedAttribute":
            name = _sequence(tree.nameParts())
        case "UnresolvedStarExceptOrReplace":
            is_plain = tree.replacements().isEmpty()
        case "Literal" if tree.dataType().typeName() in _MOMENTS:
            text_of_moment = text[_number(origin.startIndex(), 0) : _number(origin.stopIndex(), -1) + 1]
        case "Literal" if tree.dataType().typeName() == "string":
            written = str(tree.value())
    line, column = _number(origin.line(), 0), _number(origin.startPosition(), -1) + 1
    return SqlNode(kind, is_plan, tuple(name), is_plain, text_of_moment, written, line, column, tuple(children))


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName() or node.getClass().getName())


def _sequence(given: Any) -> list[Any]:
    return [given.apply(place) for place in range(given.size())]


def _number(option: Any, default: int) -> int:
    return int(option.get()) if option.isDefined() else default


def _said(error: Py4JJavaError) -> str:
    """Returns Spark's sentence on a statement, and its place. It knows no row."""
    cause = error.java_exception
    lines = str(cause.getMessage() or "").strip().splitlines()
    first = (lines or [""])[0].removesuffix(";") or str(cause.getClass().getSimpleName())
    return f"is not valid: {first}"
