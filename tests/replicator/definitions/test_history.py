"""What a table was like at a position, whatever was forgotten and heard again."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pgsluice.replicator.definitions.history import History, Version
from pgsluice.shared.wire.position import LSN, Position
from tests.worker.definitions.definitions_of import TABLE

positions = st.builds(Position, st.integers(1, 9).map(LSN), st.integers(1, 3))


def version(position: Position) -> Version:
    """No two are alike."""
    return Version(position, replace(TABLE, filenode=position.commit_lsn * 10 + position.ordinal))


@given(st.lists(positions, unique=True), positions)
def test_a_change_is_of_the_newest_version_before_it(noted: list[Position], asked: Position) -> None:
    history = History()
    assert all(history.note(version(position)) for position in noted)
    expected = max((position for position in noted if position < asked), default=None)
    assert history.before(asked) == (None if expected is None else version(expected).defined)


@given(st.lists(positions, unique=True), st.integers(1, 9).map(LSN))
def test_what_is_forgotten_is_of_no_change_that_comes_again(noted: list[Position], confirmed: LSN) -> None:
    whole, history = History(map(version, noted)), History(map(version, noted))
    assert history.forget_before(confirmed) == (len(history.versions) < len(whole.versions))
    for ordinal in range(1, 5):
        for commit_lsn in range(confirmed, 11):
            asked = Position(LSN(commit_lsn), ordinal)
            assert history.before(asked) == whole.before(asked)
    assert len([each for each in history.versions if each.position.commit_lsn < confirmed]) <= 1


@given(st.lists(positions, unique=True, min_size=1))
def test_what_is_heard_again_is_no_news(noted: list[Position]) -> None:
    history = History(map(version, noted))
    assert not any(history.note(version(position)) for position in noted)
    assert [each.position for each in history.versions] == sorted(noted)


def test_a_definition_that_says_nothing_new_is_no_version() -> None:
    history = History([version(Position(LSN(1), 1))])
    assert not history.note(replace(version(Position(LSN(1), 1)), position=Position(LSN(2), 1)))
    assert len(history.versions) == 1
