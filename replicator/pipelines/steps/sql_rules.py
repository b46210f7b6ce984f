"""Checks the statements of steps: each row becomes one row or none, independent of others, the same each time. Pure.

What is allowed is listed, by the names that Spark's parser gives to the parts of a statement; everything else is
refused. So a function of a later Spark stays refused until it was examined. Left out on purpose is everything that

- reads other rows (aggregates, windows, ORDER BY, LIMIT): which rows come in one batch is not promised;
- reads anything else (other relations, files, subqueries), runs code (``reflect``, TRANSFORM) or changes the session;
- gives something else the next time (``rand``, ``now``): a row that is read again has to give what it gave;
- makes a short value as large as it likes (``repeat``, ``lpad``; ``sql_growth`` is about the rest), or several rows of one
  (``explode``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

RELATION = "rows"
MOST_CHARACTERS = 8_000
MOST_PARENTHESES = 200
MOST_DEPTH = 100
"""Depth of the parser's tree. Thousands of nested parentheses take the parser seconds, and more of them minutes."""

_PLANS = frozenset({"Project", "Filter", "SubqueryAlias", "UnresolvedRelation"})

_EXPRESSIONS = """
    UnresolvedAttribute UnresolvedStar UnresolvedStarExceptOrReplace UnresolvedAlias UnresolvedFunction Alias Literal Cast
    And Or Not EqualTo EqualNullSafe LessThan LessThanOrEqual GreaterThan GreaterThanOrEqual In IsNull IsNotNull IsNaN
    Add Subtract Multiply Divide IntegralDivide Remainder UnaryMinus UnaryPositive
    BitwiseAnd BitwiseOr BitwiseXor BitwiseNot ShiftLeft ShiftRight ShiftRightUnsigned
    CaseWhen If Concat Like ILike LikeAll LikeAny NotLikeAll NotLikeAny RLike
    StringTrim StringTrimLeft StringTrimRight Substring Overlay StringLocate Extract TimestampAdd TimestampDiff
    """
_ALLOWED_EXPRESSIONS = frozenset(_EXPRESSIONS.split())

FUNCTIONS = {
    "Texts": """
        ascii base64 bit_length btrim char char_length character_length chr concat concat_ws contains crc32 decode
        encode endswith find_in_set get_json_object hex ilike initcap instr is_valid_utf8 json_array_length lcase left len length
        levenshtein like locate lower ltrim luhn_check make_valid_utf8 mask md5 octet_length overlay parse_url position regexp
        regexp_count regexp_extract regexp_instr regexp_like regexp_replace regexp_substr replace reverse right rlike rtrim sha
        sha1 sha2 soundex split_part startswith substr substring substring_index to_char to_varchar translate trim
        try_url_decode ucase unbase64 unhex upper url_decode url_encode xxhash64
        """,
    "Choices": """
        between coalesce equal_null greatest if ifnull isnan isnotnull isnull least nanvl nullif nullifzero nvl nvl2 zeroifnull
        """,
    "Numbers": """
        abs acos acosh asin asinh atan atan2 atanh bigint bin bit_count bit_get boolean bround cbrt ceil ceiling conv cos cosh cot
        csc decimal degrees div double e exp expm1 factorial float floor getbit hypot int ln log log10 log1p log2 mod negative pi
        pmod positive pow power radians rint round sec shiftleft shiftright shiftrightunsigned sign signum sin sinh smallint sqrt
        string tan tanh tinyint to_number try_add try_divide try_mod try_multiply try_subtract try_to_number width_bucket
        """,
    "Times": """
        add_months convert_timezone date date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd
        datediff datepart day dayname dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp hour last_day
        make_date make_interval make_dt_interval make_ym_interval make_timestamp make_timestamp_ltz make_timestamp_ntz minute
        month monthname months_between next_day quarter second timestamp timestamp_micros timestamp_millis timestamp_seconds
        to_timestamp to_timestamp_ltz to_timestamp_ntz to_date to_unix_timestamp to_utc_timestamp trunc try_to_date
        try_to_timestamp unix_date unix_micros unix_millis unix_seconds weekday weekofyear year
        """,
}
"""Functions by topic, for readers."""
_ALLOWED_FUNCTIONS = frozenset(name for names in FUNCTIONS.values() for name in names.split())

_WITHOUT_PARENTHESES = """
    current_catalog current_database current_date current_path current_schema current_time current_timestamp current_user
    grouping__id localtimestamp session_user user
    """
"""Functions that look like columns, and are ones where a column has the name."""

_SAID = {
    "Aggregate": "groups rows: a step makes of each row one row or none, have the query group them",
    "Distinct": "compares rows with each other: do that in the query",
    "Generate": "makes several rows of one: a Python step may do that",
    "GlobalLimit": "counts rows, and batches can end at any row: do that in the query",
    "LocalLimit": "counts rows, and batches can end at any row: do that in the query",
    "Sort": "sorts rows, which are already sorted by their key",
    "OneRowRelation": f"reads no rows: write FROM {RELATION}",
    "UnresolvedWith": "has a WITH: write a subquery after FROM",
    "WindowExpression": "reads other rows: do that in the query",
    "UnresolvedWindowExpression": "reads other rows: do that in the query",
    "WithWindowDefinition": "reads other rows: do that in the query",
}
_DIGITS = re.compile(r"""[a-z_]+\s*['"][-+0-9][^\\]*['"]""", re.IGNORECASE | re.DOTALL)
"""A date or time literal; ``TIMESTAMP 'now'`` is one of the parser's clock."""


class SqlRefusedError(Exception):
    """``reason`` is the end of a sentence that begins with the step: what is wrong, and where."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class SqlNode:
    """A part of a statement as the parser has it. ``kind`` is Spark's name of it. ``name`` are the parts of a
    relation's, an attribute's or a function's name. ``is_plain``: it is nothing but its name and its children. ``text``
    is the source text of a date or time, "" otherwise, ``written`` the content of a text literal. ``line`` counts from
    1, ``column`` too; 0 if unknown."""

    kind: str
    is_plan: bool
    name: tuple[str, ...] = ()
    is_plain: bool = True
    text: str = field(default="", repr=False)
    written: str = field(default="", repr=False)
    line: int = 0
    column: int = 0
    children: tuple[SqlNode, ...] = ()

    def all(self) -> Iterator[SqlNode]:
        yield self
        for child in self.children:
            yield from child.all()

    @property
    def place(self) -> str:
        return f" (line {self.line}, column {self.column})" if self.line else ""


def check_text(text: str) -> None:
    """Checks a statement before it is parsed. Raises SqlRefusedError for one that would take the parser long."""
    if len(text) > MOST_CHARACTERS:
        raise SqlRefusedError(f"has {len(text)} characters, and {MOST_CHARACTERS} is the most")
    if text.count("(") > MOST_PARENTHESES:
        raise SqlRefusedError(f"has {text.count('(')} parentheses, and {MOST_PARENTHESES} is the most")


def check_statement(root: SqlNode) -> None:
    """Raises SqlRefusedError for the first part that is not allowed."""
    if root.kind != "Project":
        raise SqlRefusedError(f"{_SAID.get(root.kind, f'is no plain SELECT, but {root.kind}')}{root.place}")
    for node in root.all():
        reason = _problem_of_plan(node) if node.is_plan else _problem_of_expression(node)
        if reason:
            raise SqlRefusedError(f"{reason}{node.place}")


def check_names(root: SqlNode, columns: frozenset[str]) -> None:
    """Raises SqlRefusedError for a function in a column's clothes: a name that is not among ``columns``."""
    for node in root.all():
        if node.kind == "UnresolvedAttribute" and len(node.name) == 1:
            [name] = node.name
            if name.lower() in _WITHOUT_PARENTHESES.split() and name not in columns:
                raise SqlRefusedError(f"names {name}, which is no column and gives something else the next time{node.place}")


def _problem_of_plan(node: SqlNode) -> str:
    if node.kind not in _PLANS:
        return _SAID.get(node.kind, f"has a part that is not allowed here: {node.kind}")
    if node.kind == "UnresolvedRelation" and (node.name != (RELATION,) or not node.is_plain):
        return f"reads '{'.'.join(node.name)}', and may read nothing but {RELATION}"
    return ""


def _problem_of_expression(node: SqlNode) -> str:
    if node.kind not in _ALLOWED_EXPRESSIONS:
        return _SAID.get(node.kind, f"has a part that is not allowed here: {node.kind}")
    if node.kind == "UnresolvedFunction" and not _is_allowed(node.name):
        return f"calls {'.'.join(node.name)}, which is none of the functions of a step"
    if not node.is_plain:
        return f"has a part that is not allowed here: {node.kind} with a clause like DISTINCT or FILTER"
    if node.kind == "Literal" and node.text and not _DIGITS.fullmatch(node.text):
        return "has a date or time that is not written in digits, and may be another one the next time"
    return ""


def _is_allowed(name: tuple[str, ...]) -> bool:
    return len(name) == 1 and name[0].lower() in _ALLOWED_FUNCTIONS
