"""The configuration equivalent to a command line: a file for replicator, worker and every other command of the group.

The processes of ``pgsluice up`` read this very file, so ``--print-config`` prints the running configuration. No secret
is in it: each is a reference to a variable, whose value only the processes get.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pgsluice.shared.config.kinds import Kind, Value
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.values import Values

_DEFAULT = "default"
"""The place of a value that was not given."""

_PLAIN = re.compile(r"[A-Za-z0-9/_.][A-Za-z0-9/_.-]*")
_NOTHING = ("null", "~")
"""YAML's texts for no value at all."""


@dataclass(frozen=True, slots=True)
class EquivalentConfiguration:
    """``text`` is YAML; ``variables`` are the ones that it refers to, with their values."""

    text: str
    variables: Mapping[str, str] = field(repr=False)


def equivalent_configuration(values: Values, added: Mapping[str, str]) -> EquivalentConfiguration:
    """Returns the configuration of the given values, from all places, and ``added``: options as texts, which come
    first."""
    variables: dict[str, str] = {}
    lines = [f"{name}: {_scalar(text)}" for name, text in added.items()]
    for option, value in _given(values):
        if option.name in added:
            continue
        if option.secret or option.kind is Kind.PAIRS:  # storage credentials may be among Spark's settings
            variables[option.variable] = _text(value)
            lines.append(f"{option.name}: ${{{option.variable}}}")
        else:
            lines.append(f"{option.name}: {_yaml(option, value)}")
    return EquivalentConfiguration("".join(f"{line}\n" for line in lines), variables)


def _given(values: Values) -> Iterator[tuple[Option, Value]]:
    for name, value in values.values.items():
        option = values.options[name]
        if values.places[name] != _DEFAULT and not option.no_effect:
            yield option, value


def _text(value: Value) -> str:
    """Returns the value as text of a variable."""
    match value:
        case dict():
            return json.dumps(value)
        case tuple():
            return ",".join(value)
        case _:
            return str(value)


def _yaml(option: Option, value: Value) -> str:
    match value:
        case str() if option.kind is Kind.FILE:  # others of the group may read it anywhere
            return _scalar(os.path.abspath(value))
        case bool():
            return "true" if value else "false"
        case tuple():
            return f"[{', '.join(_scalar(item) for item in value)}]"
        case int() | float() if option.kind is Kind.DURATION:
            return f"{value:.3f}s"
        case _:
            return _scalar(str(value))


def _scalar(text: str) -> str:
    """Returns the text plain if YAML leaves it alone; else in quotes, which JSON's are too."""
    text = text.replace("${", "$${")
    is_plain = _PLAIN.fullmatch(text) is not None and text.lower() not in _NOTHING
    return text if is_plain else "".join(map(_character, json.dumps(text, ensure_ascii=False)))


def _character(character: str) -> str:
    """Escapes characters that JSON leaves alone but that end lines in YAML."""
    return character if character.isprintable() else f"\\U{ord(character):08x}"
