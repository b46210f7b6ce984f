"""Parses PostgreSQL's condition for the rows of a partition. Pure.

The text comes from the source, where the owner of a table may partition it by custom functions: run at a target, these
could do anything there. So no part of the text is run. Comparisons of plain columns with constants are read, and the
target's statement is rebuilt from them; everything else is refused.

    condition   condition AND|OR condition ..., NOT condition, (condition)
                column =|<|<=|>|>= constant, column = ANY (ARRAY[constant, ...]), column IS [NOT] NULL
    column      a name; or (name)::text of a column of type varchar, which changes nothing
    constant    'text', a number, true or false; ::type behind it

That is what PostgreSQL makes of ranges and lists (``get_partition_qual_relid``). It writes keywords in capitals, and
quotes every name that is not of lower-case letters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pgsluice.shared.wire.definition import DefinedColumn

MOST_CHARACTERS = 1 << 20
DEEPEST = 60

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>E?'(?:[^']|'')*')|(?P<number>-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![\w.])|(?P<quoted>"(?:[^"]|"")+")
    |(?P<name>[a-z_][a-z0-9_]*)(?![A-Z$])|(?P<keyword>[A-Z]+)(?![\w$])|(?P<sign>::|<=|>=|[=<>()\[\],.]))""",
    re.VERBOSE | re.ASCII,
)
_OPERATORS = ("=", "<", "<=", ">", ">=")
_VARCHAR = "character varying"
_TYPES_OF_WORDS = {
    *(_VARCHAR, "bit varying", "double precision"),
    *(f"{name} {how} time zone" for name in ("time", "timestamp") for how in ("with", "without")),
}


@dataclass(frozen=True, slots=True)
class Constant:
    """``is_text``: it was quoted; otherwise it is a number, true or false. ``type_name`` is SQL for a type and nothing
    else, "" for a constant without one."""

    text: str
    is_text: bool
    type_name: str


@dataclass(frozen=True, slots=True)
class ColumnComparison:
    """A comparison of the column of that number. With several constants, it asks whether the column equals one of them."""

    column: int
    operator: str
    constants: tuple[Constant, ...]


@dataclass(frozen=True, slots=True)
class NullTest:
    column: int
    is_null: bool


@dataclass(frozen=True, slots=True)
class Negation:
    condition: Condition


@dataclass(frozen=True, slots=True)
class Combination:
    """``word`` is AND or OR."""

    word: str
    conditions: tuple[Condition, ...]


Condition = ColumnComparison | NullTest | Negation | Combination


class _RefusedError(Exception):
    """The text is not in the language."""


def parse_condition(text: str | None, columns: Mapping[str, DefinedColumn]) -> Condition | None:
    """``columns`` are the table's, by their names. None for what is not of the language."""
    if text is None or len(text) > MOST_CHARACTERS:
        return None
    try:
        return _Reader(_tokens(text), columns).whole()
    except _RefusedError:
        return None


def _tokens(text: str) -> list[tuple[str, str]]:
    """Kinds and texts; the last one is of kind "end"."""
    found, position, end = list[tuple[str, str]](), 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise _RefusedError
        found.append((match.lastgroup, match[match.lastgroup]))
        position = match.end()
    return [*found, ("end", "")]


class _Reader:
    def __init__(self, tokens: list[tuple[str, str]], columns: Mapping[str, DefinedColumn]) -> None:
        self._tokens = tokens
        self._columns = columns
        self._position = 0
        self._depth = 0

    def whole(self) -> Condition:
        condition = self._alternatives()
        if self._tokens[self._position][0] != "end":
            raise _RefusedError
        return condition

    def _alternatives(self) -> Condition:
        return self._combined("OR", lambda: self._combined("AND", self._one))

    def _combined(self, word: str, part: Callable[[], Condition]) -> Condition:
        parts = [part()]
        while self._takes(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Combination(word, tuple(parts))

    def _one(self) -> Condition:
        self._depth += 1
        if self._depth > DEEPEST:
            raise _RefusedError
        try:
            if self._takes("NOT"):
                return Negation(self._one())
            start = self._position
            column = self._column()
            if column is not None:
                return self._test(column)
            self._position = start
            self._expect("(")
            condition = self._alternatives()
            self._expect(")")
            return condition
        finally:
            self._depth -= 1

    def _test(self, column: int) -> Condition:
        if self._takes("IS"):
            is_null = not self._takes("NOT")
            self._expect("NULL")
            return NullTest(column, is_null)
        operator = next((each for each in _OPERATORS if self._takes(each)), None)
        if operator is None:
            raise _RefusedError
        if operator == "=" and self._takes("ANY"):
            self._expect("(")
            constants = self._list()
            self._expect(")")
            return ColumnComparison(column, "=", constants)
        return ColumnComparison(column, operator, (self._constant(),))

    def _column(self) -> int | None:
        """Returns None when none is next."""
        is_cast = self._takes("(")
        kind, text = self._tokens[self._position]
        found = self._columns.get(_unquoted(text)) if kind in ("name", "quoted") else None
        if found is None:
            return None
        self._position += 1
        if not is_cast:
            return found.number
        if not self._takes(")") or not self._takes("::"):
            return None
        if self._type() != "text" or not found.type_name.startswith(_VARCHAR):
            raise _RefusedError
        return found.number

    def _list(self) -> tuple[Constant, ...]:
        """Parses ARRAY[...], maybe in parentheses and with a type: the type of the column it is compared with."""
        if self._takes("("):
            constants = self._list()
            self._expect(")")
        else:
            self._expect("ARRAY")
            self._expect("[")
            constants = (self._constant(),)
            while self._takes(","):
                constants += (self._constant(),)
            self._expect("]")
        if self._takes("::"):
            self._type()
        return constants

    def _constant(self) -> Constant:
        kind, text = self._tokens[self._position]
        self._position += 1
        if kind == "text":
            text = _without_escapes(text) if text[0] == "E" else text[1:-1].replace("''", "'")
        elif kind != "number" and (kind, text) not in (("name", "true"), ("name", "false")):
            raise _RefusedError
        return Constant(text, kind == "text", self._type() if self._takes("::") else "")

    def _type(self) -> str:
        """Returns the name of a type, maybe with modifiers."""
        first, is_qualified = self._name(), self._takes(".")
        words = [f"{first}.{self._name()}" if is_qualified else first]
        words += self._words()
        modifiers = self._modifiers()
        more = self._words() if modifiers else []
        if len(words + more) > 1 and " ".join(words + more) not in _TYPES_OF_WORDS:
            raise _RefusedError
        name = " ".join([*words[:-1], words[-1] + modifiers, *more])
        while self._takes("["):
            self._expect("]")
            name += "[]"
        return name

    def _words(self) -> list[str]:
        found = []
        while self._tokens[self._position][0] == "name":
            found.append(self._name())
        return found

    def _modifiers(self) -> str:
        if not self._takes("("):
            return ""
        found = [self._modifier()]
        while self._takes(","):
            found.append(self._modifier())
        self._expect(")")
        return f"({','.join(found)})"

    def _modifier(self) -> str:
        kind, text = self._tokens[self._position]
        if kind != "number" or not text.removeprefix("-").isdigit():
            raise _RefusedError
        self._position += 1
        return text

    def _name(self) -> str:
        kind, text = self._tokens[self._position]
        if kind not in ("name", "quoted"):
            raise _RefusedError
        self._position += 1
        return text

    def _takes(self, text: str) -> bool:
        """Returns whether this keyword or sign is next, and then passes it."""
        kind, found = self._tokens[self._position]
        is_next = kind in ("keyword", "sign") and found == text
        self._position += is_next
        return is_next

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            raise _RefusedError


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _without_escapes(text: str) -> str:
    """Returns the content of E'...', in which PostgreSQL doubles backslashes and quotes, and nothing else."""
    content = text[2:-1].replace("''", "'")
    if re.fullmatch(r"(?:[^\\]|\\\\)*", content, re.DOTALL) is None:
        raise _RefusedError
    return content.replace("\\\\", "\\")
