"""How a document reads: phrases that are banned, and habits that a page may have few of, in its prose without code.

``python -m tests.words docs/how-to/copy.md …`` prints the counts of these pages and each line that has one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MOST_HABITS = 3.0
MOST_WHAT = 2.0
"""Per thousand words of a page."""

FEWEST_WORDS = 400
"""A shorter page is counted as if it had that many."""

BANNED = {
    r"for ever": "indefinitely, until it succeeds",
    r"(?:no|some|every)body\b": "no user, another client, every process",
    r"anew\b": "again",
    r"(?:go|goes|going|gone|went) on\b": "continue, resume",
    r"pass(?:es|ed)? over": "skip, ignore",
    r"in hand\b": "current",
    r"becomes? of\b": "the result of",
    r"next look": "next check, within 10 s",
    r"(?:is|are|be|was|were) told": "name who reports it, and to whom",
    r"without a word": "without an error, silently",
    r"(?<!dead.)letters?\b": "dead letter, DLQ entry",
    r"a person is needed": "needs action by an operator",
    r"recop(?:y|ies|ied)\b": "resync (the option keeps its name, in code)",
    r"how it is to be": "the desired state",
}
"""A pattern of prose, and words to write in its place."""

HABITS = (
    r"sa(?:y|ys|id|ying)",
    r"tell(?:s|ing)?|told",
    r"who(?:m|so)?ever",
    r"nothing (?:is|was) (?:lost|said|known)? ?of",
    r"behind|beside",
    r"(?:is|are|was|were) there",
    r"by (?:itself|themselves)",
    r"of (?:its|their|your|our) own",
    r"looks?(?! up| for| like)",
    r"counts? for",
    r"people|a person",
    r"(?:two|three|four) (?:thirds|fifths|quarters|tenths)",
    r"for one\b",
    r"ours|our|we",
    r"stands?(?!-|by| by)",
    r"holds? up|held up",
    r"gives? up|gave up|given up",
    r"of (?:which|whom|that|those|these|it|them) (?:the|a|an|it|they)",
    r"orders?(?= (?:a|that|of|is|are|to))",
    r"is to be|are to be",
    r"may (?:go|come|hold|have gone)",
    r"all the same|none the less",
    r"right (?:then|there)",
    r"for want of|for lack of",
)
"""Patterns of words that hide the actor or the thing."""

FIELD_WORDS = (
    "change data capture",
    "CDC",
    "dead-letter queue",
    "DLQ",
    "schema change",
    "DDL",
    "initial snapshot",
    "backfill",
    "resync",
    "throughput",
    "latency",
    "lag",
    "high availability",
    "failover",
    "TOAST",
    "exactly once",
    "continue",
    "existing",
    "automatically",
)
"""Words that readers search for."""

_FENCE = re.compile(r"^\s*(```|~~~).*?^\s*\1\s*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`]*`")
_TARGET = re.compile(r"\]\([^)]*\)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_INDENTATION = re.compile(r"^[ \t]+", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z][\w'-]*")


def any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """Where a space stands, a line may end."""
    together = "|".join(patterns).replace(" ", r"\s+")
    return re.compile(rf"\b(?:{together})(?![\w-])", re.IGNORECASE | re.DOTALL)


_KINDS = {"banned": any_of(BANNED), "habit": any_of(HABITS), "what": any_of(["what"])}


@dataclass(frozen=True, slots=True)
class Reading:
    """The counts of one text; ``found`` are pairs of a line number and of what stands there."""

    words: int
    banned: int
    habits: int
    what: int
    found: tuple[tuple[int, str], ...]

    @property
    def habits_per_thousand(self) -> float:
        return 1000 * self.habits / max(self.words, FEWEST_WORDS)

    @property
    def what_per_thousand(self) -> float:
        return 1000 * self.what / max(self.words, FEWEST_WORDS)

    @property
    def is_plain(self) -> bool:
        return not self.banned and self.habits_per_thousand <= MOST_HABITS and self.what_per_thousand <= MOST_WHAT


def prose_of(markdown: str) -> str:
    """The text without code, comments and targets of links, line by line as it was."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]+", " ", match[0])

    for pattern in (_FENCE, _COMMENT, _CODE, _TARGET):
        markdown = pattern.sub(blank, markdown)
    return _INDENTATION.sub("", markdown)


def read(markdown: str) -> Reading:
    prose = prose_of(markdown)
    matches = {kind: list(pattern.finditer(prose)) for kind, pattern in _KINDS.items()}
    found = sorted(
        (prose.count("\n", 0, match.start()) + 1, f"{kind}: {match[0]}") for kind in matches for match in matches[kind]
    )
    return Reading(len(_WORD.findall(prose)), len(matches["banned"]), len(matches["habit"]), len(matches["what"]), tuple(found))


def main(paths: list[str]) -> None:
    for path in map(Path, paths):
        reading = read(path.read_text())
        print(
            f"{path}: {reading.words} words, {reading.banned} banned, {reading.habits_per_thousand:.1f} habits and"
            f" {reading.what_per_thousand:.1f} 'what' per thousand{'' if reading.is_plain else '  TOO MANY'}"
        )
        for line, text in reading.found:
            print(f"  {line}: {text}")


if __name__ == "__main__":
    main(sys.argv[1:])
