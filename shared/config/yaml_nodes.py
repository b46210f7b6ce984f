"""A YAML file as nodes that know their lines, for everything that reads YAML: the configuration, rules, routes.

The document is composed but not constructed: YAML's guesses at types (``no`` is false, ``0123`` is 83) are avoided,
every scalar keeps its characters, tags make no objects, and every key and value keeps its line, so that an error can
name it. Anchors, aliases and merge keys (``<<``) work; a mapping's own key wins over a merged one. A few lines of
aliases of aliases may expand to millions of values, and their author need not be trusted with the process: the
expansion is limited, and so is the nesting depth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

from pgsluice.shared.errors import UsageError

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser: LibYAML where PyYAML was built with it, which takes a tenth of the time."""
_QUOTED = re.compile(r"""(['"])(?!<).{2,}?\1""")
"""Text that PyYAML quotes from the document in its messages, possibly a secret; ``'<token>'`` is PyYAML's own word."""
_NULLS = ("", "~", "null", "Null", "NULL")
_MERGE = "<<"
_MERGE_TAG = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, slots=True)
class Extent:
    """``aliased_bytes`` limits the expansion of all aliases of a document together, ``values`` the number of values."""

    aliased_bytes: int
    values: int


OF_FILES = Extent(64 * 1024 * 1024, 100_000_000)
"""The rules of 20 columns, shared by 5,000 tables, come to 50 MB."""
OF_STRANGERS = Extent(1024 * 1024, 10_000)
"""Bounds for texts of users who are not trusted with the process: such a text is read within a tenth of a second."""
DEEPEST = 100
"""Levels that a document may be nested, with aliases followed."""
_TOO_DEEP = f"is nested more than {DEEPEST} levels deep: write it flatter"
MOST_SUGGESTIONS = 20
"""Unknown keys of a document that are compared with the known ones: that takes about a millisecond for each."""
MOST_MISTAKES = 100
"""Mistakes of a document that are reported one by one."""
_NODE_BYTES = 64
"""The approximate size of a value, without its characters."""


class InvalidYamlError(Exception):
    """``line`` and ``column`` count from 1 and are None when unknown; ``problem`` quotes nothing of the text."""

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
class YamlDocument:
    """``root`` is None for an empty file. Merge keys are replaced by their content."""

    root: yaml.Node | None
    repeated: tuple[RepeatedKey, ...]


def read_text(path: str, what: str) -> str:
    """Reads a file. ``what`` names its kind in messages. Raises UsageError when it cannot be read or is not UTF-8."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be read ({error.strerror})", "check the path and its permissions") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} {path} is not UTF-8 (byte {error.start})", "save it as UTF-8") from None


def compose(text: str, most: Extent = OF_FILES) -> YamlDocument:
    """Raises InvalidYamlError, also for a text that holds more than ``most``."""
    try:
        _check_extent(text, most)
        root: yaml.Node | None = yaml.compose(text, _Loader)
        merging = _Merging()
        if root is not None:
            _Measure(most.aliased_bytes).measure(root)
            merging.merge(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InvalidYamlError(mark, _reworded(error.problem or "see the YAML specification", text, mark)) from None
    except yaml.YAMLError as error:
        raise InvalidYamlError(None, str(error).splitlines()[0]) from None
    except UnicodeEncodeError:
        raise InvalidYamlError(None, "holds half of a character: save it as UTF-8") from None
    return YamlDocument(root, tuple(merging.repeated))


def check_plain(text: str, name: str, deepest: int) -> None:
    """Checks text from untrusted users: neither anchors nor aliases, a few lines of which expand to millions of values,
    and no deep nesting. ``name`` is the text's. Raises UsageError. Accepts text that is no YAML: ``compose`` reports it
    better."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_Loader):
            line = event.start_mark.line + 1 if event.start_mark else 1
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise UsageError(f"{name}:{line}: anchors and aliases are not taken here", "write it out")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > deepest:
                raise UsageError(f"{name}:{line}: is nested more than {deepest} levels deep", "write it flatter")
    except yaml.YAMLError:
        return


def _reworded(problem: str, text: str, mark: yaml.Mark | None) -> str:
    """Describes the error, and quotes nothing of the text. LibYAML and PyYAML's own parser word some errors differently."""
    if "nesting depth" in problem:
        return _TOO_DEEP
    line = [] if mark is None else text.split("\n")[mark.line : mark.line + 1]
    if "cannot start any token" in problem and mark is not None and line and line[0][mark.column : mark.column + 1] == "\t":
        return "indent with spaces, not with a tab"
    return _QUOTED.sub("…", problem)


def _check_extent(text: str, most: Extent) -> None:
    """Checks the events before nodes are made, which recurses and takes memory."""
    depth = values = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        values += isinstance(event, yaml.NodeEvent)
        if depth > DEEPEST:
            raise _too_deep(event.start_mark)
        if values > most.values:
            raise _marked(f"holds more than {most.values} keys and values", event.start_mark)


class _Measure:
    """The total size of a document's values, aliases followed."""

    def __init__(self, most_aliased_bytes: int) -> None:
        self._most_aliased_bytes = most_aliased_bytes
        self._known: dict[int, tuple[int, int]] = {}
        """Bytes and levels of nodes, by their ids."""
        self._around: set[int] = set()
        """Nodes that what is measured now is part of."""
        self._aliased_bytes = 0

    def measure(self, node: yaml.Node) -> tuple[int, int]:
        """Returns a node's bytes and levels. A node with an alias is measured once. Raises MarkedYAMLError for too
        many."""
        self._around.add(id(node))
        size, levels = _NODE_BYTES, 0
        for part in _parts(node):
            part_size, part_levels = self._measure_part(part, node)
            size, levels = size + part_size, max(levels, part_levels)
        if isinstance(node, yaml.ScalarNode):
            size += len(node.value)
        if levels >= DEEPEST:
            raise _too_deep(node.start_mark)
        self._around.discard(id(node))
        self._known[id(node)] = size, levels + 1
        return size, levels + 1

    def _measure_part(self, part: yaml.Node, node: yaml.Node) -> tuple[int, int]:
        if id(part) in self._around:
            raise yaml.MarkedYAMLError(problem="an alias refers to a node that contains it", problem_mark=part.start_mark)
        known = self._known.get(id(part))
        if known is None:
            return self.measure(part)
        self._aliased_bytes += known[0]
        if self._aliased_bytes > self._most_aliased_bytes:
            problem = f"aliases expand to more than {self._most_aliased_bytes >> 20} MiB: write less of it, or in several files"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return known


def _parts(node: yaml.Node) -> Iterator[yaml.Node]:
    match node:
        case yaml.MappingNode():
            yield from (part for pair in node.value for part in pair)
        case yaml.SequenceNode():
            yield from node.value
        case _:
            return


def _too_deep(mark: Any) -> yaml.MarkedYAMLError:
    return _marked(_TOO_DEEP, mark)


def _marked(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


class _Merging:
    """Replaces merge keys, and notes repeated keys before: a mapping's own key may repeat a merged one. No node is part of
    itself."""

    def __init__(self) -> None:
        self.repeated: list[RepeatedKey] = []
        self._done: set[int] = set()

    def merge(self, node: yaml.Node) -> None:
        if id(node) in self._done or isinstance(node, yaml.ScalarNode):
            return
        self._done.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self.merge(item)
        elif isinstance(node, yaml.MappingNode):
            self._note_repeated(node)
            for _, value in node.value:
                self.merge(value)
            node.value = _merged(node)

    def _note_repeated(self, node: yaml.MappingNode) -> None:
        first_lines: dict[str, int] = {}
        for key, _ in node.value:
            name = str(key.value)
            if name in first_lines and name != _MERGE:
                self.repeated.append(RepeatedKey(key, first_lines[name]))
            first_lines.setdefault(name, line_of(key))


def _merged(node: yaml.MappingNode) -> list[tuple[yaml.Node, yaml.Node]]:
    """Returns a node's keys and values, after merged ones: of several with the same key the first applies. Done here
    because releases of PyYAML differ in precedence."""
    own = [pair for pair in node.value if pair[0].tag != _MERGE_TAG]
    named = {str(key.value) for key, _ in own}
    brought = []
    for key, value in node.value:
        for source in _sources(value) if key.tag == _MERGE_TAG else ():
            brought += [pair for pair in source.value if str(pair[0].value) not in named]
            named |= {str(key.value) for key, _ in source.value}
    return [*brought, *own]


def _sources(node: yaml.Node) -> Iterator[yaml.MappingNode]:
    for each in node.value if isinstance(node, yaml.SequenceNode) else [node]:
        if not isinstance(each, yaml.MappingNode):
            raise yaml.MarkedYAMLError(problem="a merge key takes mappings only", problem_mark=each.start_mark)
        yield each


def line_of(node: yaml.Node) -> int:
    """Returns the line, counted from 1."""
    return int(node.start_mark.line) + 1


def is_null(node: yaml.Node) -> bool:
    """Returns whether it is a value that is not there: empty or ``null``, and not in quotes."""
    return isinstance(node, yaml.ScalarNode) and is_plain(node) and node.value in _NULLS


def is_plain(node: yaml.ScalarNode) -> bool:
    """Returns whether a scalar has no quotes and is no block: its style is "" with LibYAML, None with PyYAML's own
    parser."""
    return not node.style
