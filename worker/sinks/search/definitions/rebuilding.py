"""Carries definitions out: makes a new index of a table's index, with the later fields.

The driver does it, at the definition's place between the rows: earlier changes are in the index, and none of the
definition's batch is. It reads the index from one end to the other, and stores the documents in a new generation, with
the versions that they have. When all tables of the batch are done the aliases move, in one request. Earlier generations
go after ``search-keep-old``.

It may be interrupted anywhere. A generation that was not finished is removed and made again: it contains its
definition. One that is read is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from pgsluice.shared import telemetry
from pgsluice.shared.errors import Cause, TerminalError, TransientError
from pgsluice.shared.wire.definition import TableDefined, TableDefinition, TablePublished, TableRewritten
from pgsluice.shared.wire.position import Position
from pgsluice.shared.wire.published_definition import PublishedDefinition, concerned
from pgsluice.shared.wire.table import Table
from pgsluice.worker.definitions.policy import Policies
from pgsluice.worker.sinks.search.bulk import Operation
from pgsluice.worker.sinks.search.bulk_delivery import BulkDelivery
from pgsluice.worker.sinks.search.definitions.altered_tables import AlteredTable
from pgsluice.worker.sinks.search.definitions.index_alteration import (
    AlterationStep,
    Altering,
    altered_document,
    altered_properties,
    alters_any,
    check_possible,
    new_name,
    rows_table,
)
from pgsluice.worker.sinks.search.definitions.whole_documents import check_whole, compared_fields, query_of
from pgsluice.worker.sinks.search.document import document_of, read_fields, with_whole_values
from pgsluice.worker.sinks.search.index import FoundGeneration, IndexCatalog
from pgsluice.worker.sinks.search.server_connection import JSON, ServerConnection, path_of

KEPT_OPEN = "10m"
"""Time that the server keeps a search open, from page to page."""

PAGE_BYTES = 4 * 1024 * 1024
MOST_DOCUMENTS = 5000
_SAMPLE = 20
_TOLD_EVERY_S = 30.0
_NOT_FOUND, _FORBIDDEN = 404, 403

Given = tuple[PublishedDefinition, Position]

log = telemetry.logger(__name__)


@dataclass(frozen=True, slots=True)
class _Rebuild:
    """``table`` is what rows are of from then on, ``steps`` what its documents go through."""

    found: FoundGeneration
    table: Table
    alias: str
    names: frozenset[str]
    steps: tuple[AlterationStep, ...]
    position: Position

    @property
    def properties(self) -> dict[str, Any]:
        return altered_properties(self.found.properties, self.steps)

    @property
    def is_done(self) -> bool:
        return self.found.meta.is_altered_by(self.position)

    @property
    def is_needed(self) -> bool:
        return self.alias != self.found.generation.alias or alters_any(self.found.properties, self.steps)


class IndexRebuilding:
    """Blocking. ``moved`` is called with every page, ``waits`` with an obstacle: then it tries again, unless that
    raises."""

    def __init__(
        self,
        catalog: IndexCatalog,
        connection: ServerConnection,
        delivery: BulkDelivery,
        policies: Policies,
        keep_old_s: float,
        moved: Callable[[], None],
        waits: Callable[[TransientError], None],
    ) -> None:
        self._catalog = catalog
        self._connection = connection
        self._delivery = delivery
        self._policies = policies
        self._keep_old_s = keep_old_s
        self._moved = moved
        self._waits = waits

    def carry_out(self, given: Sequence[Given]) -> tuple[AlteredTable, ...]:
        """Carries out all definitions of a batch. May be repeated. Raises TransientError, and TerminalError for an
        error that needs an operator; then no index that is read is altered."""
        for definition, position in given:
            check_possible(definition, position, self._policies)
        rebuilds = [rebuild for chain in _chains(given) for rebuild in self._rebuilds(chain, _rewritten(given))]
        pairs = [(each, self._rebuilt(each)) for each in rebuilds if each.is_needed and not each.is_done]
        if pairs:
            self._catalog.begin_reading(*(made for _, made in pairs), replacing=[each.found for each, _ in pairs])
        for rebuild in rebuilds:
            if rebuild.is_needed or rebuild.is_done:
                self._settle(rebuild)
        return tuple(AlteredTable(each.table.oid, each.names, each.alias, each.steps) for each in rebuilds)

    def _rebuilds(self, chain: Sequence[Given], rewritten: frozenset[int]) -> Iterator[_Rebuild]:
        """Yields the rebuilds of one table, which has several indexes when routes divide it."""
        definition, position = chain[-1]
        assert isinstance(definition.event, TableDefined | TablePublished)
        now = definition.event.table
        for found in self._catalog.of_table(now.oid):
            if not found.is_read:
                continue
            named = _Named.of(found, chain, self._policies)
            steps = [self._altering(given, named.now, rewritten).step(self._policies) for given in chain]
            table = rows_table(now, *named.now)
            alias = self._catalog.alias(table) if named.is_renamed else found.generation.alias
            yield _Rebuild(found, table, alias, named.all, tuple(steps), position)

    def _altering(self, given: Given, name: tuple[str, str], rewritten: frozenset[int]) -> Altering:
        definition, position = given
        assert isinstance(definition.event, TableDefined | TablePublished)
        assert isinstance(definition.previous, TableDefinition)
        was, now = ({**self._fields(each, name)} for each in (definition.previous, definition.event.table))
        return Altering(definition, position, was, now, definition.event.table.oid in rewritten)

    def _fields(self, definition: TableDefinition, name: tuple[str, str]) -> dict[int, Any]:
        mapping = self._catalog.mapping(rows_table(definition, *name))
        return {column.number: there for column, there in zip(mapping.table.columns, mapping.fields, strict=True)}

    def _rebuilt(self, rebuild: _Rebuild) -> FoundGeneration:
        """Returns a generation that is not read yet, and that has all documents."""
        position = str(rebuild.position)
        for each in self._catalog.generations(rebuild.alias):
            if not each.is_read and each.meta.is_filling and each.meta.altered:
                self._catalog.remove(each)
        made = None
        while made is None:
            newest = self._catalog.newest(rebuild.alias)
            made = self._catalog.create(
                rebuild.table,
                newest,
                is_read=False,
                properties=rebuild.properties,
                altered=position,
                inherits=rebuild.found.meta.snapshot,
            )
        log.info("a new index is made, as the source altered the table", index=made.name, table=rebuild.found.table, at=position)
        self._fill(rebuild, made.write_alias)
        [found] = [each for each in self._catalog.generations(rebuild.alias) if each.generation == made]
        return found

    def _fill(self, rebuild: _Rebuild, target: str) -> None:
        done, told_at = 0, time.monotonic()
        for hits, total in self._pages(rebuild.found):
            check_whole(hits, rebuild.found.table)
            self._deliver([_operation(hit, target, rebuild.steps) for hit in hits])
            self._check_refused(rebuild)
            done += len(hits)
            self._moved()
            if time.monotonic() - told_at >= _TOLD_EVERY_S:
                told_at = time.monotonic()
                log.info("documents go to the new index", table=rebuild.found.table, documents=done, of=total)

    def _deliver(self, operations: Sequence[Operation]) -> None:
        while True:
            try:
                self._delivery.deliver(operations)
                return
            except TransientError as error:
                self._waits(error)

    def _check_refused(self, rebuild: _Rebuild) -> None:
        refused = self._delivery.tally.refused
        if refused:
            answer, table = refused[0].answer, rebuild.found.table
            raise TerminalError(
                f"the source altered '{table}' (at {rebuild.position}), and {len(refused)} documents do not fit the new index "
                f"({answer.error or f'status {answer.status}'}); nothing was altered",
                f"run 'pgsluice search reindex {table}', which copies the table into a new index",
            )

    def _pages(self, found: FoundGeneration) -> Iterator[tuple[list[dict[str, Any]], int]]:
        """Yields all documents of the index, and how many there are."""
        index, whole = found.generation.name, self._catalog.server().whole_source
        _, refreshed = self._connection.ask("POST", f"/{path_of(index)}/_refresh")
        if refreshed["_shards"]["failed"]:
            raise _unread("the last written documents are not searchable everywhere")
        query = {"size": self._page_size(index, whole), "version": True, "sort": ["_doc"], **whole}
        query["query"] = query_of(compared_fields(found.properties))
        answer = self._search(f"/{path_of(index)}/_search?scroll={KEPT_OPEN}", query | {"track_total_hits": True})
        total, seen = int(answer["hits"]["total"]["value"]), 0
        while hits := answer["hits"]["hits"]:
            seen += len(hits)
            yield hits, total
            answer = self._search("/_search/scroll", {"scroll": KEPT_OPEN, "scroll_id": answer["_scroll_id"]})
        # OpenSearch has a separate permission for this, which none of its groups of permissions holds; the search times
        # out too
        ended = _NOT_FOUND, _FORBIDDEN
        self._connection.ask("DELETE", "/_search/scroll", {"scroll_id": answer["_scroll_id"]}, accepted=ended)
        if seen != total:
            raise _unread(f"{seen} of {total} documents")

    def _page_size(self, index: str, whole: dict[str, Any]) -> int:
        query = {"size": _SAMPLE, "query": {"match_all": {}}, **whole}
        status, answer = self._connection.send("POST", f"/{path_of(index)}/_search", orjson.dumps(query), JSON)
        if status != 200:
            self._connection.refuse(status, answer, f"POST /{index}/_search")
        return max(10, min(MOST_DOCUMENTS, PAGE_BYTES * _SAMPLE // max(1, len(answer))))

    def _search(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """Numbers keep every digit. Raises TransientError for half an answer."""
        status, body = self._connection.send("POST", path, orjson.dumps(content), JSON)
        if status == _NOT_FOUND:
            raise _unread("the server has closed the scroll")
        if status != 200:
            self._connection.refuse(status, body, f"POST {path}")
        answer: dict[str, Any] = read_fields(body)
        if answer.get("timed_out") or answer.get("_shards", {}).get("failed"):
            raise _unread("a part of the index did not answer")
        return answer

    def _settle(self, rebuild: _Rebuild) -> None:
        """Schedules the removal of replaced indexes, then notes that the new one is filled."""
        aliases = {rebuild.alias, rebuild.found.generation.alias}
        ours = [each for each in self._catalog.of_table(rebuild.table.oid) if each.meta.table in rebuild.names]
        for each in ours:
            if each.is_read or each.meta.delete_after or (each.meta.is_filling and each.meta.snapshot):
                continue
            if each.meta.is_filling or not self._keep_old_s:
                self._catalog.remove(each)
            else:
                kept = replace(each.meta.to_be_deleted(int(time.time() + self._keep_old_s)), snapshot="")
                self._catalog.note(each, kept)
        for each in ours:
            if each.is_read and each.meta.is_filling and each.generation.alias in aliases:
                self._catalog.note(each, each.meta.is_read_now())
                log.info("a new index is searched from now on", index=each.generation.name, table=each.table)


@dataclass(frozen=True, slots=True)
class _Named:
    """The names of a table at its destination: at the end, and at any time in the transaction."""

    now: tuple[str, str]
    all: frozenset[str]
    is_renamed: bool

    @classmethod
    def of(cls, found: FoundGeneration, chain: Sequence[Given], policies: Policies) -> _Named:
        """Returns the names; one that a route gave stays."""
        renamings = [names for definition, _ in chain if (names := new_name(definition, policies)) is not None]
        sources = [name for names in renamings for name in names]
        table = found.table
        if table not in map(_qualified, sources):
            schema, _, name = table.partition(".")
            return cls((schema, name), frozenset({table}), is_renamed=False)
        now = sources[-1]
        return cls(now, frozenset(map(_qualified, sources)), is_renamed=table != _qualified(now))


def _chains(given: Iterable[Given]) -> list[list[Given]]:
    """Returns each table's definitions that have a previous and a new state, in order."""
    chains: dict[int, list[Given]] = {}
    for definition, position in given:
        # a single kind: finds tables that existed, and rows that were rewritten
        if isinstance(definition.event, TableDefined | TablePublished) and isinstance(definition.previous, TableDefinition):
            chains.setdefault(definition.event.table.oid, []).append((definition, position))
    return list(chains.values())


def _rewritten(given: Iterable[Given]) -> frozenset[int]:
    events = [definition.event for definition, _ in given]
    return frozenset(about.oid for each in events if isinstance(each, TableRewritten) and (about := concerned(each)))


def _operation(hit: dict[str, Any], target: str, steps: Sequence[AlterationStep]) -> Operation:
    document = document_of(altered_document(with_whole_values(hit["_source"]), steps))
    return Operation(target, orjson.dumps(hit["_id"]), hit["_version"], 0, document)


def _qualified(name: tuple[str, str]) -> str:
    return ".".join(name)


def _unread(what: str) -> TransientError:
    return TransientError(f"the index could not be read whole: {what}", "it is read from its beginning", Cause.TARGET)
