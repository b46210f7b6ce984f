"""Rules applied to changes, in a form that reads well in an assertion.

seen(rules("public.users", "- {type: filter, …}"), insert(users, b"1", b"x"))  →  [Seen("INSERT", new=(b"1", b"x"))]
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from pgsluice.rules.rule import RejectedRow, RuleOutcome
from pgsluice.rules.rules_file import load_rules
from pgsluice.rules.ruleset import RuleSet
from pgsluice.shared.pgoutput.messages import NO_OLD_ROW, OLD_KEY
from pgsluice.shared.rows.changes import DELETE, INSERT, UPDATE, TableChanges
from pgsluice.shared.wire.table import Value
from pgsluice.testing.changes_builder import Change, message

_OPERATIONS = {INSERT: "INSERT", UPDATE: "UPDATE", DELETE: "DELETE"}


class Seen(NamedTuple):
    """``key`` is an old image of the identity's columns alone (None elsewhere), ``old`` a whole one."""

    operation: str
    new: tuple[Value, ...] | None = None
    key: tuple[Value, ...] | None = None
    old: tuple[Value, ...] | None = None


def load(text: str) -> RuleSet:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "rules.yml")
        path.write_text(text)
        return load_rules(str(path)).ruleset()


def rules(table: str, *rule_texts: str) -> RuleSet:
    """The rules of one table, each in YAML's flow style."""
    return load(f"tables:\n  {table}:\n" + "".join(f"    - {text}\n" for text in rule_texts))


def outcome(ruleset: RuleSet, *changes: Change) -> RuleOutcome:
    """Of changes of one table."""
    (part,) = message(1, *changes).parts
    assert isinstance(part, TableChanges)
    bound = ruleset.bind(part.table)
    assert bound is not None
    return bound.apply(part)


def seen(ruleset: RuleSet, *changes: Change) -> list[Seen]:
    """What is left of the changes, none of which may be rejected."""
    result = outcome(ruleset, *changes)
    assert result.rejected == []
    return [] if result.changes is None else as_seen(result.changes)


def rejected(ruleset: RuleSet, *changes: Change) -> list[RejectedRow]:
    return outcome(ruleset, *changes).rejected


def as_seen(changes: TableChanges) -> list[Seen]:
    rows = []
    for row, operation in enumerate(changes.operations):
        new = None if operation == DELETE else tuple(column[row] for column in changes.new)
        kind = NO_OLD_ROW if changes.old_kinds is None else changes.old_kinds[row]
        old = None
        if changes.old is not None and kind != NO_OLD_ROW:
            old = tuple(column[row] for column in changes.old)
        is_key = kind == OLD_KEY
        rows.append(Seen(_OPERATIONS[operation], new, old if is_key else None, None if is_key else old))
    return rows
