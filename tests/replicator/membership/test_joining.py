"""Which tables may join, and from where changes of those that left are missing: decided without a server."""

from __future__ import annotations

import pytest

from pgsluice.replicator.membership.joining import Wishes, choose_joining, leaving, settle_breaks
from pgsluice.replicator.membership.membership import Break, Membership
from pgsluice.replicator.source.publication import Publication, PublishedTable
from pgsluice.replicator.source.tables import SourceTable
from pgsluice.shared.broker.ledger import LedgerContent, Phase, TableRecord
from pgsluice.shared.errors import TerminalError
from pgsluice.shared.wire.table import TablePattern


def source_table(oid: int, name: str) -> SourceTable:
    return SourceTable(oid, "public", name, "r", "p", 0, [], [])


def publication(lsn: str, *tables: tuple[int, str], covers_more: bool = False) -> Publication:
    published = tuple(PublishedTable(oid, "public", name, "r", "1", "", "") for oid, name in tables)
    return Publication("shop", 1, "1", lsn, ("insert",), covers_more, True, None, published)


def wishes(*configured: str, copies: bool = False, added: tuple[str, ...] = (), removed: tuple[str, ...] = ()) -> Wishes:
    def patterns(texts: tuple[str, ...]) -> tuple[TablePattern, ...]:
        return tuple(map(TablePattern.parse, texts))

    return Wishes(copies, patterns(configured), (), patterns(added), patterns(removed))


def test_a_table_that_was_added_by_its_name_is_wanted_although_a_pattern_removes_it() -> None:
    wanted = wishes("sales.*", added=("sales.orders",), removed=("sales.*",))
    assert wanted.wants("sales", "orders")
    assert not wanted.wants("sales", "items")
    assert not wishes("sales.*", added=("sales.o*",), removed=("sales.orders",)).wants("sales", "orders")


def test_a_table_that_left_and_was_renamed_does_not_return() -> None:
    """Not even where an administrator's publication takes in every table that is made. The others go on."""
    left = Break(2, "public", "u", "0/10", "2026-01-31T12:00:00", "it is no longer among the tables")
    membership = Membership("shop", 1, "1", ("insert",), True, (), "0/20", "", left=(left,))
    returned, newborn = source_table(2, "renamed"), source_table(3, "made")
    joining = choose_joining(membership, [returned, newborn], wishes("public.*"), newborn={2, 3})
    assert joining.tables == [newborn]
    [(refused, error)] = joining.refused
    assert (refused, "table public.renamed was not replicated from 0/10" in error.fact) == (returned, True)
    with pytest.raises(TerminalError, match=r"table public\.renamed was not replicated from 0/10"):
        choose_joining(membership, [returned], wishes("public.renamed"))


def test_changes_of_a_table_that_leaves_are_missing_from_when_it_was_published_last() -> None:
    membership = Membership.of(publication("0/10", (1, "t"), (2, "u"), (3, "dropped")))
    now = publication("0/30", (1, "t"), (2, "u"))
    left = leaving(membership, now, [source_table(1, "t")], {3: "it was dropped at the source"}, "now")
    assert [(each.table, each.lsn, each.at, each.reason) for each in left] == [
        ("u", "0/30", "now", "it is no longer among the tables"),
        ("dropped", "0/10", membership.seen_at, "it was dropped at the source"),
    ]


@pytest.mark.parametrize("phase", [Phase.INIT, Phase.DATA_SYNC, Phase.ERRORED])
def test_what_is_missing_of_a_table_does_not_matter_when_that_is_copied_anew(phase: Phase) -> None:
    missing = tuple(Break(oid, "public", f"t{oid}", "0/10", "", "another client removed it") for oid in (1, 2, 3))
    membership = Membership("shop", 1, "1", ("insert",), True, (), "0/20", "", missing=missing)
    records = {1: TableRecord(1, "public", "t1", phase, ""), 2: TableRecord(2, "public", "t2", Phase.FINISHED_COPY, "")}
    tables = [source_table(1, "t1"), source_table(2, "t2")]
    settled, accepted = settle_breaks(membership, tables, LedgerContent(None, records), wishes("public.*", copies=True))
    assert (settled.missing, accepted) == ((missing[1],), [])
