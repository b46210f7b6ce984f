"""Rules: what do none, three and ten of them cost a worker that drains the same backlog?

Each rule is written twice: as the worker reads it, and as the statement that makes of the source's rows what the target is to
hold. Columns and rows alike are those of ``data.EVENTS``; the rows of the warm-up pass the same rules.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.backlog import RATE, WARM_UP, WORKER_ALONE, Backlog
from benchmarks.data import EVENTS
from benchmarks.group import Group
from benchmarks.measurement import Options, Run, Scenario, at_least
from benchmarks.scenarios.backlog import workload
from benchmarks.servers import start_servers
from tests.servers import Database

NAME = "rules"
ROWS = 500_000
OFF_RATIO = "rules_off_ratio"
"""The rate as a share of the rate without rules, in the same repetition."""


@dataclass(frozen=True, slots=True)
class BothWays:
    """One rule of the rules file, and its effect as SQL on ``{table}``."""

    rule: str
    statement: str


RULES = (
    BothWays(
        '{type: transform, column: note, parameters: {type: mask, mask_char: "*"}}',
        "UPDATE {table} SET note = left(note, 1) || repeat('*', length(note) - 2) || right(note, 1)",
    ),
    BothWays(
        "{type: transform, column: kind, parameters: {type: regex, pattern: 'p(.)', replace: 'P$1'}}",
        r"UPDATE {table} SET kind = regexp_replace(kind, 'p(.)', 'P\1', 'g')",
    ),
    BothWays(
        "{type: filter, column: amount, parameters: {operator: gte, value: 1000}}",
        "DELETE FROM {table} WHERE NOT amount >= 1000",
    ),
    BothWays(
        "{type: transform, column: kind, parameters: {type: regex, pattern: '^returned$', replace: 'back'}}",
        "UPDATE {table} SET kind = 'back' WHERE kind = 'returned'",
    ),
    BothWays(
        "{type: filter, column: account, parameters: {operator: lt, value: 99000}}",
        "DELETE FROM {table} WHERE NOT account < 99000",
    ),
    BothWays(
        "{type: filter, column: happened_at, parameters: {operator: gte, value: '2026-01-01 00:10:00+00'}}",
        "DELETE FROM {table} WHERE NOT happened_at >= '2026-01-01 00:10:00+00'",
    ),
    BothWays(
        "{type: filter, column: kind, parameters: {operator: ne, value: lost}}",
        "DELETE FROM {table} WHERE NOT kind <> 'lost'",
    ),
    BothWays(
        "{type: filter, column: note, parameters: {operator: contains, value: '**'}}",
        "DELETE FROM {table} WHERE NOT strpos(note, '**') > 0",
    ),
    BothWays(
        r"{type: transform, column: note, parameters: {type: regex, pattern: '\*{4}', replace: '+'}}",
        r"UPDATE {table} SET note = regexp_replace(note, '\*{{4}}', '+', 'g')",
    ),
    BothWays(
        "{type: filter, any: [{column: settled, operator: eq, value: true},"
        " {not: {column: kind, operator: contains, value: P}}]}",
        "DELETE FROM {table} WHERE NOT (settled OR NOT strpos(kind, 'P') > 0)",
    ),
)
NUMBERS = (0, 3, 10)


def measure(options: Options) -> Iterator[Run]:
    with start_servers() as servers, tempfile.TemporaryDirectory() as directory:
        backlog = Backlog(servers, NAME, workload(options.rows or ROWS))
        files = {number: _write_file(Path(directory), RULES[:number]) for number in NUMBERS}
        groups = {
            (repetition, number): _group(backlog, repetition, number, files[number])
            for repetition in options.repetitions
            for number in NUMBERS
        }
        backlog.write()
        expected = {number: _expected(backlog, RULES[:number]) for number in NUMBERS}
        for repetition in options.repetitions:
            off = 0.0
            for number in NUMBERS:
                _, run = backlog.drain_one_by_one(groups[repetition, number], repetition, expected[number])
                off = off or run.figures[RATE]
                run.figures[OFF_RATIO] = run.figures[RATE] / off
                yield replace(run, contestant=f"{WORKER_ALONE}, {number} rules")


def _group(backlog: Backlog, repetition: int, number: int, rules: Path) -> Group:
    keys = {"rules-config": str(rules)} if number else {}
    return backlog.group(f"rules_{number}_{repetition}", **keys)


def _write_file(directory: Path, rules: Sequence[BothWays]) -> Path:
    path = directory / f"rules-{len(rules)}.yaml"
    listed = "".join(f"    - {each.rule}\n" for each in rules)
    path.write_text(f"tables:\n  {EVENTS}: &rules\n{listed}  {WARM_UP}: *rules\n")
    return path


def _expected(backlog: Backlog, rules: Sequence[BothWays]) -> Database:
    """What the target is to hold."""
    database = backlog.new_copy(f"expected_{len(rules)}")
    for each in rules:
        for table in (EVENTS, WARM_UP):
            database.execute(each.statement.format(table=table))
    return database


SCENARIO = Scenario(
    name=NAME,
    title="a backlog that a worker drains with no, three and ten rules",
    goals=(at_least(f"{WORKER_ALONE}, 3 rules", "rules_off_ratio", 0.95),),
    plotted=(RATE,),
    measure=measure,
)
