"""What a rule finds, told with what is to be done: for tests that hold all files, options or metrics to one sentence."""

from __future__ import annotations

from collections.abc import Iterable


def no_misses(found: Iterable[object], remedy: str) -> None:
    """Fails when anything is found: each on a line of its own below ``remedy``, so that one run names all of them."""
    __tracebackhide__ = True
    lines = sorted(str(each) for each in found)
    assert not lines, "\n  ".join([remedy, *lines])
