"""The group's indexes at the search server, and their changes: generations of an alias (``index_name``).

The rows of a copy go to a separate generation, known by the snapshot. The first of a table is read from the beginning.
Any other is filled unread, and takes over when the copy is whole (``generations``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from pgsluice.shared import telemetry
from pgsluice.shared.errors import Cause, TerminalError, TransientError
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.table import Table
from pgsluice.worker.sinks.search.index_name import PLACEHOLDER, Generation, index_alias
from pgsluice.worker.sinks.search.mapping import TableMapping
from pgsluice.worker.sinks.search.mapping_file import MappingFile
from pgsluice.worker.sinks.search.options import SearchSinkSettings
from pgsluice.worker.sinks.search.server_connection import JSON, ServerConnection, error_type, path_of
from pgsluice.worker.sinks.search.server_kind import (
    SUBSTITUTES,
    Properties,
    ServerKind,
    is_missing,
    kept_less,
    stands_for,
    unknown_type,
    without_type,
)

_EXISTS = "resource_already_exists_exception"
_LIMITED = "validation_exception"
_IN_SNAPSHOT = "snapshot_in_progress_exception"
_NOT_FOUND = 404
_LOOKS = 10
"""Attempts while another task creates an index."""

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class IndexMeta:
    """Metadata of an index, in its mapping. ``table`` is the table of its documents, under the name that routes gave
    it, "" when it is not pgsluice's; ``group`` and ``oid`` are the source table's. ``snapshot`` is the copy whose rows
    it took first, "" for none. ``is_filling``: it was never read, and gets ``settings`` when it is. From
    ``delete_after`` on (seconds since 1970; 0: never) it can be removed.

    One that was made of another for a definition of the source has that definition's position in ``altered``, "" for
    none. While it is filled ``inherits`` is the other's snapshot.
    """

    table: str
    oid: int = 0
    snapshot: str = ""
    is_filling: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    delete_after: int = 0
    group: str = ""
    altered: str = ""
    inherits: str = ""

    def to_be_deleted(self, at: int) -> IndexMeta:
        return replace(self, delete_after=at)

    def is_read_now(self) -> IndexMeta:
        return replace(self, is_filling=False, settings={}, snapshot=self.snapshot or self.inherits, inherits="")

    def is_altered_by(self, position: Position) -> bool:
        """Returns whether it has what the definition there altered."""
        return bool(self.altered) and Position.parse(self.altered) >= position

    def encode(self) -> dict[str, Any]:
        return {"pgsluice": asdict(self)}

    @classmethod
    def decode(cls, meta: dict[str, Any]) -> IndexMeta:
        """Ignores unknown fields: a later version may add some."""
        said = meta.get("pgsluice", {})
        return cls(**{each.name: said[each.name] for each in fields(cls) if each.name in said} | {"table": said.get("table", "")})


@dataclass(frozen=True, slots=True)
class FoundGeneration:
    """An index as the server has it. ``is_read``: the alias is its. ``keeps_less`` is the setting that makes it keep
    less of a document than it was sent, "" for none."""

    generation: Generation
    meta: IndexMeta
    is_read: bool
    properties: Properties
    keeps_less: str = ""

    @property
    def table(self) -> str:
        return self.meta.table


class IndexCatalog:
    """The server's indexes, and their changes. Calls raise TransientError when the server does not answer,
    TerminalError."""

    def __init__(
        self, connection: ServerConnection, settings: SearchSinkSettings, overrides: MappingFile, group: str = ""
    ) -> None:
        self._group = group
        self._connection = connection
        self._settings = settings
        self._overrides = overrides
        self._server: ServerKind | None = None

    def server(self) -> ServerKind:
        """Returns the server's kind, which is asked for once."""
        if self._server is None:
            _, root = self._connection.ask("GET", "/")
            self._server = ServerKind.of(root.get("version", {}) if isinstance(root, dict) else {})
        return self._server

    def mapping(self, table: Table) -> TableMapping:
        return TableMapping.of(table, self._overrides, self.server().dialect)

    def alias(self, table: Table) -> str:
        return index_alias(table, self._settings)

    def generations(self, alias: str) -> list[FoundGeneration]:
        """Returns all generations of the alias, the oldest first."""
        status, answer = self._connection.ask("GET", f"/{path_of(alias)}-*", accepted=(_NOT_FOUND,))
        found = [] if status == _NOT_FOUND else [_found(alias, name, index) for name, index in answer.items()]
        return sorted((each for each in found if each is not None), key=lambda each: each.generation.number)

    def current(self, table: Table) -> FoundGeneration | None:
        """Returns the generation that the table's changes go to: the one that is read. None before the first. Only this
        method determines it. Raises TerminalError when it is another program's."""
        alias = self.alias(table)
        for _ in range(_LOOKS):
            if read := [each for each in self.generations(alias) if each.is_read]:
                _check_owner(read[-1], table, self._group)
                check_keeps_all(read[-1])
                return read[-1]
            if self._is_free(alias):
                return None
        raise TerminalError(f"'{alias}' is the alias of an index that is closed", "open the index again")

    def ensured(self, table: Table, *, may_add: bool = True, is_copied: bool = False) -> Generation:
        """Returns the current generation, which is created if necessary, with a field for each of the table's columns.
        Raises TerminalError for a missing field, unless fields may be added; if another had replaced it; and for a
        missing generation of a table that ``is_copied``, because that had one."""
        while True:
            newest = self.newest(self.alias(table))  # before the read: an index created after it must not be followed by another
            found = self.current(table)
            if found is not None:
                _check_not_replaced(found, newest)
                self.add_fields(self.mapping(table), found, may_add=may_add)
                return found.generation
            if is_copied and not self.of_table(table.oid):
                raise TerminalError(
                    f"the index of table '{table.qualified_name}' is gone, and with it the rows that were copied into it",
                    f"restore it, or set search-index as it was; or run 'pgsluice search reindex {table.qualified_name}'",
                )
            made = self.create(table, newest)
            if made is not None:
                return made

    def of_snapshot(self, table: Table, snapshot: str, *, is_whole_later: bool = False) -> Generation:
        """Returns the generation for rows of this copy; creates it if necessary. The first of a table is read from the
        beginning, unless it ``is_whole_later``. Raises TerminalError."""
        alias = self.alias(table)
        while True:
            there = self.generations(alias)
            for each in there:
                if each.meta.snapshot == snapshot and snapshot:
                    _check_owner(each, table, self._group)
                    check_keeps_all(each)
                    self.add_fields(self.mapping(table), each)
                    return each.generation
            is_first = self.current(table) is None
            newest = there[-1].generation if there else Generation(alias, 0)
            made = self.create(table, newest, is_read=is_first and not is_whole_later, snapshot=snapshot)
            if made is not None:
                return made

    def create(
        self,
        table: Table,
        before: Generation,
        *,
        is_read: bool = True,
        snapshot: str = "",
        properties: Properties | None = None,
        altered: str = "",
        inherits: str = "",
    ) -> Generation | None:
        """Creates the generation after ``before``. One that is not read at once is filled first. ``properties`` are its
        fields, unless they are the table's; the rest is as in ``IndexMeta``. None when another task created it. Raises
        TransientError when one of that name is closed, or the server has no room for another, TerminalError."""
        made = before.following
        aliases: dict[str, Any] = {made.write_alias: {}} | ({made.alias: {}} if is_read else {})
        mapping = self.mapping(table)
        settings = {} if is_read else mapping.settings_when_filled
        meta = IndexMeta(
            table.qualified_name,
            table.oid,
            snapshot,
            is_filling=not is_read,
            settings=settings,
            group=self._group,
            altered=altered,
            inherits=inherits,
        )
        usual = self.server().index_settings

        def put(fields: Properties) -> tuple[int, Any]:
            body = mapping.index_body(aliases, meta.encode(), filling=not is_read, properties=fields, usual=usual)
            return self._connection.ask("PUT", f"/{path_of(made.name)}", body, accepted=(400,))

        status, answer = _with_types_there(properties or mapping.properties, put, made)
        if status == 400:
            if _error_of(answer).get("type") == _EXISTS:
                self._check_open(made)
                return None
            raise _not_made(table, _error_of(answer))
        self._check_whole(made)
        return made

    def replace(self, table: Table) -> Generation:
        """Makes a new and empty generation in the place of the current one, which goes."""
        alias = self.alias(table)
        made, altered = None, _altered_of(self.current(table))
        while made is None:
            made = self.create(table, self.newest(alias), is_read=False, altered=altered)
        [found] = [each for each in self.generations(alias) if each.generation == made]
        self.begin_reading(found)
        for each in self.generations(alias):
            if not each.is_read and not (each.meta.is_filling and each.meta.snapshot) and not each.meta.delete_after:
                self.remove(each)
        self.note(found, found.meta.is_read_now())
        return made

    def begin_reading(self, *news: FoundGeneration, replacing: Sequence[FoundGeneration] = ()) -> None:
        """Makes these the read ones, and ``replacing`` not, at once. All that was written to them is found by then. May
        be repeated."""
        actions: list[dict[str, Any]] = []
        for found in news:
            name, alias = found.generation.name, found.generation.alias
            if found.meta.is_filling:
                self._connection.ask("PUT", f"/{path_of(name)}/_settings", {"index": found.meta.settings})
                self._connection.ask("POST", f"/{path_of(name)}/_refresh")
            others = {each.generation for each in self.generations(alias) if each.is_read}
            others -= {each.generation for each in news} | {each.generation for each in replacing}
            actions.append({"add": {"index": name, "alias": alias}})
            actions += [{"remove": {"index": each.name, "alias": alias}} for each in sorted(others, key=lambda each: each.number)]
        left = [each.generation for each in replacing if each.is_read]
        actions += [{"remove": {"index": each.name, "alias": each.alias}} for each in left]
        self._connection.ask("POST", "/_aliases", {"actions": actions})

    def note(self, found: FoundGeneration, meta: IndexMeta) -> None:
        """Stores the metadata of the index."""
        self._connection.ask("PUT", f"/{path_of(found.generation.name)}/_mapping", {"_meta": meta.encode()})

    def of_table(self, oid: int) -> list[FoundGeneration]:
        """Returns the generations of the source's table, under whichever names routes gave it."""
        named = (Generation.named(name) for name, meta in self.metas().items() if (meta.group, meta.oid) == (self._group, oid))
        aliases = {generation.alias for generation in named if generation is not None}
        there = [each for alias in sorted(aliases) for each in self.generations(alias)]
        return [each for each in there if (each.meta.group, each.meta.oid) == (self._group, oid)]

    def metas(self) -> dict[str, IndexMeta]:
        """Returns the metadata of all indexes that may be of tables of this configuration, by name."""
        names = PLACEHOLDER.sub("*", self._settings.index).lower()
        path = f"/{path_of(names)}-*/_mapping?filter_path=*.mappings._meta.pgsluice"
        status, answer = self._connection.ask("GET", path, accepted=(_NOT_FOUND,))
        if status == _NOT_FOUND:
            return {}
        return {name: IndexMeta.decode(index["mappings"]["_meta"]) for name, index in answer.items()}

    def newest(self, alias: str) -> Generation:
        """Returns the newest generation, number 0 if none exists."""
        there = self.generations(alias)
        return there[-1].generation if there else Generation(alias, 0)

    def remove(self, found: FoundGeneration) -> bool:
        """Removes the index, if it exists. False while the server takes a snapshot of it and keeps it: then its
        metadata marks it as removable."""
        path = f"/{path_of(found.generation.name)}"
        status, answer = self._connection.send("DELETE", path, None, JSON)
        if status < 300 or status == _NOT_FOUND:
            return True
        if error_type(answer) != _IN_SNAPSHOT:
            self._connection.refuse(status, answer, f"DELETE {path}")
        if not found.meta.delete_after:
            self.note(found, found.meta.to_be_deleted(int(time.time())))
        return False

    def add_fields(self, mapping: TableMapping, found: FoundGeneration, *, may_add: bool = True) -> None:
        """Gives the index the fields that it lacks. Raises TerminalError when one of them is of another type there."""
        self.add_properties(mapping.properties, found, may_add=may_add)

    def add_properties(self, wanted: Properties, found: FoundGeneration, *, may_add: bool = True) -> None:
        """Adds fields by their wanted properties."""
        missing = _missing_fields(wanted, found)
        if new := [name for name in missing if name not in found.properties and not may_add]:
            raise TerminalError(
                f"index '{found.generation.name}' has no field '{new[0]}'",
                "the change is from before its table was altered: discard its dead letter, and update the row to send it again",
            )
        path = f"/{path_of(found.generation.name)}/_mapping"
        if not missing:
            return
        status, answer = _with_types_there(
            missing, lambda each: self._connection.ask("PUT", path, {"properties": each}, accepted=(400,)), found.generation
        )
        if status == 400:
            kind = str(_error_of(answer).get("type", ""))
            raise TerminalError(
                f"the search server does not give index '{found.generation.name}' the fields {', '.join(missing)} ({kind})",
                "define their fields in a search-mapping file",
            )

    def check_fields(self, table: Table) -> None:
        """Raises TerminalError when the index, if it exists, does not fit the table."""
        found = self.current(table)
        if found is not None:
            _missing_fields(self.mapping(table).properties, found)

    def _check_whole(self, made: Generation) -> None:
        """Raises TerminalError for an index that keeps less than it is sent because of a template, and removes it."""
        for found in self.generations(made.alias):
            if found.generation == made and found.keeps_less:
                self.remove(found)
                check_keeps_all(found)

    def _check_open(self, made: Generation) -> None:
        """Raises TransientError for an index that exists and, being closed, is not among the generations."""
        for _ in range(_LOOKS):
            if self.newest(made.alias).number >= made.number:
                return
        raise TransientError(f"index '{made.name}' is closed", "open it again, or remove it", Cause.TARGET)

    def _is_free(self, alias: str) -> bool:
        """Returns False when a generation has it by now, which another task created. Raises TerminalError when it is
        another program's."""
        status, answer = self._connection.ask("GET", f"/{path_of(alias)}", accepted=(_NOT_FOUND,))
        if status == _NOT_FOUND:
            return True
        if any(Generation.parse(alias, name) for name in answer):
            return False
        raise TerminalError(
            f"'{alias}' exists, and is not an alias of pgsluice", "remove it, or choose other names with search-index"
        )


def _found(alias: str, name: str, index: dict[str, Any]) -> FoundGeneration | None:
    generation = Generation.parse(alias, name)
    if generation is None:
        return None
    mappings = index.get("mappings", {})
    meta = IndexMeta.decode(mappings.get("_meta", {}))
    less = kept_less(mappings.get("_source", {}), index.get("settings", {}).get("index", {}))
    return FoundGeneration(generation, meta, alias in index.get("aliases", {}), mappings.get("properties", {}), less)


def check_keeps_all(found: FoundGeneration) -> None:
    """Raises TerminalError for an index that does not give back what it was sent: what reads documents to complete or to alter
    them would lose the rest."""
    if found.keeps_less:
        raise TerminalError(
            f"index '{found.generation.name}' keeps less of its documents than it is sent ({found.keeps_less})",
            f"remove that from the index template, and run 'pgsluice search reindex {found.table}' if the index holds documents",
        )


def _not_made(table: Table, error: Mapping[str, Any]) -> TransientError | TerminalError:
    kind = str(error.get("type", ""))
    if kind == _LIMITED and "shards" in error.get("reason", ""):
        fact = f"the search server has no room for another index ({kind})"
        return TransientError(fact, "remove some, or raise cluster.max_shards_per_node there", Cause.TARGET)
    return TerminalError(
        f"the search server does not take the mapping of table '{table.qualified_name}' ({kind})",
        "define its fields in a search-mapping file",
    )


def _with_types_there(properties: Properties, put: Callable[[Properties], tuple[int, Any]], made: Generation) -> tuple[int, Any]:
    """Returns what the server answers to ``put``, which is given substitutes for fields of types that the server does not
    have."""
    while True:
        status, answer = put(properties)
        unknown = unknown_type(str(_error_of(answer).get("reason", ""))) if status == 400 else ""
        if unknown not in SUBSTITUTES or without_type(properties, unknown) == properties:
            return status, answer
        log.warning("the search server has no fields of a type, others take their place", type=unknown, index=made.name)
        properties = without_type(properties, unknown)


def _missing_fields(wanted: Properties, found: FoundGeneration) -> Properties:
    """Returns the fields that the index lacks, or has with other properties."""
    for name, definition in wanted.items():
        there = found.properties.get(name) or definition
        is_type, would_be = there.get("type", "object"), definition.get("type", "object")
        if not stands_for(is_type, would_be):
            raise TerminalError(
                f"field '{name}' of index '{found.generation.name}' is of type {is_type}, and would be {would_be} now",
                f"run 'pgsluice search reindex {found.table}', which copies the table into a new index",
            )
    return {name: definition for name, definition in wanted.items() if is_missing(found.properties.get(name), definition)}


def _check_not_replaced(found: FoundGeneration, newest: Generation) -> None:
    """Raises TerminalError for a generation that was replaced: it has nothing of what was written since."""
    if found.meta.delete_after and found.generation != newest:
        fact = f"index '{found.generation.name}' is searched again, which a newer one had replaced"
        raise TerminalError(
            f"{fact}: later documents are not in it",
            f"give the alias back to '{newest.name}'; or run 'pgsluice search reindex {found.table}', which makes another",
        )


def _altered_of(found: FoundGeneration | None) -> str:
    return "" if found is None else found.meta.altered


def _check_owner(found: FoundGeneration, table: Table, group: str) -> None:
    if found.meta.group and group and found.meta.group != group:
        raise TerminalError(
            f"index '{found.generation.name}' holds documents of table '{found.table}' of group '{found.meta.group}'",
            "versions of two groups do not compare: set search-index otherwise; if that group is gone, remove its indexes",
        )
    if found.table != table.qualified_name:
        whose = f"holds documents of table '{found.table}'" if found.table else "is not pgsluice's"
        raise TerminalError(
            f"index '{found.generation.name}', which table '{table.qualified_name}' would go to, {whose}",
            "each table has a separate index: set search-index, or give the table another name on the way, by a route",
        )


def _error_of(answer: Any) -> Mapping[str, Any]:
    error = answer.get("error") if isinstance(answer, dict) else None
    return error if isinstance(error, dict) else {}
