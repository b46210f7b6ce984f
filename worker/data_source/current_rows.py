"""The rows that a table has after its changes, out of a DataFrame of changes: ``pgsluice.current_rows``.

A *life* of a key is its time from an INSERT (or a READ, or an UPDATE that moves a row to it) to the DELETE, or the
UPDATE that moves the row away. The value of a column is the newest in a change of the life. If there is none, because a
large value was not sent with an UPDATE that moved the row, it is the value of the life before when it ended, at the key
where the row was. A row may have moved any number of times: each pass doubles how many moves back a life reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  Spark's own name for it
from pyspark.sql.types import StructType

from pgsluice.shared.errors import UsageError
from pgsluice.worker.data_source.typed_columns import KEY

_EMPTYING = ("TRUNCATE", "RESTART")
_BEGINNING = ("INSERT", "READ")
_TOLD = ("sequence", "number", "position", "position_text", "committed_at", "xid", "operation", "schema", "table")
"""The columns that a row has from its newest change."""


def current_rows(changes: DataFrame, key: Sequence[str] = ()) -> DataFrame:
    """Returns the rows that the table of ``changes`` has after the last of them: one row each, with the columns of
    ``changes`` but ``before``. ``after`` is the whole row; the other columns are those of the change that wrote the row
    last.

    ``changes`` were read with the option ``table``, now or earlier (for example from files, with their schema), in any
    order, the same change more than once or not. With the option ``with-copy`` they hold all rows of the table. Else
    only the changes are known: rows that existed before and never changed are missing, and ``unchanged`` names the
    columns of a row without a value in any change: large values, and values of a column that is younger than the row's
    newest change.

    ``key`` names the columns that identify a row, as old rows carry them; by default the table's key when ``changes``
    were read.

    Spark jobs run at once: ``changes`` are read, and kept on the disks of executors while the result is in use. An
    executor that is lost takes its part with it, and the next action fails: call again. No row comes to the driver.

    Raises UsageError when ``changes`` are a stream, or not of one table with typed columns, or the table has no key. An
    action fails if a change lacks the key of its row.
    """
    image = _image(changes)
    keys = _key(image, key)
    lives = _lives(_events(_counting(changes.localCheckpoint()), image, keys), image)
    return _rows(_filled(lives.localCheckpoint(), image), image)


def _image(changes: DataFrame) -> StructType:
    if changes.isStreaming:
        raise UsageError("these changes are a stream, which has no end", "read them with spark.read")
    named = {field.name: field.dataType for field in changes.schema.fields}
    image = named.get("after")
    if not isinstance(image, StructType) or not {*_TOLD, "before", "unchanged", "as_text"} <= named.keys():
        raise UsageError("these are not changes of one table with typed columns", "read them with the option 'table'")
    return image


def _key(image: StructType, given: Sequence[str]) -> list[str]:
    strange = [name for name in given if name not in image.names]
    if strange:
        raise UsageError(f"the table has no column '{strange[0]}'", f"its columns are {', '.join(image.names)}")
    places = {field.name: (field.metadata or {}).get(KEY, 0) for field in image.fields}
    keys = list(given) or sorted((name for name, place in places.items() if place), key=places.__getitem__)
    if not keys:
        raise UsageError("nothing identifies a row of this table", "give 'key': columns that together are unique and never NULL")
    return keys


def _counting(changes: DataFrame) -> DataFrame:
    """Returns the changes of rows that came after the table was last emptied. ``at`` is their order."""
    ordered = changes.withColumn("at", F.struct("position", "sequence", "number"))
    emptied = ordered.where(F.col("operation").isin(*_EMPTYING)).agg(F.max("at").alias("emptied_at"))
    of_rows = ordered.where(~F.col("operation").isin(*_EMPTYING)).crossJoin(F.broadcast(emptied))
    return of_rows.where("emptied_at IS NULL OR at > emptied_at").drop("emptied_at")


def _events(changes: DataFrame, image: StructType, keys: list[str]) -> DataFrame:
    """Returns the events of each key: a row comes, is written or goes. ``cells`` has a field for each column, NULL
    where the change lacks it. ``moved``: the row comes from another key; ``leaves``: it goes to another key."""
    new, old = _key_in("after", keys), _key_in("before", keys)
    is_deleted = F.col("operation") == "DELETE"
    is_moved = F.when(F.col("operation") == "UPDATE", F.col("before").isNotNull() & ~old.eqNullSafe(new)).otherwise(F.lit(False))
    told = F.struct(*_TOLD)
    cells = F.struct(*(_cell(name).alias(_field(place)) for place, name in enumerate(image.names)))
    goes = F.struct(
        old.alias("key"),
        F.lit(False).alias("begins"),
        F.lit(True).alias("goes"),
        is_moved.alias("leaves"),
        F.lit(None).cast("boolean").alias("moved"),
        F.when(F.lit(False), cells).alias("cells"),
    )
    comes = F.struct(
        new.alias("key"),
        (is_moved | F.col("operation").isin(*_BEGINNING)).alias("begins"),
        F.lit(False).alias("goes"),
        F.lit(False).alias("leaves"),
        is_moved.alias("moved"),
        cells.alias("cells"),
    )
    both = F.array_compact(F.array(F.when(is_deleted | is_moved, goes), F.when(~is_deleted, comes)))
    return changes.select("at", told.alias("told"), F.explode(both).alias("event")).select("at", "told", "event.*")


def _key_in(row: str, keys: list[str]) -> Column:
    parts = [F.struct(F.col(row)[name].alias("value"), _text(row, name).alias("text")) for name in keys]
    is_told = reduce(Column.__and__, (part["value"].isNotNull() | part["text"].isNotNull() for part in parts))
    sentence = F.concat(
        F.lit("the change at "), F.col("position_text"), F.lit(f" does not contain the key of its row ({', '.join(keys)})")
    )
    return F.when(is_told, F.struct(*(part.alias(_field(place)) for place, part in enumerate(parts)))).otherwise(
        F.raise_error(sentence)
    )


def _text(row: str, name: str) -> Column:
    return F.col("as_text")[row][F.lit(name)]


def _cell(name: str) -> Column:
    told = F.struct(F.col("after")[name].alias("value"), _text("after", name).alias("text"))
    return F.when(~F.array_contains("unchanged", name), told)


def _field(place: int) -> str:
    """Spark finds fields without regard to case, and PostgreSQL's columns may differ in nothing else."""
    return f"c{place}"


def _lives(events: DataFrame, image: StructType) -> DataFrame:
    """Returns the lives whose rows still exist, and the ones whose rows moved away. ``origin`` is the place of the
    change that moved the row to this key, ``end`` of the one that took it away."""
    of_key = Window.partitionBy("key")
    in_order = of_key.orderBy("at")
    is_repeated = F.lag("at").over(in_order).eqNullSafe(F.col("at"))
    numbered = events.withColumn("starts", (F.col("begins") & ~is_repeated).cast("int")).withColumn(
        "life", F.sum("starts").over(in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    )
    newest = numbered.withColumn("newest", F.max("life").over(of_key))
    cells = [F.col("cells")[_field(place)] for place in range(len(image.names))]
    lives = newest.groupBy("key", "life").agg(
        F.max(F.when(F.col("goes"), F.col("at"))).alias("end"),
        F.max("leaves").alias("leaves"),
        F.min(F.when(F.col("moved"), F.col("at"))).alias("origin"),
        F.first("newest").alias("newest"),
        F.max_by("told", "at").alias("told"),
        *(F.max_by(cell, F.when(cell.isNotNull(), F.col("at"))).alias(_field(place)) for place, cell in enumerate(cells)),
    )
    is_there = F.col("end").isNull() & (F.col("life") == F.col("newest"))
    return lives.withColumn("is_there", is_there).where("is_there OR leaves")


def _filled(lives: DataFrame, image: StructType) -> DataFrame:
    """Returns the lives whose rows exist, with the cells from lives before them."""
    fields = [_field(place) for place in range(len(image.names))]
    lacks = reduce(Column.__or__, (F.col(field).isNull() for field in fields), F.lit(False))
    lives = lives.withColumn("origin", F.when(lacks, F.col("origin")))
    while not lives.where("is_there AND origin IS NOT NULL").isEmpty():
        before = lives.where("leaves").select(
            F.col("end").alias("origin"),
            F.col("origin").alias("earlier"),
            *(F.col(field).alias(f"before_{field}") for field in fields),
        )
        joined = lives.join(before.dropDuplicates(["origin"]), "origin", "left")
        filled = joined.select(
            *("told", "is_there", "leaves", "end", "earlier"),
            *(F.coalesce(field, f"before_{field}").alias(field) for field in fields),
        )
        lives = filled.withColumn("origin", F.when(lacks, F.col("earlier"))).drop("earlier").localCheckpoint()
    return lives.where("is_there")


def _rows(lives: DataFrame, image: StructType) -> DataFrame:
    cells = {name: F.col(_field(place)) for place, name in enumerate(image.names)}
    after = F.struct(*(cell["value"].alias(name) for name, cell in cells.items())).cast(image)
    unchanged = F.array_compact(F.array(*(F.when(cell.isNull(), F.lit(name)) for name, cell in cells.items())))
    texts = F.array_compact(
        F.array(
            *(
                F.when(cell["text"].isNotNull(), F.struct(F.lit(name).alias("key"), cell["text"].alias("value")))
                for name, cell in cells.items()
            )
        )
    )
    as_text = F.struct(F.lit(None).cast("map<string,string>").alias("before"), F.map_from_entries(texts).alias("after"))
    return lives.select(
        "told.*", after.alias("after"), unchanged.alias("unchanged"), F.when(F.size(texts) > 0, as_text).alias("as_text")
    )
