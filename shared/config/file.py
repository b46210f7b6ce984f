"""The configuration file as text: its keys, their lines and their values.

In a value, ``${NAME}`` means an environment variable and ``${NAME:-text}`` for the variable or, when it is unset or
empty, the text. ``$${`` is a plain ``${``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import yaml

from pgsluice.shared.config.kinds import Raw
from pgsluice.shared.config.yaml_nodes import (
    OF_FILES,
    Extent,
    InvalidYamlError,
    YamlDocument,
    compose,
    is_null,
    line_of,
    read_text,
)
from pgsluice.shared.errors import UsageError

_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?:(:-)([^}]*))?\}|\$\{")


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """The line and value of one key. ``raw`` is None for a key without a value. Values are kept out of ``repr``."""

    line: int
    raw: Raw | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One file's top-level keys, each at most once. ``problems`` are the things wrong with it that leave the rest readable."""

    path: str
    entries: dict[str, ConfigEntry]
    problems: tuple[UsageError, ...]


NO_FILE = ConfigFile("", {}, ())
"""No file was given, and none is in the home directory."""


def read_config_file(path: str) -> ConfigFile:
    """Raises UsageError when the file cannot be read, is not YAML or is not a mapping."""
    return parse_config_file(path, read_text(path, "configuration file"))


def parse_config_file(path: str, text: str, most: Extent = OF_FILES) -> ConfigFile:
    """Parses ``text``, the content of ``path``; raises UsageError when it is not YAML or not a mapping."""
    try:
        document = compose(text, most)
    except InvalidYamlError as error:
        place = f"{path}, line {error.line}, column {error.column}" if error.line else path
        raise UsageError(f"{place}: not valid YAML", error.problem) from None
    root = document.root
    if root is None or is_null(root):
        return ConfigFile(path, {}, ())
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(
            f"{path}, line {line_of(root)}: not a mapping of keys to values",
            "write one 'key: value' a line, like 'group: orders'",
        )
    return _entries(path, root, document)


def _entries(path: str, root: yaml.MappingNode, document: YamlDocument) -> ConfigFile:
    first_lines = {id(repeated.key): repeated.first_line for repeated in document.repeated}
    entries: dict[str, ConfigEntry] = {}
    problems = []
    for key_node, value_node in root.value:
        key, line = str(key_node.value), line_of(key_node)
        try:
            entry = ConfigEntry(line, _raw(value_node, first_lines))
        except ValueError as error:
            problems.append(UsageError(f"{path}, line {line_of(value_node)}: {key} {error}", "see config.example.yaml"))
            entry = ConfigEntry(line, None)
        if id(key_node) in first_lines:
            remedy = f"remove it here or in line {first_lines[id(key_node)]}"
            problems.append(UsageError(f"{path}, line {line}: {key} occurs twice", remedy))
        else:
            entries[key] = entry
    return ConfigFile(path, entries, tuple(problems))


def _raw(node: yaml.Node, repeated: Collection[int]) -> Raw | None:
    """``repeated`` are the ids of the keys that their mapping has already."""
    match node:
        case yaml.ScalarNode():
            return _scalar(node)
        case yaml.SequenceNode():
            return tuple(text for item in node.value if (text := _scalar(item)))
        case yaml.MappingNode():
            pairs: dict[str, str] = {}
            for key_node, value_node in node.value:
                if id(key_node) in repeated:
                    raise ValueError(f"holds {key_node.value} twice")
                pairs[str(_scalar(key_node))] = _scalar(value_node) or ""
            return pairs
    raise ValueError("is neither a text, a list nor a mapping")


def _scalar(node: yaml.Node) -> str | None:
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError("is nested deeper than one level")
    return None if is_null(node) else str(node.value)


def expand(raw: Raw, environment: Mapping[str, str]) -> Raw:
    """Returns ``raw`` with its references replaced; raises ValueError, without the value, for a variable that is not
    set."""
    match raw:
        case str():
            return _expand_text(raw, environment)
        case tuple():
            return tuple(expanded for text in raw if (expanded := _expand_text(text, environment)))
        case _:
            return {key: _expand_text(text, environment) for key, text in raw.items()}


def variables_in(text: str) -> set[str]:
    """Returns the environment variables that ``text`` refers to."""
    return {match[1] for match in _REFERENCE.finditer(text) if match[1]}


def _expand_text(text: str, environment: Mapping[str, str]) -> str:
    def replacement(match: re.Match[str]) -> str:
        name, has_default, default = match.groups()
        if match[0] == "$${":
            return "${"
        if name is None:
            raise ValueError("holds a '${' that is not ${NAME} or ${NAME:-text}")
        value = environment.get(name)
        if has_default:
            return value or default
        if value is None:
            raise ValueError(f"refers to the environment variable {name}, which is not set")
        return value

    return _REFERENCE.sub(replacement, text)
