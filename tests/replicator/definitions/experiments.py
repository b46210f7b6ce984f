"""Reads ``experiments.txt``: what PostgreSQL does with definitions in a stream of changes, and what the capture tells of it.

    == name              begins a case, which has a database and a slot of its own
    since 15             the first version that can do it
    not on 16            versions that do otherwise
    setup SQL            before there are publication, capture and slot; without: table t (a int PRIMARY KEY) with row 1
    publishes SQL        how the publication goes on; without: FOR TABLE t, by way of the root
    wants PATTERN …      tables that the group wants
    ends TABLE …         what the target of a group has in the end, as the source has it; without: t
                         * was copied again, ! was refused until it had a replica identity again
    ends nothing         the target has none of its tables in the end
    ends stopped         no start of a replicator goes on before a person has decided
    > SQL                one transaction; {publication} stands for the publication's name
        line             what it leaves in the stream, as ``captured`` writes it

What does not fit into a line goes on in the next ones, after two blanks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_CASE = re.compile(r"^== (?P<name>.+)\n(?P<body>(?:(?!== ).*\n?)*)", re.MULTILINE)


@dataclass(frozen=True)
class Experiment:
    name: str
    since: int
    not_on: tuple[int, ...]
    setup: str
    publication: str
    patterns: tuple[str, ...]
    ends: frozenset[str]
    """Names as in ``ends``; empty where a target has nothing of it."""
    steps: tuple[tuple[str, tuple[str, ...]], ...]
    """Transactions, each with what it leaves in the stream."""

    def can_run_on(self, version: int) -> bool:
        return version >= self.since and version not in self.not_on


def load_experiments() -> list[Experiment]:
    text = Path(__file__).with_suffix(".txt").read_text()
    return [_experiment(match["name"], match["body"]) for match in _CASE.finditer(text)]


def _experiment(name: str, body: str) -> Experiment:
    lines = re.sub(r"\n  (?! )", " ", body).splitlines()
    options = dict.fromkeys(("since", "not on", "setup", "publishes", "wants", "ends"), "")
    steps: list[tuple[str, list[str]]] = []
    for line in filter(None, lines):
        if line.startswith("> "):
            steps.append((line[2:], []))
        elif line.startswith("    "):
            steps[-1][1].append(line.strip())
        else:
            [key] = [key for key in options if line.startswith(key + " ")]
            options[key] = line[len(key) + 1 :]
    return Experiment(
        name=name,
        since=int(options["since"] or 14),
        not_on=tuple(map(int, options["not on"].split())),
        setup=options["setup"] or "CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1)",
        publication=options["publishes"] or "FOR TABLE t WITH (publish_via_partition_root = true)",
        patterns=tuple(options["wants"].split()),
        ends=frozenset((options["ends"] or "t").split()) - {"nothing"},
        steps=tuple((transaction, tuple(stream)) for transaction, stream in steps),
    )
