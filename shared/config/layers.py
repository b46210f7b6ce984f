"""The four places where an option is looked for, in the order of their precedence.

A layer finds an option's raw value or None. An empty value is None too, wherever it stands, so that an empty variable of a
compose file or a ``${VAR:-}`` falls through to the next layer.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from shared.config.file import ConfigFile, expand
from shared.errors import UsageError
from shared.kinds import Kind, Raw, parse_flag_pairs, parse_list
from shared.options import Option

Flags = Mapping[str, str | tuple[str, ...]]
"""Flags by option name, as typed; a tuple for a flag that may be repeated. A flag that was not given is absent."""

_REFERENCE_REMEDY = "set the variable, give a default as in ${NAME:-text}, or write $${ for a plain ${"


class Source(enum.IntEnum):
    """Where a value came from. The lower wins."""

    FLAG = 1
    ENVIRONMENT = 2
    FILE = 3
    DEFAULT = 4


@dataclass(frozen=True, slots=True)
class Found:
    """An option's value as written in one layer, and where that is, in words for people."""

    source: Source
    place: str
    raw: Raw = field(repr=False)


class Layer(Protocol):
    def look(self, option: Option) -> Found | None:
        """Raises UsageError when what is written there cannot stand for any value."""
        ...


@dataclass(frozen=True, slots=True)
class FlagLayer:
    flags: Flags = field(repr=False)

    def look(self, option: Option) -> Found | None:
        raw: Raw = self.flags.get(option.name, "")
        if isinstance(raw, tuple) and raw:
            try:
                raw = parse_flag_pairs(raw) if option.kind is Kind.PAIRS else parse_list(",".join(raw))
            except ValueError as error:
                raise malformed(option, option.flag, str(error)) from None
        return _found(Source.FLAG, option.flag, raw)


@dataclass(frozen=True, slots=True)
class EnvironmentLayer:
    environment: Mapping[str, str] = field(repr=False)

    def look(self, option: Option) -> Found | None:
        """pg_flo's variable counts where ours is not set, so that a service that ran pg_flo starts as it is."""
        names = (option.variable, option.pg_flo_variable)
        found = (_found(Source.ENVIRONMENT, name, self.environment.get(name, "")) for name in names)
        return next((value for value in found if value is not None), None)


@dataclass(frozen=True, slots=True)
class FileLayer:
    file: ConfigFile
    environment: Mapping[str, str] = field(repr=False)

    def look(self, option: Option) -> Found | None:
        entry = self.file.entries.get(option.name)
        if entry is None or entry.raw is None:
            return None
        place = f"{self.file.path}, line {entry.line}"
        try:
            raw = expand(entry.raw, self.environment)
        except ValueError as error:
            raise UsageError(f"{option.name} ({place}) {error}", _REFERENCE_REMEDY) from None
        return _found(Source.FILE, place, raw)


@dataclass(frozen=True, slots=True)
class DefaultLayer:
    def look(self, option: Option) -> Found | None:
        return _found(Source.DEFAULT, "default", option.default)


def _found(source: Source, place: str, raw: Raw) -> Found | None:
    is_empty = not (raw.strip() if isinstance(raw, str) else raw)
    return None if is_empty else Found(source, place, raw)


def malformed(option: Option, place: str, reason: str, raw: Raw | None = None) -> UsageError:
    """The error for a value that is there but cannot be used. ``raw`` is shown when it is a text and no secret."""
    shown = f" {raw!r}" if isinstance(raw, str) and not option.secret else ""
    remedy = "check the path" if option.kind is Kind.FILE and isinstance(raw, str) else f"write it like {option.example}"
    return UsageError(f"{option.name}{shown} ({place}) {reason}", remedy)
