"""The requests of one principal delay no answer to another."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait

import httpx
import pytest

from pgsluice.console.server.access.principal import Principal, Role
from pgsluice.console.server.access.request_rates import MOST, PER_PROCESSOR_S, PER_SECOND, RequestRates
from pgsluice.console.server.problem import Problem
from tests.console.server.served import Served
from tests.waiting import wait_until

LARGEST = "workers: [" + ",".join(f"w{i}=file" for i in range(4000)) + "]\n"
"""About as long as any document to read that is taken."""


def documents(count: int) -> dict[str, list[str]]:
    return {"documents": [f"group: busy-{number}\n{LARGEST}" for number in range(count)]}


def test_others_are_answered_while_a_viewers_documents_are_read(served: Served) -> None:
    with served.client(served.token("busy")) as viewer, served.client() as other, ThreadPoolExecutor(1) as pool:
        begun, waits = time.monotonic(), []
        reading = pool.submit(viewer.post, "/plan", json=documents(15))
        while not wait([reading], timeout=0.02).done:
            asked = time.monotonic()
            assert other.get("/").status_code == 200
            waits.append(time.monotonic() - asked)
        assert reading.result().status_code == 200
        assert max(waits) < (time.monotonic() - begun) / 3  # they do not wait for the end of it, however slow the machine is


def test_who_asks_for_too_much_is_told_when_to_come_again_and_nobody_else_notices(served: Served) -> None:
    with served.client(served.token("greedy")) as viewer, served.client() as other, ThreadPoolExecutor(10) as pool:

        def refused(answer: httpx.Response) -> httpx.Response | None:
            return answer if answer.status_code == 429 else None

        long = {"documents": [f"group: long-{number}\n#{'x' * 65_000}\n" for number in range(15)]}
        posted = [pool.submit(viewer.post, "/plan", json=long) for _ in range(10)]
        first = wait_until(lambda: refused(viewer.get("/")), what="a refusal")
        assert (int(first.headers["retry-after"]) >= 1, "greedy" in first.json()["detail"]) == (True, True)
        wait_until(lambda: refused(viewer.post("/plan", json=long)), what="the refusal of a write")
        assert other.get("/").status_code == 200
        assert first.json()["title"] not in other.get("/audit", params={"limit": "500"}).text
    assert {each.result().status_code for each in posted} <= {200, 429}


def test_what_takes_too_long_to_read_is_refused_before_that(served: Served) -> None:
    with served.client() as client:
        for text, said in (
            ("tables: [" + "x" * 65_536 + "]", "more than 64 KiB"),
            ("tables: [" + "x," * 20_000 + "]", "more than 10000 keys and values"),
            ("tables: &a [" + "x," * 4000 + "]\nworkers: [" + "*a," * 5000 + "]", "aliases expand to more than 1 MiB"),
        ):
            refused = client.post("/plan", json={"documents": [f"group: long\n{text}\n"]})
            assert (refused.status_code, said in refused.text) == (422, True), refused.text
        many = client.post("/plan", json={"documents": ["group: many"] * 300})
        assert (many.status_code, "more than 200" in many.text) == (422, True)


def test_of_many_unknown_keys_none_is_guessed_at_and_few_are_told(served: Served) -> None:
    with served.client() as client:

        def told(count: int) -> str:
            keys = "".join(f"tabel{number}: x\n" for number in range(count))
            return client.post("/plan", json={"documents": [f"group: guessed\n{keys}"]}).text

        assert "did you mean" in told(20)
        assert "did you mean" not in told(21)
        assert len(told(4000)) < 20_000


def test_a_bucket_fills_again() -> None:
    now = 0.0
    rates, who, other = RequestRates(lambda: now), Principal("a", Role.VIEWER, "1"), Principal("b", Role.VIEWER, "2")
    for _ in range(int(MOST)):
        rates.take(who)
    with pytest.raises(Problem) as refused:
        rates.take(who)
    assert refused.value.retry_after_s == 1
    rates.take(other)
    now = 1.0
    for _ in range(int(PER_SECOND)):
        rates.take(who)
    rates.charge(who, processor_s=2.0)
    with pytest.raises(Problem) as refused:
        rates.take(who)
    assert refused.value.retry_after_s == pytest.approx(2 * PER_PROCESSOR_S / PER_SECOND, abs=1)
    now = 1000.0
    for _ in range(int(MOST)):
        rates.take(who)
    with pytest.raises(Problem):
        rates.take(who)
