"""The rules of a subscription: the text of a subscriber is read more strictly than an administrator's file.

A subscriber is trusted with a group's changes, not with the worker. So a document is short, has neither anchors nor
aliases (a few lines of which expand to millions) and no deep nesting, its patterns are RE2's and small ones, and the
time and memory that its rules take per message are limited while they run. The server checks a subscription when it is
made, and the worker checks its record again, because any client of the broker may have written it.

An ``EventView`` are the changes for subscribers with the same tables and the same rules: a task computes it once for
all of them. Rules come after the worker's, and use the table names of its routes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import assert_never

from pgsluice.rules.bounds import BudgetSpentError, RuleBudget
from pgsluice.rules.regex_replace import strangers_regex_replace
from pgsluice.rules.rules_file import Makers, load_rules
from pgsluice.rules.ruleset import NO_RULES, RuleSet
from pgsluice.rules.transformation import Transformation
from pgsluice.shared.config.yaml_nodes import check_plain
from pgsluice.shared.errors import PgsluiceError, UsageError
from pgsluice.shared.rows.changes import DefinitionChange, MessageChanges, Part, TableChanges, Truncation
from pgsluice.shared.subscriptions.subscription_records import SubscriptionRecord
from pgsluice.shared.wire.table import Table, TableName

MOST_CHARACTERS = 8000
MOST_RULES = 100
DEEPEST = 20
LONGEST_S = 5.0
"""Limit of one task's time per message. Rules of an ordinary table take some milliseconds."""
MOST_GROWTH_BYTES = 8 * 1024 * 1024
"""Bytes by which rules may make a message larger, over all of its rows."""

_DIGEST_BYTES = 8


def read_rules(text: str) -> RuleSet:
    """Raises UsageError with all that is wrong, by line."""
    if not text.strip():
        return NO_RULES
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"rules have more than {MOST_CHARACTERS} characters", "shorten them")
    check_plain(text, "rules", DEEPEST)
    rules = load_rules("rules", text, Makers(strangers_regex_replace)).ruleset()
    count = sum(len(entry.rules) for entry in rules.entries)
    if count > MOST_RULES:
        raise UsageError(f"there are {count} rules, and {MOST_RULES} is the most", "write fewer")
    return rules


class RulesFailedError(Exception):
    """A view of a message cannot be worked out. ``reason`` is a sentence without row values. ``is_late``: not in the time
    that was left for it."""

    def __init__(self, reason: str, *, is_late: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_late = is_late


@dataclass(frozen=True, slots=True)
class EventView:
    """``schema`` and ``table`` are "" for any, ``rules`` is YAML."""

    schema: str
    table: str
    rules: str

    @classmethod
    def of(cls, record: SubscriptionRecord) -> EventView | None:
        """Returns None when it brings no rules: then it sees changes as the worker does."""
        return cls(record.schema, record.table, record.rules) if record.rules else None

    @property
    def digest(self) -> bytes:
        return hashlib.sha256("\0".join((self.schema, self.table, self.rules)).encode()).digest()[:_DIGEST_BYTES]

    def covers(self, schema: str, table: str) -> bool:
        return self.schema in ("", schema) and self.table in ("", table)

    def apply(self, message: MessageChanges, names: Mapping[int, TableName], seconds: float = LONGEST_S) -> MessageChanges | None:
        """Returns the message's part that this covers, after the rules; None when it covers nothing that rules are
        about, so that the common events apply. ``names`` are other names that tables have, by OID. Raises
        RulesFailedError, also when the rules are not done after so many ``seconds`` of the processor."""
        try:
            transformation = replace(_transformation(self.rules), names=names)
            covered = self._covered(message)
            if not any(_is_touched(part, transformation) for part in covered):
                return None
            budget = RuleBudget(time.thread_time, seconds, MOST_GROWTH_BYTES)
            seen, rejected = transformation.apply(replace(message, parts=covered), budget)
        except BudgetSpentError as error:
            raise RulesFailedError(error.reason, is_late=error.is_time) from None
        except PgsluiceError as error:
            raise RulesFailedError(f"the rules do not fit: {error.fact}") from None
        if rejected:
            raise RulesFailedError(f"a change cannot go through {rejected[0].rule}: {rejected[0].reason}")
        return seen

    def _covered(self, message: MessageChanges) -> list[Part]:
        parts: list[Part] = []
        for part in message.parts:
            match part:
                case TableChanges():
                    parts += [part] if self._is_of(part.table) else []
                case Truncation():
                    tables = tuple(filter(self._is_of, part.tables))
                    parts += [replace(part, tables=tables)] if tables else []
                case DefinitionChange():
                    pass
                case unreachable:
                    assert_never(unreachable)
        return parts

    def _is_of(self, table: Table) -> bool:
        return self.covers(table.schema, table.name)


def _is_touched(part: Part, transformation: Transformation) -> bool:
    match part:
        case TableChanges(table=table):
            return transformation.rules.bind(table, transformation.names.get(table.oid)) is not None
        case Truncation() | DefinitionChange():
            return False
        case unreachable:
            assert_never(unreachable)


@lru_cache(maxsize=4096)
def _transformation(text: str) -> Transformation:
    return Transformation(read_rules(text))
