"""The names that a sink makes of tables' names, and a check, before the first row, for tables that would share one.

Tables share a name if a pattern leaves out their difference, or joins parts into the same text, and if the other side
considers two names equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pgsluice.shared.preflight.finding import Finding, Severity, Subject, listed
from pgsluice.shared.wire.table import Table

TABLE_FIELD = "{table}"
ANOTHER_NAME = "give one of them another name on the way, by a route"


@dataclass(frozen=True, slots=True)
class PlaceNames:
    """A sink's names for the destinations of tables' rows, called ``kind`` in the singular and ``kinds`` in the plural.
    ``named`` makes a name by a pattern: ``pattern`` is the value of ``option``, ``others`` are suggested alternatives;
    they are empty without a choice.

    ``alike`` makes the same text of names that the other side considers equal, and ``why`` explains which these are.
    ``may_share``: a row contains its table, so tables of one name lose nothing by it. Then a warning is given if the
    pattern names tables, and so seems to mean separate places. ``taken`` are the sink's reserved names, by their
    option. ``check`` is the finding's.
    """

    check: str
    kind: str
    kinds: str
    named: Callable[[str, Table], str]
    pattern: str = ""
    option: str = ""
    others: tuple[str, ...] = ()
    alike: Callable[[str], str] = str
    why: str = ""
    may_share: bool = False
    taken: Mapping[str, str] = field(default_factory=dict)

    def findings(self, tables: Iterable[Table]) -> list[Finding]:
        """Returns the errors of a start, and one warning about all tables that share a place and may."""
        distinct = list({(table.schema, table.name): table for table in tables}.values())
        found = self._taken(distinct)
        shared: list[Sequence[Table]] = []
        for meeting in self._meeting(self.pattern, distinct):
            if not self._is_shared(meeting):
                found.append(self._finding(Severity.ERROR, meeting, distinct))
            elif TABLE_FIELD in self.pattern:
                shared.append(meeting)
        if shared:
            found.append(self._finding(Severity.WARNING, shared[0], distinct, more=len(shared) - 1))
        return found

    def _taken(self, tables: Iterable[Table]) -> list[Finding]:
        options = {self.alike(name): option for option, name in self.taken.items() if name}
        found = []
        for table in tables:
            name = self.named(self.pattern, table)
            if option := options.get(self.alike(name)):
                fact = f"table '{table.qualified_name}' would go to {self.kind} '{name}', which is that of {option}"
                remedy = f"write another {option}, or give the table another name on the way, by a route"
                found.append(Finding(self.check, Severity.ERROR, Subject.SINK, fact, remedy))
        return found

    def _is_shared(self, meeting: Sequence[Table]) -> bool:
        return self.may_share and len(self._names(meeting)) == 1

    def _meeting(self, pattern: str, tables: Iterable[Table]) -> list[list[Table]]:
        """Returns the tables of each place that several go to."""
        by_name: dict[str, list[Table]] = {}
        for table in tables:
            by_name.setdefault(self.alike(self.named(pattern, table)), []).append(table)
        return [meeting for meeting in by_name.values() if len(meeting) > 1]

    def _names(self, tables: Iterable[Table]) -> list[str]:
        return list(dict.fromkeys(self.named(self.pattern, table) for table in tables))

    def _finding(self, severity: Severity, meeting: Sequence[Table], tables: Sequence[Table], more: int = 0) -> Finding:
        names = self._names(meeting)
        places = f"one {self.kind}, '{names[0]}'"
        if len(names) > 1:
            places = f"{self.kinds} {_quoted(names)}, which are one: {self.why}"
        others = f"; so it is with {more} more {self.kinds}" if more else ""
        fact = f"tables {_quoted([table.qualified_name for table in meeting])} would go to {places}{others}"
        apart = next((other for other in self.others if not self._meeting(other, tables)), "")
        remedy = f"write {self.option}: {apart}, or {ANOTHER_NAME}" if apart else ANOTHER_NAME
        return Finding(self.check, severity, Subject.SINK, fact, remedy)


def _quoted(names: Sequence[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    return f"{quoted[0]} and {quoted[1]}" if len(quoted) == 2 else listed(quoted)
