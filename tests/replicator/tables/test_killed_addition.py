"""The replicator dies between any two steps of an addition: the next one ends with the table copied, and no row is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pgsluice.shared.broker.ledger import Phase
from tests.replicator.tables.conftest import MakeGroup
from tests.replicator.tables.streaming_group import StreamingGroup
from tests.waiting import wait_until

ROWS = 30_000


def kill_when(group: StreamingGroup, condition: Callable[[], object], what: str) -> None:
    wait_until(condition, deadline_s=60.0, what=what, interval_s=0)
    group.process.kill()


def in_the_ledger(group: StreamingGroup) -> None:
    """Somebody writes to the table, so it is in the ledger and cannot be published."""
    with group.source.connect(autocommit=False) as writer:
        writer.execute("UPDATE u SET v = 'open' WHERE id = 1")
        group.order("add", "--no-wait", "u")
        group.process.wait_for_log("a table that joins or leaves is in use")
        record = group.table("u")
        assert record is not None
        assert (record.phase, "u" in group.published()) == (Phase.INIT, False)
        group.process.kill()
        writer.commit()


def published(group: StreamingGroup) -> None:
    """As soon as it can be seen: the record of the publication may know it, or not yet."""
    group.order("add", "--no-wait", "u")
    with group.source.connect() as watching:
        query = "SELECT FROM pg_publication_rel WHERE prrelid = 'u'::regclass"
        kill_when(group, lambda: watching.execute(query).rowcount, "the publication")


def before_its_slot(group: StreamingGroup) -> None:
    """A transaction is open, elsewhere: the slot of the copy waits for it."""
    with group.source.connect(autocommit=False) as writer:
        writer.execute("UPDATE t SET v = 'open' WHERE id = 1")
        group.order("add", "--no-wait", "u")
        wait_until(lambda: group.process.log().count("exporting a snapshot") > 1, deadline_s=60.0, what="the slot")
        group.process.kill()
        writer.commit()


def begun(group: StreamingGroup) -> None:
    """As soon as its begin message is in the stream, which takes less time than a Spark job."""
    group.order("add", "--no-wait", "u")
    kill_when(group, lambda: group.process.log().count("copying tables") > 1, "the begin message")


def half_copied(group: StreamingGroup) -> None:
    """Of an addition that may have been ordered already."""
    if group.table("u") is None:
        group.order("add", "--no-wait", "u")
    group.wait_for_table("u", lambda record: record.ranges_done > 0 or record.phase is Phase.FINISHED_COPY, "a range")
    group.process.kill()


@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param((published, half_copied), id="published, then half copied"),
        *(pytest.param((die,), marks=pytest.mark.long, id=die.__name__) for die in (in_the_ledger, before_its_slot, begun)),
    ],
)
def test_a_replicator_that_dies_while_a_table_joins_is_followed_by_one_that_copies_it(
    make_group: MakeGroup, deaths: Sequence[Callable[[StreamingGroup], None]]
) -> None:
    """The second of two deaths shows that whoever followed the first had begun to copy."""
    group = make_group()
    group.create("u", ROWS)
    for number, die in enumerate(deaths):
        with group.running():
            if number == 0:
                group.wait_for_copy("t")
            die(group)
        group.source.execute(f"DELETE FROM u WHERE id = {number + 2}; INSERT INTO u VALUES (-{number}, 'while nobody runs')")
    with group.running():
        group.insert("u", ROWS + 1, ROWS + 5)
        group.wait_for_copy("u")
        group.insert("u", ROWS + 6, ROWS + 9)
        assert "is replicated" in group.ordered("add", "u")
        assert group.read("t", "u") == group.at_source("t", "u")
    assert group.published() == {"t", "u"}
