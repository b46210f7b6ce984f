"""The operators that order the rows of a query: from each type's own operator class, by their schemas and names. Pure.

The server resolves a bare ``<`` in the search path. When the extension of a type is in another schema, it takes another
operator: it compares citext as text, for example, while ORDER BY uses the type's own operator. Then ranges of keys
would hold other rows than ORDER BY cut.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

OPERATORS: LiteralString = """
    WITH RECURSIVE base (place, type_oid) AS (
        SELECT place, type_oid FROM unnest(%s::oid[]) WITH ORDINALITY AS given (type_oid, place)
        UNION ALL
        SELECT place, typbasetype FROM base JOIN pg_catalog.pg_type ON pg_type.oid = type_oid WHERE typtype = 'd'
    ), class AS (
        SELECT DISTINCT ON (place) place, opcfamily, opcintype
          FROM base
          JOIN pg_catalog.pg_opclass ON opcdefault AND opcmethod = (SELECT oid FROM pg_catalog.pg_am WHERE amname = 'btree')
          JOIN pg_catalog.pg_type ON pg_type.oid = opcintype
         WHERE opcintype = type_oid
            OR EXISTS (SELECT FROM pg_catalog.pg_cast
                        WHERE castsource = type_oid AND casttarget = opcintype AND castmethod = 'b' AND castcontext = 'i')
         ORDER BY place, opcintype = type_oid DESC, typispreferred DESC
    )
    SELECT place, amopstrategy, nspname::text, oprname::text
      FROM class
      JOIN pg_catalog.pg_amop
        ON amopfamily = opcfamily AND amoplefttype = opcintype AND amoprighttype = opcintype AND amoppurpose = 's'
      JOIN pg_catalog.pg_operator ON pg_operator.oid = amopopr
      JOIN pg_catalog.pg_namespace ON pg_namespace.oid = oprnamespace
"""
"""Returns for types by their OIDs: place from 1 on, strategy, schema, name. Returns nothing for arrays, enums, ranges and rows:
the operators of pg_catalog compare these by the classes of their elements."""


class KeyComparison(enum.IntEnum):
    """The strategies of a B-tree (manual: "Index Method Strategies")."""

    LESS = 1
    LESS_OR_EQUAL = 2
    EQUAL = 3
    GREATER_OR_EQUAL = 4
    GREATER = 5

    @property
    def strict(self) -> KeyComparison:
        """The comparison without equality."""
        return {KeyComparison.LESS_OR_EQUAL: KeyComparison.LESS, KeyComparison.GREATER_OR_EQUAL: KeyComparison.GREATER}.get(
            self, self
        )

    @property
    def weak(self) -> KeyComparison:
        """The comparison that includes equality."""
        return {KeyComparison.LESS: KeyComparison.LESS_OR_EQUAL, KeyComparison.GREATER: KeyComparison.GREATER_OR_EQUAL}.get(
            self, self
        )


_BUILT_IN = {
    KeyComparison.LESS: "<",
    KeyComparison.LESS_OR_EQUAL: "<=",
    KeyComparison.EQUAL: "=",
    KeyComparison.GREATER_OR_EQUAL: ">=",
    KeyComparison.GREATER: ">",
}

Operator = tuple[str, str]
"""Schema and name."""


@dataclass(frozen=True, slots=True)
class KeyOperators:
    """The operators of a query's columns, by the names of the columns."""

    by_column: Mapping[str, Mapping[int, Operator]]

    @classmethod
    def of(cls, columns: Sequence[str], rows: Sequence[tuple[int, int, str, str]]) -> KeyOperators:
        """``rows`` are what the server answers to ``OPERATORS`` for the types of the columns."""
        found: dict[str, dict[int, Operator]] = {name: {} for name in columns}
        for place, strategy, schema, name in rows:
            found[columns[place - 1]][strategy] = schema, name
        return cls(found)

    def compared(self, column: str, left: sql.Composable, comparison: KeyComparison, right: sql.Composable) -> sql.Composable:
        """Returns the comparison of two values of the column's type."""
        return sql.SQL("{} {} {}").format(left, _spelled(self._operator(column, comparison)), right)

    def rows_compared(
        self, columns: Sequence[str], left: Sequence[sql.Composable], comparison: KeyComparison, right: Sequence[sql.Composable]
    ) -> sql.Composable:
        """Returns the comparison of two rows of these columns, in their order. Where all operators are the same, it is one
        comparison of rows, which an index on the columns serves as a whole."""
        operators = {self._operator(column, comparison) for column in columns}
        if len(operators) == 1:
            comma = sql.SQL(", ")
            rows = [sql.SQL("ROW({})").format(comma.join(values)) for values in (left, right)]
            return sql.SQL("{} {} {}").format(rows[0], _spelled(operators.pop()), rows[1])
        terms = list(zip(columns, left, right, strict=True))
        if comparison is KeyComparison.EQUAL:
            return sql.SQL(" AND ").join(self.compared(column, a, comparison, b) for column, a, b in terms)
        column, a, b = terms[-1]
        compared = self.compared(column, a, comparison, b)
        for column, a, b in reversed(terms[:-1]):
            compared = sql.SQL("({} OR ({} AND {}))").format(
                self.compared(column, a, comparison.strict, b), self.compared(column, a, KeyComparison.EQUAL, b), compared
            )
        column, a, b = terms[0]
        return sql.SQL("({} AND {})").format(self.compared(column, a, comparison.weak, b), compared)  # an index serves that one

    def _operator(self, column: str, comparison: KeyComparison) -> Operator:
        return self.by_column[column].get(comparison, ("pg_catalog", _BUILT_IN[comparison]))


def _spelled(operator: Operator) -> sql.Composable:
    """The server itself gave the name, which is made of operator characters."""
    schema, name = operator
    return sql.SQL("OPERATOR({}.{})").format(sql.Identifier(schema), sql.SQL(name))
