"""Dead letters of one row are one queue: whatever is replayed, when and how often, no row goes back."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.end_to_end.once import Outcome, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.waiting import wait_until

ROWS = 90
TABLE = "CREATE TABLE p (id int PRIMARY KEY, title text, price int)"
COMPARED = "SELECT count(*), sum(hashtext(p::text)) FROM p"


class PricedGroup:
    """A group whose target takes no price of 1000 or more, while it has the check."""

    def __init__(self, name: str, source: Database, target: Database, nats: NatsServer) -> None:
        self.source, self.target = source, target
        self.running = GroupUnderTest(configuration(name, source, target, nats))
        source.execute(TABLE)
        target.execute(TABLE)
        self.forbid()
        succeed(replicate(self.running.keys))

    def forbid(self) -> None:
        self.target.execute("ALTER TABLE p ADD CONSTRAINT cheap CHECK (price < 1000) NOT VALID")

    def allow(self) -> None:
        self.target.execute("ALTER TABLE p DROP CONSTRAINT cheap")

    def dead(self, *arguments: str) -> str:
        return succeed(self.try_dead(*arguments)).stdout

    def try_dead(self, *arguments: str) -> Outcome:
        keys = {key: self.running.keys[key] for key in ("group", "nats-url")}
        return Outcome(PgsluiceProcess("dead", *arguments, config=keys), 120.0)

    def positions(self) -> list[str]:
        return [json.loads(line)["position"] for line in self.dead("list", "--json").splitlines()]

    def letters(self) -> int:
        return len(self.positions())

    def wait_for_letters(self, count: int) -> None:
        wait_until(lambda: self.letters() == count, interval_s=0.5, what=f"{count} letters")

    def is_equal(self) -> bool:
        return self.source.execute(COMPARED) == self.target.execute(COMPARED)


@pytest.fixture
def priced(group: str, source_database: Database, target_database: Database, nats_server: NatsServer) -> Iterator[PricedGroup]:
    made = PricedGroup(group, source_database, target_database, nats_server)
    with made.running:
        yield made


def test_no_row_goes_back_when_letters_are_replayed_while_their_cause_is_there_and_again_when_it_is_gone(
    priced: PricedGroup,
) -> None:
    priced.source.execute(f"INSERT INTO p SELECT i, 'a', 5000 FROM generate_series(1, {ROWS}) AS i")
    priced.wait_for_letters(ROWS)
    priced.source.execute("UPDATE p SET title = 'b'")
    priced.wait_for_letters(2 * ROWS)
    priced.source.execute("UPDATE p SET price = 10")
    priced.wait_for_letters(3 * ROWS)
    priced.dead("replay", "--all", "--wait", "60")
    assert (priced.letters(), priced.target.execute("SELECT count(*) FROM p")) == (3 * ROWS, [(0,)])
    priced.allow()
    priced.dead("replay", "--all", "--wait", "60")
    assert priced.letters() == 0
    assert priced.is_equal()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_no_row_goes_back_whatever_is_replayed_while_the_cause_comes_and_goes_and_the_worker_is_killed(
    priced: PricedGroup, seed: int
) -> None:
    choices = random.Random(seed)
    priced.source.execute(f"INSERT INTO p SELECT i, 'a', 5000 FROM generate_series(1, {ROWS}) AS i")
    priced.wait_for_letters(ROWS)
    is_refused = True
    for turn in range(12):
        first, price = choices.randrange(ROWS), choices.choice((10, 5000))
        priced.source.execute(f"UPDATE p SET title = '{turn}', price = {price} WHERE id BETWEEN {first} AND {first + 30}")
        priced.source.execute(f"UPDATE p SET id = -id WHERE id = {choices.randrange(ROWS)}")
        if choices.random() < 0.4:
            (priced.allow if is_refused else priced.forbid)()
            is_refused = not is_refused
        positions = priced.positions()
        if positions:
            # it is refused when one of them was applied meanwhile
            priced.try_dead("replay", *choices.sample(positions, min(len(positions), choices.randint(1, 60))))
        if choices.random() < 0.4:
            priced.running.worker.kill()
            priced.running.worker.wait()
            priced.running.worker.start()
    if is_refused:
        priced.allow()

    def is_replayed() -> bool:
        if priced.positions():
            priced.dead("replay", "--all", "--wait", "100")
        return priced.is_equal() and not priced.positions()

    wait_until(is_replayed, interval_s=1.0, what="equal tables without a letter")
