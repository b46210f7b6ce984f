"""Merges the four places of an option into the values of one command, and reports all mistakes at once.

Each place is a layer, sorted by precedence. A layer finds an option's raw value or None. An empty value is None in
every layer, so that an empty variable of a compose file or a ``${VAR:-}`` falls through to the next layer. ``notices``
lists settings that are no mistakes, but have no effect, or were renamed.
"""

from __future__ import annotations

import difflib
import enum
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pgsluice.shared.config.declaration import CONFIG, options_of, problems_of
from pgsluice.shared.config.file import NO_FILE, ConfigFile, expand, parse_config_file, read_config_file
from pgsluice.shared.config.kinds import Kind, Raw, Value, parse, parse_flag_pairs, parse_list
from pgsluice.shared.config.option import PG_FLO_PREFIX, PREFIX, Option
from pgsluice.shared.config.postgres_url import url_parts
from pgsluice.shared.config.values import FileSecret, Notice, Values, missing_option, read_secret
from pgsluice.shared.config.yaml_nodes import MOST_MISTAKES, MOST_SUGGESTIONS
from pgsluice.shared.errors import UsageError

Flags = Mapping[str, str | tuple[str, ...]]
"""Flags by option name, as typed; a tuple for a flag that may be repeated. A flag that was not given is absent."""

_REFERENCE_REMEDY = "set the variable, give a default as in ${NAME:-text}, or write $${ for a plain ${"


HOME_FILE = "~/.pgsluice.yaml"
_TYPING_ERROR = 0.85
"""Similarity (difflib's ratio) from which an unknown variable is taken for a misspelt one."""


class ValueSource(enum.IntEnum):
    """The origin of a value. The lower wins."""

    FLAG = 1
    ENVIRONMENT = 2
    FILE = 3
    DEFAULT = 4


@dataclass(frozen=True, slots=True)
class Found:
    """An option's value as written in one layer, and its place, in words."""

    source: ValueSource
    place: str
    raw: Raw = field(repr=False)


class Layer(Protocol):
    def look(self, option: Option) -> Found | None:
        """Finds the option's value in this layer. Raises UsageError when the text there is no possible value."""
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
        return _found(ValueSource.FLAG, option.flag, raw)


@dataclass(frozen=True, slots=True)
class GivenLayer:
    """Texts given by a program that uses pgsluice as a library."""

    texts: Mapping[str, str] = field(repr=False)

    def look(self, option: Option) -> Found | None:
        return _found(ValueSource.FLAG, "given", self.texts.get(option.name, ""))


@dataclass(frozen=True, slots=True)
class EnvironmentLayer:
    environment: Mapping[str, str] = field(repr=False)

    def look(self, option: Option) -> Found | None:
        """Reads pg_flo's variable if pgsluice's is not set, so that a service that ran pg_flo starts unchanged."""
        names = (option.variable, option.pg_flo_variable)
        found = (_found(ValueSource.ENVIRONMENT, name, self.environment.get(name, "")) for name in names)
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
        return _found(ValueSource.FILE, place, raw)


@dataclass(frozen=True, slots=True)
class DefaultLayer:
    def look(self, option: Option) -> Found | None:
        return _found(ValueSource.DEFAULT, "default", option.default)


def _found(source: ValueSource, place: str, raw: Raw) -> Found | None:
    is_empty = not (raw.strip() if isinstance(raw, str) else raw)
    return None if is_empty else Found(source, place, raw)


def malformed(option: Option, place: str, reason: str, raw: Raw | None = None) -> UsageError:
    """Returns the error for a value that cannot be used. ``raw`` is shown when it is a text and no secret; pairs can
    contain one."""
    shown = f" {raw!r}" if isinstance(raw, str) and not option.secret and option.kind is not Kind.PAIRS else ""
    remedy = "check the path" if option.kind is Kind.FILE and isinstance(raw, str) else f"write it like {option.example}"
    return UsageError(f"{option.name}{shown} ({place}) {reason}", remedy)


def load(flags: Flags, environment: Mapping[str, str], *settings: type[Any], known: Collection[Option]) -> Values:
    """Returns the values that a command with these settings reads; raises one UsageError that names every error.

    ``known`` are the options of all commands: a file may contain their keys too. They are not read: a ``${VAR}`` in
    them may be unset.
    """
    return _load(_config_file(flags, environment), flags, environment, settings, known)


def load_text(path: str, text: str, environment: Mapping[str, str], *settings: type[Any], known: Collection[Option]) -> Values:
    """Like ``load``, for a configuration file's text without flags; errors name it as ``path``."""
    return _load(parse_config_file(path, text), {}, environment, settings, known)


def _load(
    file: ConfigFile, flags: Flags, environment: Mapping[str, str], settings: Sequence[type[Any]], known: Collection[Option]
) -> Values:
    layers = (FlagLayer(flags), EnvironmentLayer(environment), FileLayer(file, environment), DefaultLayer())
    return _merged(layers, [*file.problems, *unknown_keys(file, known)], file.path, settings)


def load_given(given: Mapping[str, str], *settings: type[Any]) -> Values:
    """Like ``load``, from texts by option name alone, without a command. Raises UsageError for other names too."""
    names = [option.name for option in options_of(*settings) if option is not CONFIG]
    problems = [UsageError(f"there is no option '{name}'", _nearest(name, names)) for name in given if name not in names]
    return _merged((GivenLayer(given), DefaultLayer()), problems, None, settings)


def _merged(layers: Sequence[Layer], problems: list[UsageError], file: str | None, settings: Sequence[type[Any]]) -> Values:
    options = {option.name: option for option in options_of(*settings)}
    values: dict[str, Value] = {}
    places: dict[str, str] = {}
    urls = _Urls(layers)
    for option in options.values():
        if option is CONFIG or option.content_of:
            continue
        try:
            if option.kind is Kind.DATABASE:
                urls.read(option)
                continue
            resolved = _resolve(option, layers, urls)
            if resolved is not None:
                values[option.name], places[option.name] = resolved
            elif option.required and not urls.is_unreadable(option.url):
                raise missing_option(option, file)
        except UsageError as problem:
            problems.append(problem)
    merged = Values(values, places, options, file)
    for declared in settings:
        problems += problems_of(declared, merged)
    if problems:
        raise all_in_one(problems)
    return merged


def _nearest(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean '{close[0]}'?" if close else f"there are {', '.join(names)}"


def _config_file(flags: Flags, environment: Mapping[str, str]) -> ConfigFile:
    found = FlagLayer(flags).look(CONFIG) or EnvironmentLayer(environment).look(CONFIG)
    if found is not None:
        return read_config_file(_text(CONFIG, found))
    home_file = os.path.expanduser(HOME_FILE)
    return read_config_file(home_file) if os.path.exists(home_file) else NO_FILE


@dataclass(frozen=True, slots=True)
class _Way:
    """The option that gave a value, the value, and its layer."""

    option: Option
    found: Found
    layer: Layer = field(repr=False)
    url_file: str = ""
    """The file that holds the URL that contains the value."""


class _Urls:
    """The databases' URLs, each taken from the layer that wins. The parts of a URL rank as values of that layer: a
    nearer layer overrides them, and a farther one fills in parts that the URL leaves out. No setting holds the URL
    itself."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._read: dict[str, tuple[_Way, Mapping[str, str]] | None] = {}

    def read(self, option: Option) -> None:
        """Reads the URL; call it before asking for its parts. Raises UsageError when it cannot be used."""
        self._read[option.name] = None
        way = _nearest_way(option, self._layers)
        if way is None:
            del self._read[option.name]
            return
        url = _parse(option, _read_file(option, way))
        assert isinstance(url, str)
        file = _text(way.option, way.found) if way.option.content_of else ""
        self._read[option.name] = replace(way, url_file=file), url_parts(url)

    def is_unreadable(self, url: str) -> bool:
        """Returns whether ``read`` raised: then the missing parts are unknown."""
        return self._read.get(url, ()) is None

    def part(self, option: Option) -> _Way | None:
        """Returns the URL's value for ``option``."""
        read = self._read.get(option.url)
        if read is None or option.parameter not in read[1]:
            return None
        way, parts = read
        return replace(way, found=replace(way.found, raw=parts[option.parameter]))


def _resolve(option: Option, layers: Sequence[Layer], urls: _Urls) -> tuple[Value, str] | None:
    """Returns the winning value and its place; None when no layer has one. Raises UsageError when the winner cannot be
    used."""
    if option.kind is Kind.PAIRS:
        return _merged_pairs(option, layers)
    way = _nearest_way(option, layers, urls.part(option))
    if way is None:
        return None
    value = _parse(option, _read_file(option, way))
    if isinstance(value, str) and way.option.content_of == option.name:
        value = FileSecret(value, _text(way.option, way.found))
    elif isinstance(value, str) and option.secret and way.url_file:
        value = FileSecret(value, way.url_file, option.parameter)
    return value, way.found.place


def _nearest_way(option: Option, layers: Sequence[Layer], part: _Way | None = None) -> _Way | None:
    """Finds the nearest layer that has the option itself, its file's option, or the ``part`` of a URL; ignores farther
    layers. Raises UsageError when one layer has it in two ways."""
    for layer in layers:
        named = filter(None, (option, option.file_option))
        ways = [_Way(each, found, layer) for each in named if (found := layer.look(each)) is not None]
        if part is not None and part.layer is layer:
            ways.append(part)
        if len(ways) > 1:
            first, second = ways[0].option.name, ways[1].option.name
            raise UsageError(f"{first} and {second} are both given ({ways[1].found.place})", "give one of them")
        if ways:
            return ways[0]
    return None


def _read_file(option: Option, way: _Way) -> Found:
    """Returns the value, with the file's content in place of its path if a file was given."""
    found = way.found
    if way.option.content_of != option.name:
        return found
    return replace(found, raw=_content(option, _text(way.option, found), found.place))


def _merged_pairs(option: Option, layers: Sequence[Layer]) -> tuple[Value, str] | None:
    """Merges a mapping entry by entry: the nearest layer that has the entry wins it."""
    merged: dict[str, str] = {}
    places = []
    for layer in layers:
        found = layer.look(option)
        if found is None:
            continue
        pairs = _parse(option, found)
        assert isinstance(pairs, dict)
        merged = pairs | merged
        places.append(found.place)
    return (merged, ", ".join(places)) if places else None


def _text(option: Option, found: Found) -> str:
    value = _parse(option, found)
    assert isinstance(value, str)
    return value


def _parse(option: Option, found: Found) -> Value:
    raw = found.raw
    if isinstance(raw, str) and not option.secret:
        raw = raw.strip()
    if isinstance(raw, str) and raw.lower() in option.words:
        return raw.lower()
    try:
        value = _within(option, parse(option.kind, raw))
        return value if option.convert is None else option.convert(value)
    except ValueError as error:
        raise malformed(option, found.place, str(error), raw) from None
    except UsageError as error:
        raise UsageError(f"{error.fact} ({found.place})", error.remedy) from None


def _within(option: Option, value: Value) -> Value:
    """Returns ``value`` itself, choices in lower case; raises ValueError when it is outside of what the option allows."""
    if option.choices:
        lowered = tuple(item.lower() for item in value) if isinstance(value, tuple) else str(value).lower()
        for item in lowered if isinstance(lowered, tuple) else (lowered,):
            if item not in option.choices:
                raise ValueError(f"is not {option.allowed}")
        return lowered
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        too_small = option.minimum is not None and value < option.minimum
        if too_small or (option.maximum is not None and value > option.maximum):
            raise ValueError(f"is not {option.allowed}")
    return value


def _content(option: Option, path: str, place: str) -> str:
    """Returns the secret in a file, without the line end that editors and shells add."""
    try:
        content = read_secret(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option.name}: {path} ({place}) cannot be read ({type(error).__name__})", "check the file") from None
    if not content:
        raise UsageError(f"{option.name}: {path} ({place}) is empty", f"write the {option.name} into it, or do not give the file")
    return content


def unknown_keys(file: ConfigFile, known: Collection[Option]) -> Iterator[UsageError]:
    keys = [option.name for option in known if option is not CONFIG]
    unknown = file.entries.keys() - set(keys)
    for key in filter(unknown.__contains__, file.entries):
        nearest = difflib.get_close_matches(key, keys, n=1) if len(unknown) <= MOST_SUGGESTIONS else []
        remedy = f"did you mean '{nearest[0]}'?" if nearest else "remove it; config.example.yaml lists every key"
        yield UsageError(f"unknown key '{key}' ({file.path}, line {file.entries[key].line})", remedy)


def all_in_one(problems: Sequence[UsageError]) -> UsageError:
    if len(problems) == 1:
        return problems[0]
    lines = "".join(f"\n  - {problem}" for problem in problems[:MOST_MISTAKES])
    lines += "\n  - and more" if len(problems) > MOST_MISTAKES else ""
    return UsageError(f"the configuration has {len(problems)} mistakes", f"correct each of these{lines}")


def notices(values: Values, environment: Mapping[str, str], known: Collection[Option]) -> Iterator[Notice]:
    """Yields names and places only, never a value. ``known`` are the options of all commands."""
    for name, place in values.places.items():
        if values.options[name].no_effect:
            yield Notice(name, place, values.options[name].no_effect)
    yield from _misspelt(environment, known)
    yield from _of_pg_flo(values, environment, known)


def _misspelt(environment: Mapping[str, str], known: Collection[Option]) -> Iterator[Notice]:
    variables = {option.variable for option in known}
    for name in sorted(environment):
        ours = PREFIX + name.removeprefix(PG_FLO_PREFIX) if name.startswith(PG_FLO_PREFIX) else name
        if ours.startswith(PREFIX) and ours not in variables and environment[name].strip():
            nearest = difflib.get_close_matches(ours, variables, n=1, cutoff=_TYPING_ERROR)
            if nearest:
                yield Notice(name, "environment", f"no such variable; did you mean {nearest[0]}?")


def _of_pg_flo(values: Values, environment: Mapping[str, str], known: Collection[Option]) -> Iterator[Notice]:
    """Yields notices for variables that lost to a different value of pgsluice's own, and one notice for all that are
    read."""
    used = {place for places in values.places.values() for place in places.split(", ")}
    renamed = {}
    for option in sorted(known, key=lambda option: option.name):
        theirs = environment.get(option.pg_flo_variable, "").strip()
        if option.pg_flo_variable in used:
            renamed[option.pg_flo_variable] = option.variable
        elif theirs and option.variable in used and theirs != environment[option.variable].strip():
            reason = f"{option.variable} has another value, and wins: remove one of them"
            yield Notice(option.pg_flo_variable, "environment", reason)
    if renamed:
        new_names = ", ".join(renamed[name] for name in sorted(renamed))
        message = "variables of pg_flo are read: rename them"
        yield Notice(", ".join(sorted(renamed)), "environment", f"they are called {new_names} here", message)
