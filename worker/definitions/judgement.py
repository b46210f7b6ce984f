"""Judges definitions: the action, and the error for an operator who has to act: pure.

A sink that alters its destination follows the user's policy and its defaults. One that forwards or ignores definitions
alters nothing, so only an explicit ``stop`` concerns it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgsluice.shared.broker.definition_log import DefinitionOutcome
from pgsluice.shared.definitions.difference import PartitionDetached, differences_of
from pgsluice.shared.definitions.wording import in_words
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.definition import DefinedColumn, TableDefinition
from pgsluice.shared.wire.position import format_time
from pgsluice.shared.wire.published_definition import concerned
from pgsluice.worker.definitions.arrivals import Arrival
from pgsluice.worker.definitions.partition_condition import parse_condition
from pgsluice.worker.definitions.policy import DefinitionAction, DefinitionKind, Policies, kinds_of, table_of
from pgsluice.worker.definitions.refusal import RefusedDefinitionError
from pgsluice.worker.sinks.sink import DefinitionUse

_OUTCOMES = {
    DefinitionAction.APPLY: DefinitionOutcome.APPLIED,
    DefinitionAction.DROP: DefinitionOutcome.APPLIED,
    DefinitionAction.DELETE: DefinitionOutcome.APPLIED,
    DefinitionAction.CAST: DefinitionOutcome.APPLIED,
    DefinitionAction.NULL: DefinitionOutcome.APPLIED,
    DefinitionAction.KEEP: DefinitionOutcome.KEPT,
    DefinitionAction.IGNORE: DefinitionOutcome.IGNORED,
}
_PASSING = {DefinitionUse.PASSES_ON: DefinitionOutcome.PASSED_ON, DefinitionUse.PASSES_OVER: DefinitionOutcome.PASSED_OVER}

_NOTHING_APPLIED = "nothing of the transaction was applied"


@dataclass(frozen=True, slots=True)
class Judgement:
    """``outcomes`` are the outcomes of its parts, each once. ``stop`` is why an operator must act first, None
    otherwise."""

    outcomes: tuple[DefinitionOutcome, ...]
    stop: TerminalError | None = None


def judge(arrival: Arrival, policies: Policies, use: DefinitionUse) -> Judgement:
    """``arrival`` is no copy's."""
    kinds, table = kinds_of(arrival.definition), table_of(arrival.definition)
    if use in _PASSING:
        asked = [kind for kind in kinds if policies.asked(kind, table) is DefinitionAction.STOP]
        return Judgement((_PASSING[use],), _asked(asked[0], arrival) if asked else None)
    actions = {kind: policies.action(kind, table) for kind in kinds}
    for kind, action in actions.items():
        if action in (DefinitionAction.STOP, DefinitionAction.RECOPY):
            return Judgement((DefinitionOutcome.STOPPED,), _stop(kind, action, arrival))
    if actions.get(DefinitionKind.DETACH_PARTITION) is DefinitionAction.DELETE and (partitions := _unclear_partitions(arrival)):
        return Judgement((DefinitionOutcome.STOPPED,), _unclear(partitions, arrival))
    return Judgement(tuple(dict.fromkeys(_OUTCOMES[action] for action in actions.values())) or (DefinitionOutcome.APPLIED,))


def new_columns_error(arrival: Arrival, columns: Sequence[DefinedColumn]) -> TerminalError:
    """Returns the error for columns that the rules do not name, in a table with hidden columns."""
    names = ", ".join(column.name for column in columns)
    return TerminalError(
        f"table '{_name(arrival)}' has a new column ({names}), and the table's rules, which hide others, do not mention it",
        f"give it a rule, run {_command(arrival)} to let it pass, or set new-columns: pass; then start again, {_NOTHING_APPLIED}",
    )


def held_key_error(arrival: Arrival) -> TerminalError:
    """Returns the error for a column that is held, and identifies rows from here on."""
    return TerminalError(
        f"a column of table '{_name(arrival)}' that is held (new-columns) is of its key now, and rows need it",
        f"run 'pgsluice ddl accept {_name(arrival)}' to let it pass, then start again; {_NOTHING_APPLIED}",
    )


def refused_error(arrival: Arrival, error: RefusedDefinitionError) -> TerminalError:
    """Returns the error for a definition that the destination refused."""
    return TerminalError(
        f"{error.fact} ({_place(arrival)}; {_words(arrival)})",
        f"{error.remedy}, and start again; or alter the target yourself, run {_command(arrival)} and start again;"
        f" {_NOTHING_APPLIED}",
    )


def _unclear_partitions(arrival: Arrival) -> list[str]:
    """Returns the names of partitions that are gone, and whose rows are not those of some values of plain columns."""
    was = arrival.definition.previous
    assert isinstance(was, TableDefinition)
    columns = {column.name: column for column in was.columns}
    differences = differences_of(arrival.definition)
    gone = [each.partition for each in differences if isinstance(each, PartitionDetached)]  # a single kind: it removes rows
    return [f"{each.schema}.{each.name}" for each in gone if parse_condition(each.constraint, columns) is None]


def _unclear(partitions: Sequence[str], arrival: Arrival) -> TerminalError:
    return TerminalError(
        f"the source detached {', '.join(partitions)} from '{_name(arrival)}' ({_place(arrival)}), and values of plain columns do"
        " not identify its rows (it is partitioned by expressions or hashes, or PostgreSQL could not describe it)",
        f"delete these rows at the target yourself, or leave them; run {_command(arrival)} and start again; {_NOTHING_APPLIED}",
    )


def _stop(kind: DefinitionKind, action: DefinitionAction, arrival: Arrival) -> TerminalError:
    if kind is DefinitionKind.UNKNOWN:
        return TerminalError(
            f"the source could not describe the effect of {arrival.definition.event.tag} ({_place(arrival)}; {_words(arrival)})",
            "compare the tables of source and target, and bring the target's up to date; let the source describe the table"
            f" again ('pgsluice ddl note TABLE'); run {_command(arrival)} and start again; {_NOTHING_APPLIED}",
        )
    if action is DefinitionAction.STOP:
        return _asked(kind, arrival)
    what = "attached a partition to" if kind is DefinitionKind.ATTACH_PARTITION else "rewrote"
    return TerminalError(
        f"the source {what} table '{_name(arrival)}' ({_place(arrival)}; {_words(arrival)}): it has rows or values that no change"
        " contains",
        f"resync the table (the replicator's --mode copy-and-stream --recopy {_name(arrival)}); or bring the target's rows"
        f" up to date yourself and run {_command(arrival)}; then start again, {_NOTHING_APPLIED}",
    )


def _asked(kind: DefinitionKind, arrival: Arrival) -> TerminalError:
    return TerminalError(
        f"the source altered '{_name(arrival)}' ({_place(arrival)}; {_words(arrival)}), and ddl or ddl-policy wants an operator"
        f" to decide about {kind}",
        f"adapt the following systems to it, run {_command(arrival)} and start again; {_NOTHING_APPLIED}",
    )


def _name(arrival: Arrival) -> str:
    """Returns the name it had; a dash if the source could not provide it."""
    about = concerned(arrival.definition.event)
    table = table_of(arrival.definition)
    if table is not None:
        return ".".join(table)
    return "-" if about is None else f"{about.schema}.{about.name}"


def _place(arrival: Arrival) -> str:
    return f"at {arrival.position}, committed {format_time(arrival.committed_at) or 'at a time that is not known'}"


def _words(arrival: Arrival) -> str:
    return ", ".join(in_words(arrival.definition))


def _command(arrival: Arrival) -> str:
    return f"'pgsluice ddl accept {arrival.position}'"
