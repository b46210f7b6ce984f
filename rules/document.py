"""A YAML file of rules or routes, read strictly: every problem is noted with its line, and all of them are told at once.

Scalars keep their characters: YAML's guesses at types are not made, so ``value: 0123`` is the text 0123, and whether that is a
number is for the column's type to say. Anchors, aliases and merge keys (``<<``) work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from difflib import get_close_matches

import orjson
import yaml

from pgsluice.shared.errors import UsageError

_NULLS = ("", "~", "null", "Null", "NULL")
_SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(slots=True)
class Problems:
    """What is wrong with one file."""

    path: str
    _found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, where: str, text: str) -> None:
        self._found.append((line, f"{where}: {text}" if where else text))

    def check(self) -> None:
        """Raises UsageError when there are any."""
        lines = [f"{self.path}:{line}: {text}" for line, text in sorted(set(self._found))]
        if len(lines) == 1:
            raise UsageError(lines[0], "correct the file")
        if lines:
            listed = "".join(f"\n  {line}" for line in lines)
            raise UsageError(f"{self.path} has {len(lines)} problems{listed}\n{self.path}", "correct the file")


def open_document(path: str, kind: str) -> tuple[Mapping, Problems]:
    """The file's root mapping. ``kind`` says in messages what the file is. Raises UsageError when it cannot be read, is not
    YAML or is not a mapping."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise UsageError(f"{kind} {path} cannot be read ({error.strerror})", "check the path and its permissions") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{kind} {path} is not UTF-8 (byte {error.start})", "save it as UTF-8") from None
    problems = Problems(path)
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is not None:
            _Preparation(loader, problems).prepare(root, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}" if mark else path
        raise UsageError(f"{place}: not valid YAML", error.problem or "see the YAML specification") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not valid YAML", str(error).splitlines()[0]) from None
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{path}:{_line(root) if root else 1}: not a mapping of keys to values", f"see the README for a {kind}")
    return Mapping(root, "", problems), problems


@dataclass(slots=True)
class _Preparation:
    """Resolves merge keys, and notes keys that are there twice and nodes that hold themselves."""

    loader: yaml.SafeLoader
    problems: Problems
    _done: set[int] = field(default_factory=set)

    def prepare(self, node: yaml.Node, around: tuple[int, ...]) -> None:
        if id(node) in around:
            raise yaml.MarkedYAMLError(problem="an alias stands for what it is part of", problem_mark=node.start_mark)
        if id(node) in self._done or isinstance(node, yaml.ScalarNode):
            return
        self._done.add(id(node))
        inside = (*around, id(node))
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self.prepare(item, inside)
        elif isinstance(node, yaml.MappingNode):
            self._note_duplicates(node)
            for _, value in node.value:
                self.prepare(value, inside)
            self.loader.flatten_mapping(node)

    def _note_duplicates(self, node: yaml.MappingNode) -> None:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            name = str(key.value)
            if name in lines and name != "<<":
                self.problems.add(_line(key), "", f"{name} is there twice (see line {lines[name]})")
            lines.setdefault(name, _line(key))


class Mapping:
    """A mapping. A key whose value has the wrong shape is noted as a problem, and taken for absent.

    ``where`` begins the problems of this mapping: "table 'users', rule 2".
    """

    def __init__(self, node: yaml.MappingNode, where: str, problems: Problems) -> None:
        self.where = where
        self.line = _line(node)
        self._node = node
        self._problems = problems
        self._entries = {str(key.value): (key, value) for key, value in node.value}

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def problem(self, text: str, key: str | None = None) -> None:
        """Notes ``text`` at the line of ``key``, or of the mapping."""
        entry = self._entries.get(key) if key is not None else None
        self._problems.add(_line(entry[0]) if entry else self.line, self.where, text)

    def text(self, key: str) -> str | None:
        """A scalar's characters; None when the key is absent or has no value."""
        node = self._value(key)
        if node is None:
            return None
        if not isinstance(node, yaml.ScalarNode):
            self.problem(f"{key} is not a single value", key)
            return None
        return None if _is_null(node) else str(node.value)

    def required_text(self, key: str, example: str) -> str | None:
        """As ``text``, but absence is a problem."""
        text = self.text(key)
        if text is None and (key not in self._entries or self.is_empty(key)):
            self.problem(f"{key} is missing (write one, like '{key}: {example}')", key)
        return text

    def choice(self, key: str, choices: Collection[str]) -> str | None:
        """A required text out of ``choices``."""
        text = self.required_text(key, next(iter(choices)))
        if text is not None and text not in choices:
            self.problem(f"{key} '{text}' is unknown{_suggestion(text, choices)}", key)
            return None
        return text

    def switch(self, key: str) -> bool | None:
        text = self.text(key)
        if text is None:
            return None
        if text.lower() not in _SWITCH:
            self.problem(f"{key} '{text}' is neither true nor false", key)
            return None
        return _SWITCH[text.lower()]

    def number(self, key: str, default: int, *, at_least: int = 0) -> int:
        text = self.text(key)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 10) or int(text) < at_least:
            self.problem(f"{key} '{text}' is not a whole number from {at_least} on", key)
            return default
        return int(text)

    def texts(self, key: str) -> list[str] | None:
        """A list of scalars; None when the key is absent."""
        node = self._value(key)
        if node is None or _is_null(node):
            return None
        if not isinstance(node, yaml.SequenceNode) or not all(isinstance(item, yaml.ScalarNode) for item in node.value):
            self.problem(f"{key} is not a list of texts", key)
            return None
        return [str(item.value) for item in node.value]

    def mapping(self, key: str) -> Mapping | None:
        """A mapping inside this one, with the same ``where``; None when the key is absent."""
        node = self._value(key)
        if node is None or _is_null(node):
            return None
        if not isinstance(node, yaml.MappingNode):
            self.problem(f"{key} is not a mapping of keys to values", key)
            return None
        return Mapping(node, self.where, self._problems)

    def mappings(self, key: str, where: str | None = None) -> list[Mapping] | None:
        """A list of mappings; None when the key is absent. With ``where``, the n-th one's begins with it and ends with n."""
        node = self._value(key)
        if node is None or _is_null(node):
            return None
        if not isinstance(node, yaml.SequenceNode):
            self.problem(f"{key} is not a list", key)
            return None
        found = []
        for number, item in enumerate(node.value, 1):
            item_where = self.where if where is None else f"{where} {number}"
            if isinstance(item, yaml.MappingNode):
                found.append(Mapping(item, item_where, self._problems))
            else:
                self._problems.add(_line(item), item_where, "is not a mapping of keys to values")
        return found

    def is_empty(self, key: str) -> bool:
        """Whether the key is there without a value."""
        return key in self._entries and _is_null(self._entries[key][1])

    def is_list(self, key: str) -> bool:
        return key in self._entries and isinstance(self._entries[key][1], yaml.SequenceNode)

    def is_list_of_mappings(self, key: str) -> bool:
        """Whether the key holds a list that is not empty, of mappings alone."""
        node = self._value(key)
        return (
            isinstance(node, yaml.SequenceNode)
            and bool(node.value)
            and all(isinstance(item, yaml.MappingNode) for item in node.value)
        )

    def keys(self) -> list[str]:
        """In file order."""
        return list(self._entries)

    def line_of(self, key: str) -> int:
        return _line(self._entries[key][0])

    def finish(self, known: Collection[str]) -> None:
        """Notes the keys that are not among ``known``."""
        for key in self._entries:
            if key not in known:
                self.problem(f"unknown key '{key}'{_suggestion(key, known)}", key)

    def digest(self) -> str:
        """SHA-256 of what the mapping says, in hexadecimal: comments, layout, quotes and the order of keys within it do not
        count, but for the order of its own keys."""
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
            return None if _is_null(node) else str(node.value)


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None and node.value in _NULLS


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _suggestion(text: str, choices: Collection[str]) -> str:
    close = get_close_matches(text, choices, n=1)
    return f" (did you mean '{close[0]}'?)" if close else f" (known: {', '.join(choices)})"
