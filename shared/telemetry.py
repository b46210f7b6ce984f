"""The log: events with fields, on standard error, as text for readers or as JSON lines for machines.

    log = telemetry.logger(__name__)
    log.info("change stream is ready", stream=names.changes_stream, sequence=state.last_sequence)

    2026-01-31T12:00:00.123Z INFO    replicator.replicator  change stream is ready  stream=pgsluice_orders_changes sequence=17
    {"time":"2026-01-31T12:00:00.123Z","level":"INFO","logger":"replicator.replicator","message":"change stream is ready",…}

The message is constant, so that it can be counted and searched for; what varies is a field. Row values and secrets are
neither. Standard output is never written to: it belongs to the stdout sink.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

import orjson

from pgsluice.shared.config.settings import LogSettings

_NOISY = ("py4j", "nats", "asyncio", "psycopg", "urllib3")
"""Libraries whose INFO lines are about their own insides; their warnings are kept."""

_RESERVED = ("time", "level", "logger", "message", "exception")

_OWN_FIELDS = frozenset(_RESERVED[:4])

_FIELDS = "pgsluice_fields"
_PACKAGE = "pgsluice."


class EventLogger:
    """One module's log. Field names are free; one that is also a name of the line's own gets a ``_`` suffix in JSON."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, /, **fields: object) -> None:
        self._log(logging.DEBUG, message, fields)

    def info(self, message: str, /, **fields: object) -> None:
        self._log(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        self._log(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: object) -> None:
        self._log(logging.ERROR, message, fields)

    def exception(self, message: str, /, **fields: object) -> None:
        """Logs an ``error`` with the traceback of the exception being handled: for defects, whose place in the code is
        the news. Its text is left out."""
        self._log(logging.ERROR, message, fields, with_traceback=True)

    def _log(self, level: int, message: str, fields: dict[str, object], with_traceback: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", message, extra={_FIELDS: fields}, exc_info=with_traceback, stacklevel=3)


def logger(name: str) -> EventLogger:
    """Returns the log of the module called ``name``."""
    return EventLogger(name)


def set_up(settings: LogSettings) -> None:
    """Sends every log record of this process to standard error, in the settings' form, from the settings' level up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.filters[:] = [_without_py4j]
    root.setLevel(settings.level)
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(True)


def set_up_task() -> None:
    """Sets up logging in processes of Spark's tasks, which do not know the driver's settings. With a local master the
    driver reads what they write to standard error (``relay``); on a cluster it is in the executor's log."""
    set_up(LogSettings("INFO", "json"))


def relay(text: str) -> bool:
    """Logs a line of another pgsluice process as it was logged there, from this process's level up. Returns whether it
    is one."""
    try:
        line = orjson.loads(text) if text.startswith('{"time":') else None
    except orjson.JSONDecodeError:
        return False
    if not isinstance(line, dict) or not {"time", "level", "logger", "message"} <= line.keys():
        return False
    level, name = logging.getLevelNamesMapping().get(line["level"], logging.INFO), f"{_PACKAGE}{line['logger']}"
    fields = {field.removesuffix("_"): value for field, value in line.items() if field not in _OWN_FIELDS}
    found = logging.getLogger(name)
    if found.isEnabledFor(level):
        found.log(level, "%s", line["message"], extra={_FIELDS: fields})
    return True


def _without_py4j(record: logging.LogRecord) -> bool:
    """py4j logs on the root logger, with a traceback, what it also raises or mends: that is for debugging."""
    return "py4j" not in record.pathname or logging.getLogger().level <= logging.DEBUG


def report_failure(sentence: str, exit_code: int) -> None:
    """Logs the last line before the process ends with ``exit_code``: in text format the sentence alone, in JSON a line
    like any."""
    handlers = logging.getLogger().handlers
    if handlers and isinstance(handlers[0].formatter, JsonFormatter):
        logger("pgsluice").error(sentence, exit_code=exit_code)
    else:
        with contextlib.suppress(OSError):  # without a reader, the exit code remains
            sys.stderr.write(f"pgsluice: {sentence}\n")
            sys.stderr.flush()


class PlaceFormatter(logging.Formatter):
    """Formats the places and types of an exception, never the text: it may quote a row."""

    def formatException(self, ei: Any) -> str:  # noqa: N802  logging's name
        lines: list[str] = []
        error, seen = ei[1], set[int]()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            frames = "".join(traceback.format_tb(error.__traceback__)).rstrip("\n")
            lines += ["Traceback (most recent call last):", frames, type(error).__qualname__]
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\n".join(lines)


def _name(record: logging.LogRecord) -> str:
    """Returns the logger's name, without pgsluice's package prefix."""
    return record.name.removeprefix(_PACKAGE)


class TextFormatter(PlaceFormatter):
    """One line a record: time in UTC, level, logger, message, then ``name=value`` for each field."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={_text(value)}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname:<7} {_name(record)}  {record.getMessage()}"
        parts = [f"{line}  {fields}" if fields else line]
        if record.exc_info:
            parts.append(self.formatException(record.exc_info))
        return "\n".join(parts)


class JsonFormatter(PlaceFormatter):
    """One JSON object a line. A field that JSON has no type for is written as its text."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": _name(record),
            "message": record.getMessage(),
        }
        for name, value in _fields(record).items():
            line[name + "_" if name in _RESERVED else name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(line, default=str).decode()
        except TypeError:  # a lone surrogate, or an integer beyond 64 bits: JSON of plain text can always be made
            return orjson.dumps({name: _plain(value) for name, value in line.items()}).decode()


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, _FIELDS, {})
    assert isinstance(fields, dict)
    return fields


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(value: object) -> str:
    """Returns ``value`` in one word: quoted when it holds a space, a quote, a ``=`` or a line end, or is empty."""
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    needs_quotes = not text or any(character in ' "=' or not character.isprintable() for character in text)
    return orjson.dumps(_plain(text)).decode() if needs_quotes else text


def _plain(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()
