"""Reading the files that say what a worker does with changes."""

from __future__ import annotations

from rules.routing import NO_ROUTES
from rules.routing_file import load_routing
from rules.rules_file import load_rules
from rules.transformation import NO_RULES, Transformation


def load_transformation(rules_file: str, routing_file: str) -> Transformation:
    """What the files at these paths say, "" being none. Raises UsageError that names everything wrong with one of them."""
    rules = load_rules(rules_file).ruleset() if rules_file else NO_RULES
    return Transformation(rules, load_routing(routing_file) if routing_file else NO_ROUTES)
