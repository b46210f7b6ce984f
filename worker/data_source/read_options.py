"""Options of the format "pgsluice", declared like the commands'.

Options for NATS have their names of the command line. Spark keeps options out of its plans, and hides URLs, passwords
and tokens elsewhere; no error here holds a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pgsluice.shared.config.connections import GROUP, NatsSettings
from pgsluice.shared.config.declaration import make, part, read, settings
from pgsluice.shared.config.kinds import Kind, parse_list
from pgsluice.shared.config.load import load_given
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.settings import BATCH_BYTES, BATCH_SIZE
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.table import TablePattern
from pgsluice.worker.batches.planning import BatchLimit

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class FromBeginning:
    """The oldest message that the stream still holds."""


@dataclass(frozen=True, slots=True)
class FromSequence:
    """The transaction that message ``sequence`` is of."""

    sequence: int


@dataclass(frozen=True, slots=True)
class FromTime:
    """Transactions that committed at that time or later, in microseconds since 2000-01-01 UTC."""

    committed_at: int


From = FromBeginning | FromSequence | FromTime


@dataclass(frozen=True, slots=True)
class UntilEnd:
    """The end of the stream when an action is planned."""


@dataclass(frozen=True, slots=True)
class UntilSequence:
    """Transactions that are complete in message ``sequence`` or before."""

    sequence: int


@dataclass(frozen=True, slots=True)
class UntilTime:
    """Transactions that committed at that time or earlier, in microseconds since 2000-01-01 UTC."""

    committed_at: int


Until = UntilEnd | UntilSequence | UntilTime


def _from(text: str) -> From:
    """Raises ValueError with the end of a sentence, as all functions here do that read a text."""
    if text.lower() == "beginning":
        return FromBeginning()
    if _is_sequence(text):
        return FromSequence(int(text))
    return FromTime(_time(text, "beginning"))


def _time(text: str, word: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"is neither '{word}' nor a sequence nor a time") from None
    if moment.tzinfo is None:
        raise ValueError("has no time zone")
    if moment > datetime.now(UTC):
        raise ValueError("is a time that has not come yet")
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _until(text: str) -> Until:
    if text.lower() == "end":
        return UntilEnd()
    return UntilSequence(int(text)) if _is_sequence(text) else UntilTime(_time(text, "end"))


def _is_sequence(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0


def _patterns(text: str) -> tuple[TablePattern, ...]:
    return tuple(map(TablePattern.parse, parse_list(text)))


def _one_table(text: str) -> TablePattern | None:
    if not text:
        return None
    pattern = TablePattern.parse(text)
    if not pattern.is_name:
        raise ValueError("is a pattern, but one table is needed; 'tables' takes patterns")
    return pattern


def _checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    """Settings are made of values that were checked before: these are checked by being read twice."""

    def check(text: str) -> str:
        parse(text)
        return text

    return check


def _option(name: str, help_text: str, example: str, default: str, parse: Callable[[str], object]) -> Option:
    return Option(name, Kind.TEXT, help_text, example, default, convert=_checked(parse))


@settings
class ReadSettings:
    """``table`` is the one table whose columns are typed; ``tables`` are the ones whose changes are read, all when
    empty. Picklable."""

    group: str = read(GROUP)
    nats: NatsSettings = part(NatsSettings)
    begin: From = read(
        _option("from", "Where to begin: beginning, a sequence, or a time", "2026-01-31T09:15:00Z", "beginning", _from),
        then=_from,
    )
    until: Until = read(
        _option("until", "Where to end: end, a sequence, or a time (spark.read)", "2026-01-31T10:15:00Z", "end", _until),
        then=_until,
    )
    tables: tuple[TablePattern, ...] = read(
        _option("tables", "Tables to read: table, schema.table, schema.* or order_*", "orders,shop.*", "", _patterns),
        then=_patterns,
    )
    table: TablePattern | None = read(
        _option("table", "The one table to read; old and new rows have its columns", "public.orders", "", _one_table),
        then=_one_table,
    )
    fails_on_data_loss: bool = read(
        Option("fail-on-data-loss", Kind.SWITCH, "Stop where messages were removed before they were read", "false", "true")
    )
    with_copy: bool = read(
        Option(
            "with-copy",
            Kind.SWITCH,
            "Begin with the rows that the newest copy of the table read (spark.read, with table)",
            "true",
            "false",
        )
    )
    batch_messages: int = read(BATCH_SIZE)
    batch_bytes: int = read(BATCH_BYTES)

    @staticmethod
    def problems(values: Values) -> Iterator[UsageError]:
        if values.given("table") and values.given("tables"):
            yield UsageError("table and tables are both given", "give one of them")
        if values.switch("with-copy"):
            is_all = (values.text("from").lower(), values.text("until").lower()) == ("beginning", "end")
            if not (is_all and values.given("table") and values.switch("fail-on-data-loss")):
                yield UsageError(
                    "with-copy reads the whole of one table",
                    "name it with the option 'table', and leave 'from', 'until' and 'fail-on-data-loss' away",
                )

    @property
    def limit(self) -> BatchLimit:
        return BatchLimit(self.batch_messages, self.batch_bytes)

    def wants(self, _oid: int, schema: str, name: str) -> bool:
        """Returns whether changes of that table are read, where they are chosen by ``tables``."""
        return not self.tables or any(pattern.matches(schema, name) for pattern in self.tables)


def read_settings(given: Mapping[str, str]) -> ReadSettings:
    """Reads the options that a reader was given. Raises UsageError for all that is wrong with them."""
    return make(ReadSettings, load_given({name.lower(): text for name, text in given.items()}, ReadSettings))
