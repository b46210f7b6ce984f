"""Tables walk into publications, out of them and about at random: the group ends with what it has to hold."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.replicator.tables.conftest import MakeGroup
from tests.replicator.tables.table_walk import TableWalk


def walk(make_group: MakeGroup, examples: int, steps: int, *, is_fixed: bool) -> None:
    made_for = type("MadeForWalk", (TableWalk,), {"make_group": staticmethod(make_group)})
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=is_fixed,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=not is_fixed,
    )
    run_state_machine_as_test(made_for, settings=chosen)


def test_whatever_way_tables_go_the_group_holds_what_it_has_to(make_shared_group: MakeGroup) -> None:
    """The same walks in each run."""
    walk(make_shared_group, 2, 12, is_fixed=True)


@pytest.mark.long
def test_whatever_way_tables_go_for_hours(make_shared_group: MakeGroup) -> None:
    walk(make_shared_group, 150, 40, is_fixed=False)
