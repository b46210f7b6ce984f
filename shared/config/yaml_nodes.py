"""A YAML file as nodes that know their lines, for everything that reads YAML: the configuration, rules, routes.

The document is composed but not constructed: YAML's guesses at types (``no`` is false, ``0123`` is 83) are not made, every
scalar keeps its characters, tags make no objects, and every key and value keeps its line, so that an error can name it. Anchors,
aliases and merge keys (``<<``) work; a mapping's own key wins over a merged one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import yaml

from pgsluice.shared.errors import UsageError

_QUOTED = re.compile(r"""(['"])(?!<).{2,}?\1""")
"""What PyYAML quotes from the document in its messages, which may be a secret; ``'<token>'`` is its own word."""
_NULLS = ("", "~", "null", "Null", "NULL")
_MERGE = "<<"


class InvalidYamlError(Exception):
    """``line`` and ``column`` count from 1 and are None when it is not known where; ``problem`` quotes nothing of the text."""

    def __init__(self, mark: yaml.Mark | None, problem: str) -> None:
        super().__init__(problem)
        self.line = None if mark is None else mark.line + 1
        self.column = None if mark is None else mark.column + 1
        self.problem = problem


class RepeatedKey(NamedTuple):
    """A key that its mapping has already, in ``first_line``."""

    key: yaml.Node
    first_line: int


@dataclass(frozen=True, slots=True)
class Document:
    """``root`` is None for an empty file. Merge keys are replaced by what they merge."""

    root: yaml.Node | None
    repeated: tuple[RepeatedKey, ...]


def read_text(path: str, what: str) -> str:
    """``what`` says in messages what the file is. Raises UsageError when it cannot be read or is not UTF-8."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be read ({error.strerror})", "check the path and its permissions") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} {path} is not UTF-8 (byte {error.start})", "save it as UTF-8") from None


def compose(text: str) -> Document:
    """Raises InvalidYamlError."""
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        merging = _Merging(loader)
        if root is not None:
            merging.merge(root, ())
    except yaml.MarkedYAMLError as error:
        problem = error.problem or "see the YAML specification"
        remedy = "indent with spaces, not with a tab" if r"'\t'" in problem else _QUOTED.sub("…", problem)
        raise InvalidYamlError(error.problem_mark or error.context_mark, remedy) from None
    except yaml.YAMLError as error:
        raise InvalidYamlError(None, str(error).splitlines()[0]) from None
    return Document(root, tuple(merging.repeated))


def check_plain(text: str, name: str, deepest: int) -> None:
    """For text of people who are not trusted with the process: neither anchors nor aliases, a few lines of which stand for
    millions, and no deep nesting. ``name`` is the text's. Raises UsageError; what is no YAML passes: ``compose`` tells more."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            line = event.start_mark.line + 1 if event.start_mark else 1
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise UsageError(f"{name}:{line}: anchors and aliases are not taken here", "write it out")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > deepest:
                raise UsageError(f"{name}:{line}: is nested more than {deepest} levels deep", "write it flatter")
    except yaml.YAMLError:
        return


class _Merging:
    """Replaces merge keys, and notes repeated keys before: a mapping's own key may repeat a merged one."""

    def __init__(self, loader: yaml.SafeLoader) -> None:
        self.repeated: list[RepeatedKey] = []
        self._loader = loader
        self._done: set[int] = set()

    def merge(self, node: yaml.Node, around: tuple[int, ...]) -> None:
        """``around`` are the nodes that ``node`` is part of."""
        if id(node) in around:
            raise yaml.MarkedYAMLError(problem="an alias stands for what it is part of", problem_mark=node.start_mark)
        if id(node) in self._done or isinstance(node, yaml.ScalarNode):
            return
        self._done.add(id(node))
        inside = (*around, id(node))
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self.merge(item, inside)
        elif isinstance(node, yaml.MappingNode):
            self._note_repeated(node)
            for _, value in node.value:
                self.merge(value, inside)
            self._loader.flatten_mapping(node)

    def _note_repeated(self, node: yaml.MappingNode) -> None:
        first_lines: dict[str, int] = {}
        for key, _ in node.value:
            name = str(key.value)
            if name in first_lines and name != _MERGE:
                self.repeated.append(RepeatedKey(key, first_lines[name]))
            first_lines.setdefault(name, line_of(key))


def line_of(node: yaml.Node) -> int:
    """From 1 on."""
    return int(node.start_mark.line) + 1


def is_null(node: yaml.Node) -> bool:
    """Whether it is a value that is not there: empty or ``null``, and not in quotes."""
    return isinstance(node, yaml.ScalarNode) and node.style is None and node.value in _NULLS
