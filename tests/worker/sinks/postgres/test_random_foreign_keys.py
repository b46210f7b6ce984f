"""Random schemas with foreign keys of every action, and random loads, through the sink: equal after each batch, or refused.

``FOREIGN_KEY_SEEDS=1000-1100`` tries these.
"""

from __future__ import annotations

import os
import random
import re
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import pytest

from pgsluice.shared.errors import TerminalError, TransientError
from pgsluice.testing.batch import STREAM_CREATED, Batch, write
from pgsluice.worker.dead_letters.rejection import RejectedChanges, WriteAgain
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.sink import PostgresSink
from tests.foreign_keys.random_schema import RandomSchema
from tests.foreign_keys.random_twin import RandomTwin
from tests.foreign_keys.schema_load import SchemaLoad
from tests.foreign_keys.twin_audit import OwnThings
from tests.servers import Database
from tests.worker.captured_changes import CapturedChanges, batches
from tests.worker.sinks.settings import worker_settings

STEPS = 6
MOST_TRANSACTIONS = 25
MOST_ATTEMPTS = 20


class Outcome(NamedTuple):
    """``faults`` are what is wrong silently; ``refusal`` is what the sink said that goes no further, or ""."""

    faults: list[str]
    refusal: str


def seeds() -> list[int]:
    first, _, last = os.environ.get("FOREIGN_KEY_SEEDS", "1-4").partition("-")
    return list(range(int(first), int(last or first) + 1))


def commit(sink: PostgresSink, batch: Batch) -> str:
    """As the worker's loop does; returns why it goes no further, "" when the batch is applied."""
    for _ in range(MOST_ATTEMPTS):
        try:
            sink.commit(write(sink, batch), STREAM_CREATED)
        except (TransientError, WriteAgain):
            continue
        except RejectedChanges as error:
            return "; ".join(sorted({rejection.reason for rejection in error.rejections}))
        except TerminalError as error:
            return str(error)
        return ""
    return f"tried {MOST_ATTEMPTS} times"


def run(seed: int, source: Database, target: Database, user: str = "") -> Outcome:
    """``user``: by an ordinary role of this name."""
    choose = random.Random(seed)
    schema = RandomSchema.of(choose)
    twin = RandomTwin.of(schema, choose)
    source.execute(schema.statements())
    target.execute(twin.statements())
    settings = PostgresSinkSettings(
        replace(target.settings, user=user or target.settings.user),
        sync_schema=False,
        disable_foreign_keys=None,
        sync_sequences=False,
        lock_timeout_s=30,
        on_missing_row="count",
    )
    if user:
        target.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}")
        target.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {user}")
    inline_bytes = choose.choice((0, 1 << 18))
    sink = PostgresSink(worker_settings("random"), settings, inline_bytes)
    query, own = schema.checksums_query(), OwnThings(target, twin)
    captured = CapturedChanges(source, "random", cut_bytes=choose.choice((300, 3000, 1 << 18)))
    faults: list[str] = []
    with closing(captured), closing(sink), closing(SchemaLoad(source, schema, seed)) as load:
        sink.open()
        for _ in range(STEPS):
            load.run(choose.randint(1, MOST_TRANSACTIONS))
            for batch in batches(captured.read(), choose):
                if refusal := commit(sink, batch):
                    return Outcome(faults, refusal)
                [state] = target.execute(query)
                if load.states.get(int(state[0])) != state:
                    return Outcome(
                        [*faults, f"after commit {state[0]} {schema.different(load.states[int(state[0])], state)}"], ""
                    )
            faults += own.losses(acts=bool(user))
            own.mark()
    return Outcome(faults, "")


@pytest.mark.parametrize("seed", seeds())
def test_under_the_replica_role_a_target_is_equal_and_keeps_what_is_its_own(
    seed: int, source_database: Database, target_database: Database
) -> None:
    found = run(seed, source_database, target_database)
    assert found.faults == []
    assert found.refusal == ""


@pytest.mark.parametrize("seed", seeds())
def test_by_an_ordinary_role_a_target_is_equal_or_a_constraint_is_named(
    seed: int, source_database: Database, target_database: Database, ordinary_role: str
) -> None:
    found = run(seed, source_database, target_database, ordinary_role)
    assert found.faults == []
    assert not found.refusal or re.search(r"constraint '(t\d_(f\d|u_key)|own_t\d_ref)'", found.refusal)
