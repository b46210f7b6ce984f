"""Tables are altered at random under rows at random while everything is killed: equal at the end, by catalog and by content."""

from __future__ import annotations

import asyncio
import os
import random
import threading

import pytest

from tests.end_to_end.definition_storm import SETUP, DefinitionStorm, are_equal, watched_for_halves
from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.servers import Database, NatsServer
from tests.stream_audit import audit_stream
from tests.waiting import wait_until


def run_storm(source: Database, target: Database, nats: NatsServer, group: str, transactions: int, kills: int) -> None:
    """Each of the processes is killed ``kills`` times, but the source."""
    seed = int(os.environ.get("KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)
    print(f"KILL_SEED={seed}")
    choose, storm = random.Random(seed), DefinitionStorm(source, seed)
    storm.create_tables()
    target.execute(SETUP)
    modes = {"track-ddl": True, "copy-and-stream": True}
    keys = configuration(group, source, target, nats, tables=["storm.*", "storm_b.*"], **modes)
    with GroupUnderTest(keys) as under_test, watched_for_halves(target) as torn:
        wait_until(lambda: are_equal(source, target), deadline_s=120, what="the copy", interval_s=0.5)
        stopping = threading.Event()
        writing = threading.Thread(target=storm.write, args=[transactions, stopping])
        writing.start()
        victims = [victim for victim in (under_test.replicator, under_test.worker, nats, target.server) for _ in range(kills)]
        choose.shuffle(victims)
        for victim in victims:
            threading.Event().wait(choose.uniform(0.5, 4))
            victim.kill()
            victim.start()
        stopping.set()
        writing.join()
        wait_until(lambda: are_equal(source, target), deadline_s=600, what="equal tables", interval_s=0.5)
        audit = asyncio.run(audit_stream(nats.settings(), group))
    assert storm.transactions >= transactions
    assert torn == []
    assert audit.problems == []
    print(f"{storm.transactions} transactions, {audit.changes} changes, {audit.definitions} definitions: {storm.kinds}")


@pytest.mark.long
def test_a_storm_of_definitions_loses_and_doubles_nothing(
    source_database: Database, target: Database, nats: NatsServer, group: str
) -> None:
    run_storm(source_database, target, nats, group, transactions=150, kills=1)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_thousand_transactions_of_it_do_not_either(
    source_database: Database, target: Database, nats: NatsServer, group: str
) -> None:
    run_storm(source_database, target, nats, group, transactions=1_000, kills=10)
