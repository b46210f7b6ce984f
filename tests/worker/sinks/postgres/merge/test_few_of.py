"""Which of the refused rows have to be left out, as the search among their sets finds them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pgsluice.worker.sinks.postgres.merge.refused_rows import few_of

CULPRITS = st.sets(st.integers(0, 19), min_size=1, max_size=3)
GROUPS = st.sets(st.integers(0, 19), min_size=2, max_size=4)


@given(CULPRITS, GROUPS)
def test_what_goes_only_together_stays_beside_what_has_to_go(culprits: set[int], together: set[int]) -> None:
    """A set that lacks no culprit, and all or nothing of the group, is taken. Beside one culprit the group stays."""

    def is_taken(left_out: Sequence[int]) -> bool:
        gone = set(left_out)
        return culprits <= gone and (not (together - culprits) & gone or together <= gone)

    found = set(few_of(range(20), is_taken, most_trials=1000))
    assert is_taken([*found])
    assert found <= culprits | together
    if len(culprits) == 1 and not culprits & together:
        assert found == culprits


def test_the_search_ends_with_what_it_has_when_it_takes_too_long() -> None:
    tried: list[Sequence[int]] = []

    def is_taken(left_out: Sequence[int]) -> bool:
        tried.append(left_out)
        return len(left_out) == 20

    assert few_of(range(20), is_taken, most_trials=7) == range(20)
    assert len(tried) == 7
