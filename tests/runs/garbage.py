"""Modules and collected tests live as long as the run: the garbage collector need not look at their millions of objects again."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
