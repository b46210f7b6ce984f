"""Tables walk into publications, out of them and about at random: the group ends with what it has to hold."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.replicator.tables.conftest import MakeGroup
from tests.replicator.tables.table_walk import TableWalk


def walk(make_group: MakeGroup, has_own: bool, examples: int, steps: int, first_seed: int | None = None) -> None:
    made_for = type("MadeForWalk", (TableWalk,), {"make_group": staticmethod(make_group), "has_own": has_own})
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    number = random.SystemRandom().randrange(1 << 31) if first_seed is None else first_seed
    print(f"seed {number}")
    TableWalk.steps.clear()
    run_state_machine_as_test(seed(number)(made_for), settings=chosen)
    print(f"{TableWalk.steps.total()} statements: {dict(TableWalk.steps)}")


@pytest.mark.parametrize(("has_own", "number"), [(False, 2), (True, 1)], ids=["an administrator's publication", "its own"])
def test_whatever_way_tables_go_the_group_holds_what_it_has_to(make_shared_group: MakeGroup, has_own: bool, number: int) -> None:
    """The same walks in each run."""
    walk(make_shared_group, has_own, 3, 12, number)


@pytest.mark.long
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("has_own", [False, True], ids=["an administrator's publication", "its own"])
def test_whatever_way_tables_go_for_hours(make_shared_group: MakeGroup, has_own: bool) -> None:
    walk(make_shared_group, has_own, 100, 40)
