"""Names of topics and keys of records, by patterns.

    {schema}.{table}      public.orders

Kafka allows ASCII letters, digits, ``.``, ``_`` and ``-`` in the name of a topic. Of a schema's or a table's name a
full stop, a hyphen and every other byte is a hyphen and its two hexadecimal digits, so that no two tables share a topic
by accident: ``order.items`` is ``order-2Eitems``. An empty name, as of a definition without a table, is ``_``. A name
longer than Kafka allows ends in a digest of all of it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.place_names import PlaceNames

DEFAULT_TOPIC = "{schema}.{table}"
KEY_FIELD = "{key}"
LONGEST_TOPIC = 249
_DIGEST_DIGITS = 16
ONE_TO_KAFKA = "Kafka takes no two names that differ in '.' and '_' only"

_FIELD = re.compile(r"\{(\w*)\}")
_FIELDS = frozenset(("schema", "table"))
_LEGAL = re.compile(r"[A-Za-z0-9._-]*")
_ESCAPED = re.compile(rb"[^A-Za-z0-9_]")


def escaped(name: str | None) -> str:
    """Returns the name as part of a topic's name."""
    return _ESCAPED.sub(lambda byte: b"-%02X" % byte[0][0], (name or "_").encode()).decode()


def check_topic(name: str, option: str) -> str:
    """Returns ``name`` itself. Raises UsageError when no topic can be called so."""
    if not name or name in (".", "..") or len(name) > LONGEST_TOPIC or _LEGAL.fullmatch(name) is None:
        raise UsageError(
            f"{option} {name!r} is no name of a topic",
            "use up to 249 characters: a-z, A-Z, 0-9, '.', '_' and '-', like shop.orders",
        )
    return name


def alike(topic: str) -> str:
    """Returns the same text for topics of which Kafka accepts only one, for its metrics' sake."""
    return topic.replace(".", "_")


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """``text`` is as in the configuration. Picklable."""

    text: str

    @classmethod
    def parse(cls, text: str) -> TopicPattern:
        """Raises UsageError."""
        pattern = cls(text or DEFAULT_TOPIC)
        _check_fields(pattern.text, "kafka-topic", _FIELDS)
        check_topic(pattern.topic("x", "x"), "kafka-topic")
        return pattern

    def place_names(self, position_topic: str) -> PlaceNames:
        return PlaceNames(
            check="kafka-topic-collision",
            kind="topic",
            kinds="topics",
            named=lambda text, table: _topic(text, table.schema, table.name),
            pattern=self.text,
            option="kafka-topic",
            others=(DEFAULT_TOPIC, "{schema}-{table}", "{schema}--{table}"),
            alike=alike,
            why=ONE_TO_KAFKA,
            may_share=True,
            taken={"kafka-position-topic": position_topic},
        )

    def topic(self, schema: str | None, table: str | None) -> str:
        return _topic(self.text, schema, table)


@dataclass(frozen=True, slots=True)
class KeyPattern:
    """The content of a record's key. ``{key}`` is the row's key as a JSON object; other text and names stay unchanged."""

    text: str

    @classmethod
    def parse(cls, text: str) -> KeyPattern:
        """Raises UsageError."""
        pattern = cls(text or KEY_FIELD)
        _check_fields(pattern.text, "kafka-key", _FIELDS | {"key"})
        return pattern

    @property
    def names_row(self) -> bool:
        """Returns whether each row of a table has its own key."""
        return KEY_FIELD in self.text

    def around(self, schema: str, table: str) -> list[bytes]:
        """Returns the texts before, between and after the rows' keys."""
        named = {"schema": schema, "table": table, "key": KEY_FIELD}
        return [part.encode() for part in _FIELD.sub(lambda field: named[field[1]], self.text).split(KEY_FIELD)]


def _check_fields(text: str, option: str, fields: frozenset[str]) -> None:
    unknown = [field for field in _FIELD.findall(text) if field not in fields]
    if unknown:
        known = sorted(f"{{{field}}}" for field in fields)
        raise UsageError(f"{option}: there is no {{{unknown[0]}}}", f"write {', '.join(known[:-1])} and {known[-1]}")


@lru_cache(maxsize=8192)
def _topic(text: str, schema: str | None, table: str | None) -> str:
    named = {"schema": schema, "table": table}
    name = _FIELD.sub(lambda field: escaped(named[field[1]]), text)
    if len(name) <= LONGEST_TOPIC:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_DIGITS]
    return f"{name[: LONGEST_TOPIC - _DIGEST_DIGITS - 2]}--{digest}"  # two hyphens: an escape never makes them
