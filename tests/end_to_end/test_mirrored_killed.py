"""A pipeline with a stream between rules and sinks, on three nats-servers, of which everything dies again and again.

Replicator, raw stream, ``worker nats``, second stream, ``worker postgres``: both streams and all state have three replicas.
Leaders die, and every process; supervisors start them again. What the second stream holds is what the first one does, change by
change, and nobody who reads the target ever sees half a transaction.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest

from pgsluice.shared.wire.names import GroupNames
from tests.end_to_end.balance_watch import BalanceWatch
from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.random_load import RandomLoad, checksums
from tests.end_to_end.supervised import Supervised
from tests.servers import Database, NatsCluster, PgsluiceProcess
from tests.stream_audit import audit_stream
from tests.stream_lines import group_lines
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200)]

KILLS = int(os.environ.get("MIRRORED_KILLS", "30"))
LONGEST_LIFE_S = 8.0
LONGEST_ABSENCE_S = 2.0
TRANSACTIONS_BETWEEN = 5
CATCH_UP_DEADLINE_S = 900.0


class MirroredPipeline:
    """Its processes, each under a supervisor; ``kill_once`` kills one of them, or a leader of one of its streams and buckets."""

    def __init__(self, cluster: NatsCluster, source: Database, target: Database, group: str, seed: int) -> None:
        self._cluster = cluster
        self.groups = (group, f"{group}-next")
        kept: dict[str, Any] = {"stream-max-bytes": "1GiB"}
        raw = configuration(group, source, None, cluster, **kept, **{"stream-replicas": 3, "nats-group": self.groups[1]})
        raw |= {"nats-stream-replicas": 3, "nats-stream-max-bytes": "1GiB"}
        after = configuration(self.groups[1], source, target, cluster)
        self.processes = {
            "replicator": Supervised(PgsluiceProcess("replicator", config=raw)),
            "worker nats": Supervised(PgsluiceProcess("worker", "nats", config=raw)),
            "worker postgres": Supervised(PgsluiceProcess("worker", "postgres", config=after)),
        }
        self._choose = random.Random(seed)
        self.killed: Counter[str] = Counter()

    def kill_once(self, victim: str) -> None:
        """After a random pause."""
        self.check_alive()
        threading.Event().wait(self._choose.uniform(0.5, LONGEST_LIFE_S))
        if victim in self.processes:
            self.processes[victim].process.kill()
        else:
            self._kill_leader(victim)
        self.killed[victim] += 1

    def check_alive(self) -> None:
        for name, supervised in self.processes.items():
            assert supervised.stopped_by is None, f"{name} ended with {supervised.stopped_by}: {supervised.process.log()[-4000:]}"

    def victims(self) -> list[str]:
        """KILLS of them: each process and each leader as often as the others, in random order."""
        names = [GroupNames(group) for group in self.groups]
        leaders = [stream for each in names for stream in (each.changes_stream, f"KV_{each.bucket}")]
        every = [*self.processes, *leaders]
        dealt = (every * (KILLS // len(every) + 1))[:KILLS]
        self._choose.shuffle(dealt)
        return dealt

    def _kill_leader(self, stream: str) -> None:
        killed = self._cluster.kill_leader(stream)
        threading.Event().wait(self._choose.uniform(0, LONGEST_ABSENCE_S))
        killed.start()
        self._cluster.wait_until_current(stream)


@pytest.fixture
def pipeline(nats_cluster: NatsCluster, source_database: Database, target_database: Database, group: str) -> MirroredPipeline:
    seed = int(os.environ.get("MIRRORED_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    print(f"MIRRORED_SEED={seed} MIRRORED_KILLS={KILLS}")
    return MirroredPipeline(nats_cluster, source_database, target_database, group, seed)


def test_thirty_kills_of_leaders_and_processes_lose_and_double_and_tear_nothing(
    pipeline: MirroredPipeline, nats_cluster: NatsCluster, source_database: Database, target_database: Database
) -> None:
    RandomLoad.create_tables(source_database)
    load, watch = RandomLoad(source_database, seed=20261125, connections=2, most_rows=200), BalanceWatch(target_database)
    with ExitStack() as running:
        for supervised in pipeline.processes.values():
            running.enter_context(supervised)
        pipeline.processes["replicator"].process.wait_for_log("replicating")
        running.enter_context(load)
        running.enter_context(watch)
        wait_until(lambda: watch.looks, deadline_s=300, what="the first batch at the target")
        for victim in pipeline.victims():
            before = load.transactions
            wait_until(lambda least=before + TRANSACTIONS_BETWEEN: load.transactions >= least, what="more transactions")  # type: ignore[misc]
            print(victim, flush=True)
            pipeline.kill_once(victim)
        load.stop()

        def is_equal() -> bool:
            pipeline.check_alive()
            return checksums(source_database) == checksums(target_database)

        wait_until(is_equal, deadline_s=CATCH_UP_DEADLINE_S, what="equal tables", interval_s=1.0)
        assert watch.unequal == []
        raw, after = (group_lines(nats_cluster.settings(), group) for group in pipeline.groups)
        audits = [asyncio.run(audit_stream(nats_cluster.settings(), group)) for group in pipeline.groups]
    assert after == raw
    assert [audit.problems for audit in audits] == [[], []]
    ends = {name: dict(supervised.ends) for name, supervised in pipeline.processes.items()}
    print(f"{load.transactions} transactions, {len(raw)} changes, {dict(pipeline.killed)} killed, ends {ends}")
