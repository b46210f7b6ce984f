"""Random schemas with foreign keys of every action under load, while replicator and worker are killed: every look at the target
sees what one commit of the source left, and at the end that is the last one."""

from __future__ import annotations

import random
import re
import threading
from contextlib import closing
from typing import Any

import pytest

from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.foreign_keys.random_schema import RandomSchema
from tests.foreign_keys.random_twin import RandomTwin
from tests.foreign_keys.schema_load import SchemaLoad
from tests.foreign_keys.twin_audit import OwnThings, StateWatch
from tests.servers import Database, NatsServer
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

KILLS = 6
LONGEST_LIFE_S = 3.0
"""Of what was seen to do its work."""
LONGEST_START_S = 120.0
CATCH_UP_DEADLINE_S = 300.0


class Run:
    """One schema, its twin, the load and the group between them."""

    def __init__(self, seed: int, source: Database, target: Database) -> None:
        self._choose = random.Random(seed)
        self.schema = RandomSchema.of(self._choose)
        self.twin = RandomTwin.of(self.schema, self._choose)
        self.source, self.target, self.seed = source, target, seed
        source.execute(self.schema.statements())
        target.execute(self.twin.statements())

    def kill_under_load(self, keys: dict[str, Any], own: OwnThings | None = None) -> tuple[StateWatch, str]:
        """What was seen of the target, and what a worker said of a constraint that refuses rows, "" if it said nothing.
        ``own`` is marked in the middle."""
        stopping = threading.Event()
        with GroupUnderTest(keys, is_fresh=True) as group:
            group.replicator.wait_for_log("replicating")
            with (
                closing(SchemaLoad(self.source, self.schema, self.seed)) as load,
                StateWatch(self.target, self.schema.checksums_query(), load.states) as watch,
            ):
                writing = threading.Thread(target=load.run_until, args=[stopping])
                writing.start()
                try:
                    self._kill(group, watch, own)
                finally:
                    stopping.set()
                    writing.join()
                wait_until(
                    lambda: watch.newest == load.newest or self._refusal(group) != "",
                    deadline_s=CATCH_UP_DEADLINE_S,
                    what="the last commit at the target",
                )
                print(f"{load.newest} commits, {load.refused} statements refused, {len(watch.seen)} states seen")
            return watch, self._refusal(group)

    def _kill(self, group: GroupUnderTest, watch: StateWatch, own: OwnThings | None) -> None:
        never = threading.Event()
        for kill in range(KILLS):
            if own is not None and kill == KILLS // 2:
                own.mark()
            before = watch.newest
            wait_until(
                lambda before=before: watch.newest > before or self._refusal(group) != "",  # type: ignore[misc]
                deadline_s=LONGEST_START_S,
                what="another commit at the target",
            )
            if self._refusal(group):
                return
            never.wait(self._choose.uniform(0.0, LONGEST_LIFE_S))
            process = self._choose.choice((group.replicator, group.worker))
            process.kill()
            process.start()

    def _refusal(self, group: GroupUnderTest) -> str:
        refused = [line for line in group.worker.log().splitlines() if "constraint '" in line]
        return refused[-1] if refused else ""


@pytest.mark.parametrize("seed", range(1, 31))
def test_every_look_at_the_target_sees_a_commit_of_the_source_whoever_is_killed(
    seed: int, source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    run = Run(seed, source_database, target_database)
    own = OwnThings(target_database, run.twin)
    watch, refusal = run.kill_under_load(configuration(group, source_database, target_database, nats_server), own)
    assert refusal == ""
    assert watch.torn == []
    assert watch.backwards == []
    assert len(watch.seen) > KILLS
    assert own.losses(acts=False) == []


@pytest.mark.parametrize("seed", range(101, 111))
def test_by_an_ordinary_role_it_does_too_or_the_worker_names_the_foreign_key(
    seed: int, source_database: Database, target_database: Database, nats_server: NatsServer, group: str, ordinary_role: str
) -> None:
    run = Run(seed, source_database, target_database)
    target_database.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {ordinary_role}")
    target_database.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {ordinary_role}")
    keys = configuration(group, source_database, target_database, nats_server) | {"target-user": ordinary_role}
    watch, refusal = run.kill_under_load(keys)
    if refusal:
        assert re.search(r"constraint '(t\d_(f\d|u_key)|own_t\d_ref)'", refusal)
    else:
        assert watch.torn == []
    assert watch.backwards == []
