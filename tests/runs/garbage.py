"""Modules and collected tests live as long as the run: the garbage collector looks at their millions of objects once, not while
they are made and not again."""

from __future__ import annotations

import gc


def pytest_configure() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()
