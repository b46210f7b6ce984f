"""Requests that come again under one key, whatever becomes of the server in between."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.console.server import repeated_requests
from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.console.server.repeated_requests import RepeatedRequests, RequestKey, StoredAnswer
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.table_orders import ORDERS
from pgsluice.shared.wire.names import GroupNames
from tests.console.server.served import Served
from tests.servers import NatsServer
from tests.state_bucket import ensure_bucket
from tests.waiting import wait_until, wait_until_async

LONG = 2 << 20
"""More than a message of NATS holds."""


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.long)])
def test_each_order_is_given_once_while_the_server_is_killed(nats_server: NatsServer, tmp_path: Path, kills: int) -> None:
    """Orders are given without a pause until the last kill, so that each of them may meet one that is under way."""
    group = f"killed-{kills}"
    ensure_bucket(nats_server.settings(), group)
    seed = int(os.environ.get("KILL_SEED", "0")) or random.randrange(1 << 31)
    print(f"KILL_SEED={seed}")
    chance, answers = random.Random(seed), dict[int, str]()
    with Served(nats_server.url, tmp_path) as server, ThreadPoolExecutor(1) as pool:
        killed = threading.Event()

        def order(number: int) -> bool:
            body, headers = {"verb": "retry", "tables": [f"t{number}"]}, {"Idempotency-Key": f"{group}-{number}"}
            try:
                with server.client() as client:
                    answer = client.post(f"/groups/{group}/orders", json=body, headers=headers)
            except httpx.TransportError:
                return False
            assert answer.status_code == 202, answer.text
            answers[number] = answer.text
            return True

        def give_orders() -> int:
            for number in itertools.count():
                wait_until(lambda number=number: order(number), deadline_s=60, what=f"order {number}")  # type: ignore[misc]
                if killed.is_set():
                    return number + 1
            raise AssertionError

        giving = pool.submit(give_orders)
        try:
            for _ in range(kills):
                time.sleep(chance.uniform(0, 0.3))  # the moment of a kill is random, and nothing is waited for
                server.kill()
                server.start()
        finally:
            killed.set()
        count = giving.result()
        first = dict(answers)
        assert all(order(number) for number in range(count))
        assert answers == first

    async def given() -> list[tuple[str, ...]]:
        async with connected(nats_server.settings(), "test") as client:
            orders = await ORDERS.load(StateBucket(client, GroupNames(group)))
            return [each.tables for each in orders.orders]

    assert sorted(asyncio.run(given())) == sorted((f"t{number}",) for number in range(count))


async def test_one_that_was_refused_leaves_nothing(bucket: ControlBucket) -> None:
    repeated, before = RepeatedRequests(bucket), set(await bucket.keys())

    async def refuse() -> StoredAnswer:
        raise Problem(ProblemKind.MALFORMED, "it is wrong")

    with pytest.raises(Problem):
        await repeated.once(RequestKey("who", "refused-key", "digest"), refuse)
    assert set(await bucket.keys()) == before


async def test_two_at_the_same_time_are_one(bucket: ControlBucket) -> None:
    repeated, calls = RepeatedRequests(bucket), list[int]()

    async def carry_out() -> StoredAnswer:
        calls.append(1)
        await asyncio.sleep(0.05)
        return StoredAnswer(202, "{}")

    key = RequestKey("who", f"at-once-{time.monotonic_ns()}", "digest")
    answers = await asyncio.gather(*(repeated.once(key, carry_out) for _ in range(5)))
    assert (len(calls), set(answers)) == (1, {StoredAnswer(202, "{}")})
    other = RequestKey("somebody else", key.key, "another digest")
    assert (await repeated.once(other, carry_out)).status == 202


async def test_one_that_comes_while_another_is_tried_again_waits_for_it(bucket: ControlBucket) -> None:
    repeated, key, began = RepeatedRequests(bucket), RequestKey("who", f"failed-{time.monotonic_ns()}", "digest"), list[str]()
    fails, answers = asyncio.Event(), asyncio.Event()

    async def fail() -> StoredAnswer:
        began.append("first")
        await fails.wait()
        raise Problem(ProblemKind.MALFORMED, "it is wrong")

    async def answer(name: str) -> StoredAnswer:
        began.append(name)
        await answers.wait()
        return StoredAnswer(202, "{}")

    first = asyncio.create_task(repeated.once(key, fail))
    second = asyncio.create_task(repeated.once(key, lambda: answer("second")))
    await wait_until_async(lambda: begun(began, 1), what="the first request")
    fails.set()
    await wait_until_async(lambda: begun(began, 2), what="the second request")
    third = asyncio.create_task(repeated.once(key, lambda: answer("third")))
    await asyncio.wait({third}, timeout=0.5)
    answers.set()
    assert await second == await third
    assert began == ["first", "second"]
    with pytest.raises(Problem):
        await first


async def begun(began: list[str], count: int) -> bool:
    return len(began) >= count


async def test_a_key_that_came_with_another_request_is_refused(bucket: ControlBucket) -> None:
    repeated, first = RepeatedRequests(bucket), RequestKey("who", f"other-{time.monotonic_ns()}", "digest")

    async def carry_out() -> StoredAnswer:
        return StoredAnswer(202, "{}")

    await repeated.once(first, carry_out)
    with pytest.raises(Problem, match="came with another request before"):
        await repeated.once(RequestKey(first.who, first.key, "another digest"), carry_out)


async def test_answers_are_kept_for_their_time_and_no_longer(bucket: ControlBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    repeated, calls = RepeatedRequests(bucket), list[int]()

    async def carry_out() -> StoredAnswer:
        calls.append(1)
        return StoredAnswer(202, "{}")

    key = RequestKey("who", f"kept-{time.monotonic_ns()}", "digest")
    await repeated.once(key, carry_out)
    await repeated.remove_old()
    await repeated.once(key, carry_out)
    assert len(calls) == 1
    monkeypatch.setattr(repeated_requests, "KEPT", timedelta(0))
    await repeated.remove_old()
    await repeated.once(key, carry_out)
    assert len(calls) == 2


async def test_an_answer_that_is_too_long_to_be_kept_is_given_all_the_same(bucket: ControlBucket) -> None:
    """By then what was asked for is done."""
    repeated, calls = RepeatedRequests(bucket), list[int]()

    async def carry_out() -> StoredAnswer:
        calls.append(1)
        return StoredAnswer(202, "x" * LONG)

    key = RequestKey("who", f"long-{time.monotonic_ns()}", "digest")
    assert [(await repeated.once(key, carry_out)).status for _ in range(2)] == [202, 202]
    assert len(calls) == 2
