"""Postgres's columns as Spark's: which type a column gets, and its text as Arrow arrays of that type.

boolean → boolean              smallint, integer, bigint, oid → smallint, int, bigint, bigint
real, double precision → float, double
numeric(p, s) → decimal(p, s); numeric without precision, or above 38 digits → string, every digit of it
timestamp with time zone → timestamp; timestamp without → timestamp_ntz; date → date
bytea → binary                 arrays of all these → array, of one dimension
everything else → string, the server's text
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from pgsluice.rules.value_text import array_elements
from pgsluice.shared.rows.arrow_text import arrow_values, numeric_size
from pgsluice.shared.wire.table import Column, Table

_SCALARS: dict[int, spark.DataType] = {
    16: spark.BooleanType(),
    17: spark.BinaryType(),
    20: spark.LongType(),
    21: spark.ShortType(),
    23: spark.IntegerType(),
    26: spark.LongType(),  # oid: unsigned
    700: spark.FloatType(),
    701: spark.DoubleType(),
    1082: spark.DateType(),
    1114: spark.TimestampNTZType(),
    1184: spark.TimestampType(),
}
_ELEMENTS = {
    1000: 16,
    1001: 17,
    1005: 21,
    1007: 23,
    1016: 20,
    1021: 700,
    1022: 701,
    1028: 26,
    1115: 1114,
    1182: 1082,
    1185: 1184,
    1231: 1700,
}
"""Type OID of the elements, by the type OID of the array (pg_type.dat); elements of other arrays are texts."""
_BOX_ARRAY = 1020  # the one whose elements are apart by semicolons


NUMBER = "number"
"""Key in the metadata of a field: the number of its column, by which a reader finds it in every version of its table; 0 where
the number is not known."""
KEY = "key"
"""Key in the metadata of a field: the place of its column in the table's key, from 1; 0 outside it."""


def row_type(table: Table) -> spark.StructType:
    """Returns the table's columns in order; each may be NULL, for what was not sent is."""
    keyed = {index: place for place, index in enumerate(table.key, 1)}
    return spark.StructType(
        [
            spark.StructField(column.name, spark_type(column), metadata={NUMBER: column.number, KEY: keyed.get(index, 0)})
            for index, column in enumerate(table.columns)
        ]
    )


def spark_type(column: Column) -> spark.DataType:
    if column.type_name.endswith("[]") and column.type_oid != _BOX_ARRAY:
        return spark.ArrayType(_scalar_type(_ELEMENTS.get(column.type_oid, 0), column.typmod))
    return _scalar_type(column.type_oid, column.typmod)


def arrow_type(column: Column) -> pa.DataType:
    """Returns Arrow's form of the type."""
    return to_arrow_type(spark_type(column), timezone="UTC")


def _scalar_type(oid: int, typmod: int) -> spark.DataType:
    size = numeric_size(oid, typmod)
    if size:
        return spark.DecimalType(*size)
    return _SCALARS.get(oid, spark.StringType())


def fitting_column(values: Sequence[bytes | None], kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Returns a column of texts as the server writes them, in UTC, and the places of values that the type cannot hold,
    which are NULL in the column: NaN in a decimal, infinity and the years before 1 and after 9999 in a time, an array
    of several dimensions."""
    try:
        return arrow_column(values, kind), []
    except _MISFITS:
        misfits = [place for place, value in enumerate(values) if not _fits(value, kind)]
        kept: list[bytes | None] = list(values)
        for place in misfits:
            kept[place] = None
        return arrow_column(kept, kind), misfits


_MISFITS = (ValueError, KeyError, NotImplementedError)


def _fits(value: bytes | None, kind: pa.DataType) -> bool:
    try:
        arrow_column([value], kind)
    except _MISFITS:
        return False
    return True


def arrow_column(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Raises ValueError, KeyError or NotImplementedError for a text that the type does not have."""
    if pa.types.is_list(kind):
        return _list_column(values, kind)
    return arrow_values(values, kind)


def _list_column(values: Sequence[bytes | None], kind: pa.ListType) -> pa.Array:
    elements: list[bytes | None] = []
    offsets: list[int | None] = []
    for text in values:
        offsets.append(None if text is None else len(elements))
        if text is not None:
            if b"{{" in text[: text.find(b"{") + 2]:
                raise ValueError("has more than one dimension")
            elements += array_elements(text)
    offsets.append(len(elements))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), arrow_column(elements, kind.value_type), type=kind)
