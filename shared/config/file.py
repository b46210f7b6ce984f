"""The YAML file as text: which keys it holds, where, and what is written there.

The document is composed but not constructed: YAML's guesses at types (``no`` is false, ``0123`` is 83) are not made, every
scalar keeps its characters, and every key and value keeps its line, so that an error can name it.

In a value, ``${NAME}`` stands for an environment variable and ``${NAME:-text}`` for the variable or, when it is unset or
empty, the text. ``$${`` is a plain ``${``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

from pgsluice.shared.config.kinds import Raw
from pgsluice.shared.errors import UsageError

_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?:(:-)([^}]*))?\}|\$\{")
_QUOTED = re.compile(r"""(['"])(?!<).{2,}?\1""")
"""What PyYAML quotes from the document in its messages, which may be a secret; ``'<token>'`` is its own word."""
_NULLS = ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True, slots=True)
class Entry:
    """What the file says of one key. ``raw`` is None for a key without a value. Values are kept out of ``repr``."""

    line: int
    raw: Raw | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One file's top-level keys, each at most once. ``problems`` are the things wrong with it that leave the rest readable."""

    path: str
    entries: dict[str, Entry]
    problems: tuple[UsageError, ...]


NO_FILE = ConfigFile("", {}, ())
"""No file was given, and none is in the home directory."""


def read_config_file(path: str) -> ConfigFile:
    """Raises UsageError when the file cannot be read, is not YAML or is not a mapping."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise UsageError(
            f"configuration file {path} cannot be read ({error.strerror})", "check the path and its permissions"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"configuration file {path} is not UTF-8 (byte {error.start})", "save it as UTF-8") from None
    return parse_config_file(path, text)


def parse_config_file(path: str, text: str) -> ConfigFile:
    """What ``text``, the content of ``path``, says; raises UsageError when it is not YAML or not a mapping."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}, line {mark.line + 1}, column {mark.column + 1}" if mark else path
        problem = error.problem or "see the YAML specification"
        remedy = "indent with spaces, not with a tab" if r"'\t'" in problem else _QUOTED.sub("…", problem)
        raise UsageError(f"{place}: not valid YAML", remedy) from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not valid YAML", str(error).splitlines()[0]) from None
    if root is None or (isinstance(root, yaml.ScalarNode) and _scalar(root) is None):
        return ConfigFile(path, {}, ())
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(
            f"{path}, line {_line(root)}: not a mapping of keys to values", "write one 'key: value' a line, like 'group: orders'"
        )
    return _entries(path, root)


def _entries(path: str, root: yaml.MappingNode) -> ConfigFile:
    entries: dict[str, Entry] = {}
    problems = []
    for key_node, value_node in root.value:
        key = str(key_node.value)
        try:
            entry = Entry(_line(key_node), _raw(value_node))
        except ValueError as error:
            problems.append(UsageError(f"{path}, line {_line(value_node)}: {key} {error}", "see config.example.yaml"))
            entry = Entry(_line(key_node), None)
        if key in entries:
            problems.append(
                UsageError(f"{path}, line {entry.line}: {key} is there twice", f"remove it here or in line {entries[key].line}")
            )
        else:
            entries[key] = entry
    return ConfigFile(path, entries, tuple(problems))


def _raw(node: yaml.Node) -> Raw | None:
    match node:
        case yaml.ScalarNode():
            return _scalar(node)
        case yaml.SequenceNode():
            return tuple(text for item in node.value if (text := _scalar(item)))
        case yaml.MappingNode():
            pairs: dict[str, str] = {}
            for key_node, value_node in node.value:
                key = str(_scalar(key_node))
                if key in pairs:
                    raise ValueError(f"holds {key} twice")
                pairs[key] = _scalar(value_node) or ""
            return pairs
    raise ValueError("is neither a text, a list nor a mapping")


def _scalar(node: yaml.Node) -> str | None:
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError("is nested deeper than one level")
    if node.style is None and node.value in _NULLS:
        return None
    return str(node.value)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def expand(raw: Raw, environment: Mapping[str, str]) -> Raw:
    """``raw`` with its references replaced; raises ValueError, without the value, for a variable that is not set."""
    match raw:
        case str():
            return _expand_text(raw, environment)
        case tuple():
            return tuple(expanded for text in raw if (expanded := _expand_text(text, environment)))
        case _:
            return {key: _expand_text(text, environment) for key, text in raw.items()}


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
