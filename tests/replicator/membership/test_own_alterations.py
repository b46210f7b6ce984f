"""An alteration of ours that may have happened: what the catalog shows of it, decided without a server."""

from __future__ import annotations

from dataclasses import replace

from pgsluice.replicator.membership.membership import Making, Membership
from pgsluice.replicator.source.publication import Publication, PublishedTable

OURS, EARLIER = "7", "1"


def publication(lsn: str, *tables: tuple[int, str]) -> Publication:
    """Of tables that the transactions with these ids put in; nothing else of it was altered."""
    published = tuple(PublishedTable(oid, "public", f"t{oid}", "r", xmin, "", "") for oid, xmin in tables)
    return Publication("shop", 1, EARLIER, lsn, ("insert",), False, True, None, published)


BEFORE = Membership.of(publication("0/10", (1, EARLIER), (2, EARLIER)))
JOINING = replace(BEFORE, making=Making(OURS, (1, 2, 3)))


def test_a_table_that_we_put_in_is_followed_since_the_last_look() -> None:
    settled = JOINING.settled(publication("0/30", (1, EARLIER), (2, EARLIER), (3, OURS)))
    assert (settled.making, sorted(settled.oids), settled.left) == (None, [1, 2, 3], ())
    assert [member.since for member in settled.members] == ["0/10"] * 3


def test_it_is_ours_by_its_transaction_also_when_another_table_is_gone_since() -> None:
    settled = JOINING.settled(publication("0/30", (1, EARLIER), (3, OURS)))
    assert (settled.making, sorted(settled.oids)) == (None, [1, 2, 3])


def test_what_never_happened_leaves_everything_as_it_was() -> None:
    assert JOINING.settled(publication("0/30", (1, EARLIER), (2, EARLIER))) == BEFORE
