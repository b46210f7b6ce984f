"""Declares settings: a dataclass whose fields name their options.

    @settings
    class LogSettings:
        level: str = read(Option("log-level", Kind.TEXT, "Least important events to log", "info", "info"), then=str.upper)
        format: str = read(Option("log-format", Kind.TEXT, "Form of the log", "json", "text"))

The field declares the option completely: ``options_of`` makes the flags of a command of it, the loader (``load``) looks
for its value, and ``make`` builds the object. An option that several classes read is a constant. ``part`` nests another
class; for one of several databases its options get a prefix. An option that no field holds, because it only takes part
in a check or has no effect, is a class variable (or a tuple of options). Help shows fields and such variables in their
order.

A class with checks across options has a static method ``problems(values)``: it yields a UsageError for each mistake
that no single option can detect. ``values`` are those of the class, without its prefix.

No field has a default, so code that makes the object by hand names every value. Secrets are not in its ``repr``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, dataclass_transform

from pgsluice.shared.config.kinds import Kind, Value
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError

T = TypeVar("T")

_SOURCE = "pgsluice.source"
"""Key in a field's metadata."""

CONFIG = Option(
    "config",
    Kind.FILE,
    "YAML configuration file (default: ~/.pgsluice.yaml, if it exists)",
    "pgsluice.yaml",
)
"""Every command takes it; no settings hold it."""


@dataclass(frozen=True, slots=True)
class _FromOption:
    option: Option
    then: Callable[[Any], Any] | None
    otherwise: Callable[[Values], Any] | None

    def options(self) -> Iterator[Option]:
        yield self.option

    def problems(self, values: Values) -> Iterator[UsageError]:
        return iter(())

    def value(self, values: Values) -> Any:
        name = self.option.name
        if self.otherwise is not None and not values.given(name):
            return self.otherwise(values)
        found: Value = values.get(name, self.option.absent)
        if self.option.words:
            found = str(found)
        return found if self.then is None else self.then(found)


@dataclass(frozen=True, slots=True)
class _Part:
    settings: type[Any]
    prefix: str
    database: str
    when: Callable[[Values], bool] | None

    def options(self) -> Iterator[Option]:
        for option in _options(self.settings):
            placed = option.of_database(self.prefix, self.database) if self.database else option
            yield placed if self.when is None else replace(placed, required=False)

    def problems(self, values: Values) -> Iterator[UsageError]:
        inner = values.under(self.prefix)
        if self.when is not None and self.when(inner):
            for option in _options(self.settings):
                if option.required and not inner.given(option.name):
                    yield inner.missing(option.name)
        yield from problems_of(self.settings, inner)

    def value(self, values: Values) -> Any:
        inner = values.under(self.prefix)
        return make(self.settings, inner) if self.when is None or self.when(inner) else None


def read(option: Option, *, then: Callable[[Any], Any] | None = None, otherwise: Callable[[Values], Any] | None = None) -> Any:
    """Returns a field that holds ``option``'s value: ``then`` turns it into the field's, ``otherwise`` makes one when
    it was not given."""
    is_shown = not option.secret and option.kind is not Kind.PAIRS
    return field(repr=is_shown, metadata={_SOURCE: _FromOption(option, then, otherwise)})


def part(settings: type[T], *, prefix: str = "", database: str = "", when: Callable[[Values], bool] | None = None) -> T:
    """Declares a field that holds settings of another class. ``database`` is the name of their database in help. With
    ``when`` nothing in it is required, and the field is None unless ``when`` returns true: then it must be complete."""
    made: T = field(metadata={_SOURCE: _Part(settings, prefix, database, when)})
    return made


@dataclass_transform(frozen_default=True, field_specifiers=(read, part))
def settings(declared: type[T]) -> type[T]:
    """Makes a class of settings: a frozen dataclass with slots."""
    return dataclass(frozen=True, slots=True)(declared)


def options_of(*classes: type[Any]) -> tuple[Option, ...]:
    """Returns the options that a command with these settings reads, each once, as declared."""
    found = {CONFIG.name: CONFIG}
    for declared in classes:
        for option in _options(declared):
            found.setdefault(option.name, option)
            if option.file_option is not None:
                found.setdefault(option.file_option.name, option.file_option)
    return tuple(found.values())


def problems_of(declared: type[Any], values: Values) -> Iterator[UsageError]:
    """Yields the errors in ``values`` as a whole: of the parts first, then of the class itself."""
    for source in _sources(declared).values():
        yield from source.problems(values)
    own = getattr(declared, "problems", None)
    if own is not None:
        yield from own(values)


def make(declared: type[T], values: Values) -> T:
    """Returns the settings that ``values`` hold. Nothing is validated here and nothing can fail: the loader did that."""
    return declared(**{name: source.value(values) for name, source in _sources(declared).items()})


def files_of(made: Any) -> list[str]:
    """Returns the files that settings name, without unset ones."""
    found: list[str] = []
    for name, source in _sources(type(made)).items():
        value = getattr(made, name)
        match source:
            case _Part():
                found += files_of(value) if value is not None else []
            case _FromOption(option=option):
                found += [value] if option.kind is Kind.FILE and value and value not in option.words else []
    return found


def variables_of(made: Any) -> dict[str, str]:
    """Returns the variables by which another process reads the texts and switches of the same settings, secrets
    included, without defaults."""
    found = {}
    for name, source in _sources(type(made)).items():
        value = getattr(made, name)
        if isinstance(source, _FromOption) and isinstance(value, str | bool):
            text = value if isinstance(value, str) else str(value).lower()
            if text not in ("", source.option.default):
                found[source.option.variable] = text
    return found


def _sources(declared: type[Any]) -> dict[str, _FromOption | _Part]:
    return {each.name: each.metadata[_SOURCE] for each in fields(declared)}


def _options(declared: type[Any]) -> Iterator[Option]:
    """Yields the options, without file options of secrets."""
    sources = _sources(declared)
    for name in declared.__annotations__:
        if name in sources:
            yield from sources[name].options()
            continue
        match getattr(declared, name):
            case Option() as option:
                yield option
            case tuple() as several:
                yield from several
