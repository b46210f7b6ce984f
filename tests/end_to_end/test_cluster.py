"""A pipeline on three nats-servers: leaders die, a follower stands still, the quorum is lost. Nothing is lost, nobody dies of it.

``make test-cluster`` runs the long test: CLUSTER_LEADER_KILLS of leaders, and a third as many of replicator and worker each.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import threading
from collections.abc import Callable

import pytest

from pgsluice.shared.wire.names import GroupNames
from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.end_to_end.random_load import RandomLoad, checksums
from tests.servers import Database, NatsCluster
from tests.stream_audit import audit_stream
from tests.waiting import wait_until

LEADER_KILLS = int(os.environ.get("CLUSTER_LEADER_KILLS", "30"))
CATCH_UP_DEADLINE_S = 900.0
TRANSACTIONS_BETWEEN = 10  # so many are committed, at least, from one blow to the next
LONGEST_ABSENCE_S = 2.0
LOST_QUORUM_S = 12.0  # nats-server's leaders step down after ten


Blow = Callable[[], None]


class ClusterUnderFire:
    """A group on a cluster, under load. Whoever ends by itself is seen in ``under_test``."""

    def __init__(
        self, cluster: NatsCluster, under_test: GroupUnderTest, source: Database, target: Database, load: RandomLoad, seed: int
    ) -> None:
        self._cluster = cluster
        self._source = source
        self._target = target
        self._under_test = under_test
        self._names = GroupNames(under_test.keys["group"])
        self._load = load
        self._choose = random.Random(seed)
        self._never = threading.Event()
        self._is_started_again = False

    def kill_leader(self) -> None:
        """Of the changes, or of the state."""
        stream = self._choose.choice([self._names.changes_stream, f"KV_{self._names.bucket}"])
        killed = self._cluster.kill_leader(stream)
        self._never.wait(self._choose.uniform(0, LONGEST_ABSENCE_S))
        killed.start()
        self._cluster.wait_until_current(stream)

    def kill_replicator(self) -> None:
        self._is_started_again = True
        self._under_test.replicator.kill()
        self._under_test.replicator.start()

    def kill_worker(self) -> None:
        self._is_started_again = True
        self._under_test.worker.kill()
        self._under_test.worker.start()

    def pause_follower(self) -> None:
        follower, _ = self._cluster.followers_of(self._names.changes_stream)
        with self._cluster.paused(follower):
            self._never.wait(LONGEST_ABSENCE_S)

    def lose_quorum(self) -> None:
        killed = self._choose.sample(self._cluster.nodes, 2)
        for node in killed:
            node.kill()
        self._never.wait(LOST_QUORUM_S)
        for node in killed:
            node.start()
        self._cluster.wait_until_ready()

    def strike(self, blows: list[Blow]) -> None:
        for blow in blows:
            self.check_alive()
            before = self._load.transactions
            self._await_load(before + TRANSACTIONS_BETWEEN)
            print(blow.__name__, flush=True)
            blow()

    def is_equal(self) -> bool:
        self.check_alive()
        return checksums(self._source) == checksums(self._target)

    def _await_load(self, transactions: int) -> None:
        wait_until(lambda: self._load.transactions >= transactions, what="more transactions")

    def check_alive(self) -> None:
        """A process that was started while there was no leader may have given up, and is started again."""
        for process in (self._under_test.replicator, self._under_test.worker):
            if process.is_running:
                continue
            assert self._is_started_again, process.log()[-6000:]
            assert process.wait() == 75, process.log()[-6000:]
            print("started again:", process.log().splitlines()[-1], flush=True)
            process.start()


ChooseBlows = Callable[[ClusterUnderFire], list[Blow]]


def run_cluster(cluster: NatsCluster, source: Database, target: Database, group: str, blows: ChooseBlows) -> None:
    """``blows`` are dealt out in random order; then the tables must become equal, without a process that ended by itself."""
    seed = int(os.environ.get("CLUSTER_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    print(f"CLUSTER_SEED={seed}")
    RandomLoad.create_tables(source)
    load = RandomLoad(source, seed, connections=2)
    keys = configuration(group, source, target, cluster) | {"stream-replicas": 3, "stream-max-bytes": "1GiB"}
    with GroupUnderTest(keys) as under_test:
        under_test.replicator.wait_for_log("replicating")
        fire = ClusterUnderFire(cluster, under_test, source, target, load, seed)
        with load:
            wait_until(lambda: has_rows(target), deadline_s=180, what="the first batch at the target")
            dealt = blows(fire)
            random.Random(seed).shuffle(dealt)
            fire.strike(dealt)
            load.stop()
        wait_until(
            fire.is_equal,
            deadline_s=CATCH_UP_DEADLINE_S,
            what="equal tables",
            interval_s=1.0,
        )
        audit = asyncio.run(audit_stream(cluster.settings(), group))
    assert audit.problems == []
    print(f"{load.transactions} transactions, {audit.changes} changes")


def has_rows(target: Database) -> bool:
    return target.execute("SELECT to_regclass('left_side')") != [(None,)]


@pytest.fixture
def run_under_fire(
    nats_cluster: NatsCluster, source_database: Database, target_database: Database, group: str
) -> Callable[[ChooseBlows], None]:
    return functools.partial(run_cluster, nats_cluster, source_database, target_database, group)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_group_outlives_a_leader_a_follower_that_stands_still_and_a_lost_quorum(
    run_under_fire: Callable[[ChooseBlows], None],
) -> None:
    run_under_fire(lambda fire: [fire.kill_leader, fire.pause_follower, fire.lose_quorum])


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_leaders_replicator_and_worker_are_killed_again_and_again(run_under_fire: Callable[[ChooseBlows], None]) -> None:
    run_under_fire(
        lambda fire: (
            [fire.kill_leader] * LEADER_KILLS
            + [fire.kill_replicator, fire.kill_worker] * -(-LEADER_KILLS // 3)
            + [fire.pause_follower] * 3
            + [fire.lose_quorum] * 2
        )
    )
