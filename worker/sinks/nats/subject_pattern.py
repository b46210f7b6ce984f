"""Subjects of the target stream, by a pattern.

    {stream}.{schema}.{table}.{operation}      shop.public.orders.insert

A name is escaped as in a URL, so that it is one token whatever it holds: ``order.items`` is ``order%2Eitems``. An empty one, as
of a definition that concerns no table, is ``_``. Operations are insert, update, delete, truncate, read, restart and ddl.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import quote

from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.place_names import PlaceNames

DEFAULT_PATTERN = "{stream}.{schema}.{table}.{operation}"
_FIELD = re.compile(r"\{(\w*)\}")
_FIELDS = frozenset(("stream", "schema", "table", "operation"))
_PLAIN = re.compile(r"[A-Za-z0-9_$-]*")
_STREAM = re.compile(r"[A-Za-z0-9_-]{1,255}")
_RESERVED = ("$", "pgsluice.")
_RESERVED_STREAMS = ("pgsluice_", "KV_")
POSITION_SUBJECTS = "pgsluice.position"


def escaped(name: str | None) -> str:
    """Returns the name as one token of a subject."""
    return quote(name or "_", safe="$").replace(".", "%2E")


def check_stream_name(name: str) -> str:
    """Returns ``name`` itself. Raises UsageError when no stream can be called so."""
    if _STREAM.fullmatch(name) is None:
        raise UsageError(f"nats-stream {name!r} is not a valid name", "use a-z, A-Z, 0-9, '_' and '-', like SHOP")
    if name.startswith(_RESERVED_STREAMS):
        raise UsageError(f"nats-stream {name!r} begins as streams of groups and buckets do", "choose another name, like SHOP")
    return name


@dataclass(frozen=True, slots=True)
class SubjectPattern:
    """``text`` is as in the configuration, ``stream`` the stream's name. Picklable."""

    text: str
    stream: str

    @classmethod
    def parse(cls, text: str, stream: str) -> SubjectPattern:
        """Raises UsageError."""
        pattern = cls(text or DEFAULT_PATTERN, check_stream_name(stream))
        for token in pattern.text.split("."):
            unknown = [field for field in _FIELD.findall(token) if field not in _FIELDS]
            if unknown:
                raise UsageError(
                    f"nats-subject: there is no {{{unknown[0]}}}", "write {stream}, {schema}, {table} and {operation}"
                )
            if not token or _PLAIN.fullmatch(_FIELD.sub("", token)) is None:
                raise UsageError(
                    f"nats-subject {pattern.text!r} is no subject",
                    f"write tokens with full stops between, like {DEFAULT_PATTERN}",
                )
        if pattern.filled("x", "x", "x").startswith(_RESERVED):
            raise UsageError(f"nats-subject {pattern.text!r} begins as subjects of others do", "begin it with another word")
        return pattern

    @property
    def wildcard(self) -> str:
        """Every subject that the pattern can make."""
        text = self.text.replace("{stream}", escaped(self.stream))
        return ".".join("*" if _FIELD.search(token) else token for token in text.split("."))

    @property
    def position_subject(self) -> str:
        """Subject of the position when there is no message to carry it."""
        return f"{POSITION_SUBJECTS}.{self.stream}"

    @property
    def place_names(self) -> PlaceNames:
        return PlaceNames(
            check="nats-subject",
            kind="subject",
            kinds="subjects",
            named=lambda text, table: replace(self, text=text).filled(table.schema, table.name, "insert"),
            pattern=self.text,
            option="nats-subject",
            others=(DEFAULT_PATTERN,),
            may_share=True,
        )

    def subject(self, schema: str | None, table: str | None, operation: str) -> bytes:
        return _filled(self, schema, table, operation)

    def filled(self, schema: str | None, table: str | None, operation: str) -> str:
        named = {"stream": self.stream, "schema": schema, "table": table, "operation": operation}
        return _FIELD.sub(lambda field: escaped(named[field[1]]), self.text)


@lru_cache(maxsize=8192)
def _filled(pattern: SubjectPattern, schema: str | None, table: str | None, operation: str) -> bytes:
    return pattern.filled(schema, table, operation).encode()
