"""Merges the layers into the values of one command, and reports everything that is wrong at once."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence

from shared.config.checks import problems_between
from shared.config.file import NO_FILE, ConfigFile, read_config_file
from shared.config.layers import DefaultLayer, EnvironmentLayer, FileLayer, FlagLayer, Flags, Found, Layer, malformed
from shared.config.spark import full_names
from shared.config.values import Values
from shared.errors import UsageError
from shared.kinds import Kind, Value, parse
from shared.options import BY_NAME, OPTIONS, Option, Role, options_of

HOME_FILE = "~/.pgsluice.yaml"

_FILE_KEYS = [option.name for option in OPTIONS if option.name != "config"]
_FILE_OF = {option.content_of: option for option in OPTIONS if option.content_of}


def load(flags: Flags, environment: Mapping[str, str], *roles: Role) -> Values:
    """The values that a command with ``roles`` reads; raises one UsageError that names everything wrong with them.

    Keys of other roles are known, but not read: a ``${VAR}`` in them may be unset.
    """
    file = _config_file(flags, environment)
    layers = (FlagLayer(flags), EnvironmentLayer(environment), FileLayer(file, environment), DefaultLayer())
    problems = [*file.problems, *_unknown_keys(file)]
    values: dict[str, Value] = {}
    places: dict[str, str] = {}
    for option in options_of(*roles):
        if option.name == "config" or option.content_of:
            continue
        try:
            resolved = _resolve(option, layers)
            if resolved is not None:
                values[option.name], places[option.name] = resolved
            elif not set(roles).isdisjoint(option.required):
                raise _missing(option, file)
        except UsageError as problem:
            problems.append(problem)
    merged = Values(values, places)
    problems += problems_between(merged, roles, lambda name: _missing(BY_NAME[name], file))
    if problems:
        raise _all_in_one(problems)
    return merged


def _config_file(flags: Flags, environment: Mapping[str, str]) -> ConfigFile:
    option = BY_NAME["config"]
    found = FlagLayer(flags).look(option) or EnvironmentLayer(environment).look(option)
    if found is not None:
        return read_config_file(_text(option, found))
    home_file = os.path.expanduser(HOME_FILE)
    return read_config_file(home_file) if os.path.exists(home_file) else NO_FILE


def _resolve(option: Option, layers: Sequence[Layer]) -> tuple[Value, str] | None:
    """The winning value and its place; None when no layer has one. Raises UsageError when the winner cannot be used."""
    if option.kind is Kind.PAIRS:
        return _merged_pairs(option, layers)
    found = _first(option, layers)
    file_option = _FILE_OF.get(option.name)
    found_file = _first(file_option, layers) if file_option else None
    if file_option and found_file and (found is None or found_file.source <= found.source):
        if found is not None and found.source == found_file.source:
            raise UsageError(f"{option.name} and {file_option.name} are both given ({found_file.place})", "give one of them")
        return _content(option, _text(file_option, found_file), found_file.place), found_file.place
    return None if found is None else (_parse(option, found), found.place)


def _first(option: Option, layers: Sequence[Layer]) -> Found | None:
    return next((found for layer in layers if (found := layer.look(option)) is not None), None)


def _merged_pairs(option: Option, layers: Sequence[Layer]) -> tuple[Value, str] | None:
    """Each entry of the mapping is a key of its own: the first layer that has the entry wins it."""
    merged: dict[str, str] = {}
    places = []
    for layer in layers:
        found = layer.look(option)
        if found is None:
            continue
        pairs = _parse(option, found)
        assert isinstance(pairs, dict)
        try:
            merged = (full_names(pairs) if option.name == "spark" else pairs) | merged
        except ValueError as error:
            raise malformed(option, found.place, str(error)) from None
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
        return _within(option, parse(option.kind, raw))
    except ValueError as error:
        raise malformed(option, found.place, str(error), raw) from None


def _within(option: Option, value: Value) -> Value:
    """``value`` itself, choices in lower case; raises ValueError when it is outside of what the option allows."""
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
    """The secret in a file, without the line end that editors and shells add."""
    try:
        with open(path, encoding="utf-8") as file:
            content = file.read().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option.name}: {path} ({place}) cannot be read ({type(error).__name__})", "check the file") from None
    if not content:
        raise UsageError(f"{option.name}: {path} ({place}) is empty", f"write the {option.name} into it, or do not give the file")
    return content


def _missing(option: Option, file: ConfigFile) -> UsageError:
    where = (
        f"'{option.name}:' in {file.path}" if file.path else f"'{option.name}:' in a file given with --config (none was given)"
    )
    example = f"for example {option.flag} {option.example}"
    return UsageError(f"{option.name} is not set", f"give {option.flag}, {option.variable} or {where}; {example}")


def _unknown_keys(file: ConfigFile) -> Iterator[UsageError]:
    for key, entry in file.entries.items():
        if key not in _FILE_KEYS:
            nearest = difflib.get_close_matches(key, _FILE_KEYS, n=1)
            remedy = f"did you mean '{nearest[0]}'?" if nearest else "remove it; config.example.yaml lists every key"
            yield UsageError(f"unknown key '{key}' ({file.path}, line {entry.line})", remedy)


def _all_in_one(problems: Sequence[UsageError]) -> UsageError:
    if len(problems) == 1:
        return problems[0]
    lines = "".join(f"\n  - {problem}" for problem in problems)
    return UsageError(f"the configuration has {len(problems)} mistakes", f"correct each of these{lines}")
