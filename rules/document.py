"""A YAML file of rules or routes, read strictly: every problem is noted with its line, and all of them are reported at once.

Scalars are texts (``shared.config.yaml_nodes``): ``value: 0123`` is the text 0123, and whether that is a number depends
on the column's type.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from difflib import get_close_matches

import orjson
import yaml

from pgsluice.shared.config.kinds import parse_switch
from pgsluice.shared.config.yaml_nodes import (
    MOST_MISTAKES,
    MOST_SUGGESTIONS,
    OF_FILES,
    Extent,
    InvalidYamlError,
    compose,
    is_null,
    is_plain,
    line_of,
    read_text,
)
from pgsluice.shared.errors import UsageError

_MANY = 999_999_999


@dataclass(slots=True)
class Problems:
    """The problems of one file."""

    path: str
    _found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, where: str, text: str) -> None:
        self._found.append((line, f"{where}: {text}" if where else text))

    def suggestion(self, text: str, choices: Collection[str]) -> str:
        """Returns a hint at what ``text`` may have been meant for; "" when there are many problems already, because the search
        takes time."""
        if len(self._found) >= MOST_SUGGESTIONS:
            return ""
        close = get_close_matches(text, choices, n=1)
        return f" (did you mean '{close[0]}'?)" if close else f" (known: {', '.join(choices)})"

    def check(self) -> None:
        """Raises UsageError when there are any."""
        lines = [f"{self.path}:{line}: {text}" for line, text in sorted(set(self._found))]
        if len(lines) == 1:
            raise UsageError(lines[0], "correct the file")
        if lines:
            listed = "".join(f"\n  {line}" for line in lines[:MOST_MISTAKES])
            listed += "\n  and more" if len(lines) > MOST_MISTAKES else ""
            raise UsageError(f"{self.path} has {len(lines)} problems{listed}\n{self.path}", "correct the file")


def open_document(path: str, kind: str, text: str | None = None, most: Extent = OF_FILES) -> tuple[YamlMapping, Problems]:
    """Returns the root mapping of the file, or of ``text``, which ``path`` only names. ``kind`` names the file's kind
    in messages. Raises UsageError when it cannot be read, is not YAML, is not a mapping or holds more than ``most``."""
    try:
        document = compose(read_text(path, kind) if text is None else text, most)
    except InvalidYamlError as error:
        place = f"{path}:{error.line}" if error.line else path
        raise UsageError(f"{place}: not valid YAML", error.problem) from None
    root, problems = document.root, Problems(path)
    if not isinstance(root, yaml.MappingNode):
        line = line_of(root) if root else 1
        raise UsageError(f"{path}:{line}: not a mapping of keys to values", f"docs/how-to/{kind.split()[0]}.md shows a {kind}")
    for key, first_line in document.repeated:
        problems.add(line_of(key), "", f"{key.value} occurs twice (see line {first_line})")
    return YamlMapping(root, "", problems), problems


class YamlMapping:
    """A mapping of the file. A key whose value has the wrong shape is noted as a problem, and taken for absent.

    ``where`` begins the problems of this mapping: "table 'users', rule 2".
    """

    def __init__(self, node: yaml.MappingNode, where: str, problems: Problems) -> None:
        self.where = where
        self.line = line_of(node)
        self._node = node
        self._problems = problems
        self._entries = {str(key.value): (key, value) for key, value in node.value}

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def problem(self, text: str, key: str | None = None) -> None:
        """Notes ``text`` at the line of ``key``, or of the mapping."""
        entry = self._entries.get(key) if key is not None else None
        self._problems.add(line_of(entry[0]) if entry else self.line, self.where, text)

    def text(self, key: str) -> str | None:
        """Returns a scalar's characters; None when the key is absent or has no value."""
        node = self._value(key)
        if node is None:
            return None
        if not isinstance(node, yaml.ScalarNode):
            self.problem(f"{key} is not a single value", key)
            return None
        return None if is_null(node) else str(node.value)

    def word(self, key: str, choices: Collection[str]) -> str | None:
        """Returns one of ``choices``, which ``null`` may be among; None when the key is absent."""
        node = self._value(key)
        if node is None:
            return None
        word = str(node.value) if isinstance(node, yaml.ScalarNode) else ""
        if word not in choices:
            self.problem(f"{key} is none of {', '.join(choices)}", key)
            return None
        return word

    def required_text(self, key: str, example: str) -> str | None:
        """Like ``text``, but absence is a problem."""
        text = self.text(key)
        if text is None and (key not in self._entries or self.is_empty(key)):
            self.problem(f"{key} is missing (write one, like '{key}: {example}')", key)
        return text

    def choice(self, key: str, choices: Collection[str]) -> str | None:
        """Returns a required text out of ``choices``."""
        text = self.required_text(key, next(iter(choices)))
        if text is not None and text not in choices:
            self.problem(f"{key} '{text}' is unknown{self._problems.suggestion(text, choices)}", key)
            return None
        return text

    def switch(self, key: str) -> bool | None:
        text = self.text(key)
        if text is None:
            return None
        try:
            return parse_switch(text)
        except ValueError as error:
            self.problem(f"{key} '{text}' {error}", key)
            return None

    def number(self, key: str, default: int, *, at_least: int = 0, at_most: int = _MANY) -> int:
        text = self.text(key)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 10 and at_least <= int(text) <= at_most):
            end = "on" if at_most == _MANY else f"to {at_most}"
            self.problem(f"{key} '{text}' is not a whole number from {at_least} {end}", key)
            return default
        return int(text)

    def texts(self, key: str) -> list[str] | None:
        """Returns a list of scalars; None when the key is absent."""
        node = self._value(key)
        if node is None or is_null(node):
            return None
        if not isinstance(node, yaml.SequenceNode) or not all(isinstance(item, yaml.ScalarNode) for item in node.value):
            self.problem(f"{key} is not a list of texts", key)
            return None
        return [str(item.value) for item in node.value]

    def mapping(self, key: str) -> YamlMapping | None:
        """Returns a mapping inside this one, with the same ``where``; None when the key is absent."""
        node = self._value(key)
        if node is None or is_null(node):
            return None
        if not isinstance(node, yaml.MappingNode):
            self.problem(f"{key} is not a mapping of keys to values", key)
            return None
        return YamlMapping(node, self.where, self._problems)

    def mappings(self, key: str, where: str | None = None) -> list[YamlMapping] | None:
        """Returns a list of mappings; None when the key is absent. With ``where``, the n-th one's begins with it and
        ends with n."""
        node = self._value(key)
        if node is None or is_null(node):
            return None
        if not isinstance(node, yaml.SequenceNode):
            self.problem(f"{key} is not a list", key)
            return None
        found = []
        for number, item in enumerate(node.value, 1):
            item_where = self.where if where is None else f"{where} {number}"
            if isinstance(item, yaml.MappingNode):
                found.append(YamlMapping(item, item_where, self._problems))
            else:
                self._problems.add(line_of(item), item_where, "is not a mapping of keys to values")
        return found

    def plain(self, key: str) -> object:
        """Returns the value, whatever its shape: texts, lists and dictionaries, None for no value."""
        node = self._value(key)
        return None if node is None else _plain(node)

    def typed(self, key: str) -> object:
        """Like ``plain``, but a scalar without quotes that is a number, true or false in JSON becomes that."""
        node = self._value(key)
        return None if node is None else _typed(node)

    def is_empty(self, key: str) -> bool:
        """Returns whether the key exists without a value."""
        return key in self._entries and is_null(self._entries[key][1])

    def is_list(self, key: str) -> bool:
        return key in self._entries and isinstance(self._entries[key][1], yaml.SequenceNode)

    def is_mapping(self, key: str) -> bool:
        return key in self._entries and isinstance(self._entries[key][1], yaml.MappingNode)

    def is_list_of_mappings(self, key: str) -> bool:
        """Returns whether the key holds a list that is not empty, of mappings alone."""
        node = self._value(key)
        return (
            isinstance(node, yaml.SequenceNode)
            and bool(node.value)
            and all(isinstance(item, yaml.MappingNode) for item in node.value)
        )

    def keys(self) -> list[str]:
        """Returns the keys in file order."""
        return list(self._entries)

    def line_of(self, key: str) -> int:
        return line_of(self._entries[key][0])

    def finish(self, known: Collection[str]) -> None:
        """Notes the keys that are not among ``known``."""
        for key in self._entries:
            if key not in known:
                self.problem(f"unknown key '{key}'{self._problems.suggestion(key, known)}", key)

    def digest(self) -> str:
        """Returns the SHA-256 of the mapping's content, in hexadecimal: independent of comments, layout, quotes and the
        sequence of keys within values, but not of the sequence of its own keys."""
        content = [[key, _plain(value)] for key, (_, value) in self._entries.items()]
        return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()

    def _value(self, key: str) -> yaml.Node | None:
        entry = self._entries.get(key)
        return entry[1] if entry else None


def _plain(node: yaml.Node) -> object:
    match node:
        case yaml.MappingNode():
            return {str(key.value): _plain(value) for key, value in node.value}
        case yaml.SequenceNode():
            return [_plain(item) for item in node.value]
        case _:
            return None if is_null(node) else str(node.value)


def _typed(node: yaml.Node) -> object:
    match node:
        case yaml.MappingNode():
            return {str(key.value): _typed(value) for key, value in node.value}
        case yaml.SequenceNode():
            return [_typed(item) for item in node.value]
        case yaml.ScalarNode(value=str(text)) if is_plain(node) and not is_null(node):
            try:
                return orjson.loads(text)
            except orjson.JSONDecodeError:
                return text
        case _:
            return _plain(node)
