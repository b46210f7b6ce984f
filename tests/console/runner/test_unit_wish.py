"""What a runner does with a unit, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.console.runner.unit_wish import RunnerStep, StartedWith, UnitCase, next_step
from pgsluice.shared.broker.unit_records import Desired

NOW = StartedWith(7, 3)
RUNNING = UnitCase(True, Desired.RUNNING, NOW, True, NOW)
ENDED = replace(RUNNING, is_running=False, exit_code=75)


@pytest.mark.parametrize(
    ("case", "step"),
    [
        (UnitCase(True, Desired.RUNNING, NOW, False), RunnerStep.START),
        (UnitCase(True, Desired.PAUSED, NOW, False), RunnerStep.START),
        (UnitCase(True, Desired.STOPPED, NOW, False), RunnerStep.LEAVE),
        (UnitCase(False, Desired.RUNNING, NOW, False), RunnerStep.LEAVE),
        (RUNNING, RunnerStep.LEAVE),
        (replace(RUNNING, desired=Desired.STOPPED), RunnerStep.LEAVE),
        (replace(RUNNING, started=StartedWith(6, 3)), RunnerStep.RENEW),
        (replace(RUNNING, started=StartedWith(7, 2)), RunnerStep.LEAVE),
        (replace(RUNNING, started=StartedWith(6, 3), wanted=False), RunnerStep.LEAVE),
        (replace(RUNNING, started=None), RunnerStep.LEAVE),
        (ENDED, RunnerStep.AGAIN),
        (replace(ENDED, exit_code=None), RunnerStep.AGAIN),
        (replace(ENDED, exit_code=-9), RunnerStep.AGAIN),
        (replace(ENDED, exit_code=0), RunnerStep.AGAIN),
        (replace(ENDED, exit_code=0, is_finished=True), RunnerStep.LEAVE),
        (replace(ENDED, exit_code=70), RunnerStep.LEAVE),
        (replace(ENDED, exit_code=2), RunnerStep.LEAVE),
        (replace(ENDED, exit_code=70, started=StartedWith(6, 3)), RunnerStep.START),
        (replace(ENDED, exit_code=70, started=StartedWith(7, 2)), RunnerStep.START),
        (replace(ENDED, exit_code=0, is_finished=True, started=StartedWith(7, 2)), RunnerStep.START),
        (replace(ENDED, desired=Desired.STOPPED), RunnerStep.LEAVE),
        (replace(ENDED, wanted=False), RunnerStep.LEAVE),
    ],
    ids=str,
)
def test_each_case_has_its_step(case: UnitCase, step: RunnerStep) -> None:
    assert next_step(case) is step


started = st.builds(StartedWith, st.integers(0, 2), st.integers(0, 2))
cases = st.builds(
    UnitCase,
    st.booleans(),
    st.sampled_from(Desired),
    started,
    st.booleans(),
    st.none() | started,
    st.sampled_from([None, 0, 2, 70, 75, -9]),
    st.booleans(),
)


@given(cases)
def test_nothing_is_started_beside_a_process_nor_against_what_is_desired(case: UnitCase) -> None:
    step = next_step(case)
    if step in (RunnerStep.START, RunnerStep.AGAIN):
        assert not case.is_running
        assert case.wanted
        assert case.desired is not Desired.STOPPED
    if step is RunnerStep.RENEW:
        assert case.is_running
