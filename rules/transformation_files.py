"""The files that say what a worker does with changes: reading them, and holding them against the tables there are."""

from __future__ import annotations

from collections.abc import Sequence

from pgsluice.rules.routing import NO_ROUTES
from pgsluice.rules.routing_file import load_routing
from pgsluice.rules.rules_file import load_rules
from pgsluice.rules.ruleset import NO_RULES
from pgsluice.rules.transformation import Transformation
from pgsluice.shared.errors import UsageError
from pgsluice.shared.wire.table import Table


def load_transformation(rules_file: str, routing_file: str) -> Transformation:
    """What the files at these paths say, "" being none. Raises UsageError that names everything wrong with one of them."""
    rules = load_rules(rules_file).ruleset() if rules_file else NO_RULES
    return Transformation(rules, load_routing(routing_file) if routing_file else NO_ROUTES)


def check_tables(transformation: Transformation, tables: Sequence[Table]) -> None:
    """Raises UsageError that names everything that does not fit ``tables``, all the tables there are."""
    problems = transformation.problems(tables)
    if problems:
        listed = "".join(f"\n  {problem}" for problem in problems)
        raise UsageError(
            f"rules and routes do not fit the source's tables:{listed}",
            "correct the files; where a table or column is new, start the replicator again first, which looks it up",
        )
