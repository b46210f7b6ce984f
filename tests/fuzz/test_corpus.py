"""Every kept input goes through its target once, so that a finding is not repeated. ``make fuzz`` looks for more."""

from __future__ import annotations

import time
from itertools import chain

import pytest

from tests.fuzz.target import CORPUS, LONGEST_S, TARGETS, inputs, load
from tests.misses import no_misses
from tests.source_code import REPOSITORY

MOST_KEPT_BYTES = 300_000


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_are_read_or_refused_as_promised(name: str) -> None:
    target, slowest_s = load(name), 0.0
    for data in inputs(name):
        began = time.process_time()
        target.feed(data)
        slowest_s = max(slowest_s, time.process_time() - began)
    assert slowest_s < LONGEST_S


def test_each_target_keeps_inputs_and_all_of_them_are_small() -> None:
    no_misses((name for name in TARGETS if not inputs(name)), "keeps no inputs: python -m tests.fuzz.renew_corpus")
    no_misses({path.name for path in CORPUS.iterdir()} ^ set(TARGETS), "a target without a folder, or a folder without a target")
    kept = sum(len(data) for data in chain.from_iterable(map(inputs, TARGETS)))
    assert kept < MOST_KEPT_BYTES


def test_each_module_of_targets_is_run() -> None:
    modules = {path.stem for path in (REPOSITORY / "tests" / "fuzz" / "targets").glob("*.py")} - {"__init__"}
    no_misses(modules ^ set(TARGETS), "in TARGETS without a module, or a module that is not in TARGETS")
