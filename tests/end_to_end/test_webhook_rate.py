"""How many changes a webhook worker brings to a receiver that takes 20 ms for each answer."""

from __future__ import annotations

import pytest

from tests.end_to_end.once import replicate, succeed
from tests.end_to_end.test_webhook import START_DEADLINE_S, webhook_configuration
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.http_server import HttpServer
from tests.waiting import wait_until

ANSWER_S = 0.02
CHANGES_PER_S = 2_000
APPLY_DEADLINE_S = 120.0

ONE_TRANSACTION = (
    "INSERT INTO orders SELECT n, n % 1000, n * 1.25, 'open', now(), md5(n::text), true FROM generate_series(1, {}) AS n"
)
MANY_TRANSACTIONS = (
    "DO $$ BEGIN FOR n IN 1..{} LOOP "
    "INSERT INTO orders VALUES (n, n % 1000, n * 1.25, 'open', now(), md5(n::text), true); COMMIT; END LOOP; END $$"
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("form", "statement", "changes", "least_per_s"),
    [
        ("array", ONE_TRANSACTION, 200_000, CHANGES_PER_S),
        ("lines", ONE_TRANSACTION, 200_000, CHANGES_PER_S),
        ("array", MANY_TRANSACTIONS, 50_000, CHANGES_PER_S),
        ("single", MANY_TRANSACTIONS, 5_000, 100),
    ],
)
def test_a_receiver_that_takes_20_ms_gets_thousands_of_changes_each_second(
    form: str, statement: str, changes: int, least_per_s: float, source_database: Database, nats_server: NatsServer, group: str
) -> None:
    source_database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, customer int, total numeric(12, 2), state text, at timestamptz,"
        " note text, paid boolean)"
    )
    with HttpServer() as receiver:
        receiver.delay_s = ANSWER_S
        keys = webhook_configuration(group, source_database, nats_server, receiver, **{"webhook-format": form})
        succeed(replicate(keys))
        source_database.execute(statement.format(changes))
        succeed(replicate(keys))
        with PgsluiceProcess("worker", "webhook", config=keys) as worker:
            wait_until(lambda: receiver.requests, deadline_s=START_DEADLINE_S, what="the first request")
            wait_until(
                lambda: sum(request.body.count(b'"position"') for request in list(receiver.accepted)) >= changes,
                deadline_s=APPLY_DEADLINE_S,
                what="all changes at the receiver",
                interval_s=0.5,
            )
            worker.terminate()
            assert worker.wait() == 0
    took_s = receiver.requests[-1].at + ANSWER_S - receiver.requests[0].at
    print(f"{form}: {changes / took_s:,.0f} changes/s in {len(receiver.requests)} requests, {took_s:.1f} s")
    assert changes / took_s > least_per_s
