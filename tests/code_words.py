"""Reads the prose of the code: docstrings that are fragments, habit words, and class names used twice.

``python -m tests.code_words`` prints the counts of each folder, and each place.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests import words
from tests.source_code import PRODUCT, nodes, relative, sources, tree

FRAGMENT = re.compile(
    r"(?:What|Of|As|For|Those|By|That|The same|Whether|Who|Whom|Whose|Where|When|How|Which|It|Its|They|Them|These"
    r"|In|To|With|Without|Until|From|At|Also|Not|Nothing|Before|After|Since|Between|Over|Under|Per|Up|Out|So|Or|There"
    r"|Only where|One (?:that|which|who|of)|All (?:that|there)|Each (?:with|who))\b"
)
"""The beginnings of a docstring that only its signature completes."""

HABITS = words.any_of([*words.HABITS, *words.BANNED, r"those that", r"that of", r"comes? of", r"but for"])
"""The habits of documents, and more that repeat no noun."""

_LITERAL = re.compile(r"``[^`]*``")
_DIRECTIVE = re.compile(r"#\s*(?:type:|noqa|pragma)")
_WORD = re.compile(r"[A-Za-z][\w'-]*")


@dataclass(frozen=True, slots=True)
class Prose:
    """A docstring or a comment, with the line where it begins."""

    place: str
    text: str


@dataclass(frozen=True, slots=True)
class CodeReading:
    """The counts of some prose; ``found`` has the places of its habit words."""

    words: int
    found: tuple[str, ...]

    @property
    def habits_per_thousand(self) -> float:
        return 1000 * len(self.found) / max(self.words, words.FEWEST_WORDS)


def docstrings(path: Path) -> Iterator[Prose]:
    """Yields the texts that stand alone as statements: of modules, classes and functions, and of the names before them."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield Prose(f"{relative(path)}:{node.lineno}", text.strip())


def comments(path: Path) -> Iterator[Prose]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT and not _DIRECTIVE.match(token.string):
            yield Prose(f"{relative(path)}:{token.start[0]}", token.string.lstrip("# "))


def fragments(package: str) -> list[Prose]:
    return [each for path in sources(package) for each in docstrings(path) if FRAGMENT.match(each.text)]


def read_code(package: str) -> CodeReading:
    count, found = 0, []
    for path in sources(package):
        for each in (*docstrings(path), *comments(path)):
            prose = words.prose_of(_LITERAL.sub(" ", each.text))
            count += len(_WORD.findall(prose))
            found += [f"{each.place}: {' '.join(match[0].split())}" for match in HABITS.finditer(prose)]
    return CodeReading(count, tuple(found))


def repeated_classes() -> Mapping[str, list[str]]:
    """Returns the places of each class name that the product uses more than once."""
    places = defaultdict(list)
    for path in sources(*PRODUCT):
        for node in nodes(path, ast.ClassDef):
            places[node.name].append(f"{relative(path)}:{node.lineno}")
    return {name: each for name, each in places.items() if len(each) > 1}


def main() -> None:
    for package in PRODUCT:
        reading, begun = read_code(package), fragments(package)
        print(f"{package}: {reading.words} words, {reading.habits_per_thousand:.1f} habits per thousand, {len(begun)} fragments")
        for place in (*reading.found, *(f"{each.place}: {each.text[:40]!r}" for each in begun)):
            print(f"  {place}")
    for name, places in repeated_classes().items():
        print(f"class {name}: {', '.join(places)}")


if __name__ == "__main__":
    main()
