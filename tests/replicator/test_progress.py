"""What may be confirmed to the slot."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pgsluice.replicator.progress import Progress
from pgsluice.shared.wire.position import LSN


def test_flushed_lsn_stays_behind_an_unacknowledged_commit() -> None:
    progress = Progress(LSN(10), sequence=5)
    progress.published(6, LSN(100))
    progress.published(7, LSN(200))
    assert progress.confirmed == 10
    progress.acknowledged(6)
    assert progress.confirmed == 100
    progress.acknowledged(7)
    assert progress.confirmed == 200


def test_an_idle_lsn_is_confirmed_only_after_it_was_recorded() -> None:
    progress = Progress(LSN(10), sequence=0)
    progress.caught_up(LSN(500))
    assert (progress.confirmed, progress.recordable) == (10, 500)
    progress.recorded(progress.recordable)
    assert progress.confirmed == 500


def test_an_idle_lsn_waits_for_the_messages_before_it() -> None:
    progress = Progress(LSN(10), sequence=0)
    progress.published(1, LSN(100))
    progress.caught_up(LSN(500))
    assert progress.recordable == 10
    progress.acknowledged(1)
    assert (progress.confirmed, progress.recordable) == (100, 500)


def test_confirmed_lsn_never_moves_back() -> None:
    progress = Progress(LSN(1000), sequence=0)
    progress.published(1, LSN(100))
    progress.acknowledged(1)
    progress.recorded(LSN(50))
    assert progress.confirmed == 1000


def test_idle_lsns_that_wait_do_not_pile_up() -> None:
    progress = Progress(LSN(0), sequence=0)
    progress.published(1, LSN(1))
    for lsn in range(2, 10_000):
        progress.caught_up(LSN(lsn))
    assert len(progress._marks) == 2


@given(st.lists(st.sampled_from(["publish", "acknowledge", "caught up", "record"])))
def test_nothing_is_confirmed_before_everything_up_to_it_is_acknowledged(events: list[str]) -> None:
    progress = Progress(LSN(0), sequence=0)
    published, acknowledged, recorded, lsn = 0, 0, 0, 0
    flushed_at: dict[int, int] = {}
    for event in events:
        before = progress.confirmed
        lsn += 10
        match event:
            case "publish":
                published += 1
                flushed_at[published] = lsn
                progress.published(published, LSN(lsn))
            case "acknowledge" if acknowledged < published:
                acknowledged += 1
                progress.acknowledged(acknowledged)
            case "caught up":
                progress.caught_up(LSN(lsn))
            case "record":
                recorded = progress.recordable
                progress.recorded(LSN(recorded))
        unacknowledged = [flushed_at[sequence] for sequence in range(acknowledged + 1, published + 1)]
        assert progress.confirmed >= before
        assert progress.confirmed < min(unacknowledged, default=lsn + 1)
        assert progress.confirmed <= max([recorded, *(flushed_at[s] for s in range(1, acknowledged + 1))])
