"""Changes that a Postgres target refuses: set aside with their reason, the rest applied, and applied after all when asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.end_to_end.group_under_test import GroupUnderTest, configuration
from tests.end_to_end.once import Outcome, apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.waiting import wait_until

POISON = "far too long for the target"
APPLY_DEADLINE_S = 120.0


class Group:
    """Databases and configuration of a group whose target takes notes of twelve characters."""

    def __init__(self, name: str, source: Database, target: Database, nats: NatsServer) -> None:
        self.keys: dict[str, Any] = configuration(name, source, target, nats)
        self.source, self.target = source, target
        source.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
        target.execute("CREATE TABLE t (id int PRIMARY KEY, note varchar(12))")

    def dead(self, *arguments: str) -> str:
        """What ``pgsluice dead`` prints."""
        keys = {key: self.keys[key] for key in ("group", "nats-url")}
        return succeed(Outcome(PgsluiceProcess("dead", *arguments, config=keys), 30.0)).stdout

    def letters(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.dead("list", "--json").splitlines()]

    def widen(self) -> None:
        self.target.execute("ALTER TABLE t ALTER note TYPE text")

    def is_equal(self) -> bool:
        query = "SELECT count(*), sum(hashtext(t::text)) FROM t"
        return self.source.execute(query) == self.target.execute(query)


@pytest.fixture
def group_of_two(group: str, source_database: Database, target_database: Database, nats_server: NatsServer) -> Group:
    made = Group(group, source_database, target_database, nats_server)
    succeed(replicate(made.keys))
    return made


def test_one_bad_row_among_many_is_set_aside_and_replayed_when_the_target_was_widened(group_of_two: Group) -> None:
    group = group_of_two
    group.source.execute("INSERT INTO t SELECT i, 'note ' || i FROM generate_series(1, 100000) AS i WHERE i <> 77777")
    group.source.execute(f"INSERT INTO t VALUES (77777, '{POISON}')")
    succeed(replicate(group.keys))
    outcome = succeed(apply(group.keys))
    assert POISON not in outcome.log
    assert group.target.execute("SELECT count(*) FROM t") == [(99_999,)]
    (letter,) = group.letters()
    assert letter["table"] == "public.t"
    assert letter["reason"] == "the target refused it: string data right truncation, SQLSTATE 22001, column 'note'"
    assert POISON not in group.dead("list")
    assert json.loads(group.dead("show", letter["position"]))["after"]["note"] == POISON
    status = succeed(Outcome(PgsluiceProcess("status", config=group.keys), 30.0)).stdout
    assert "DEAD LETTERS: 1" in status
    group.widen()
    group.dead("replay", letter["position"])
    succeed(apply(group.keys))
    assert group.letters() == []
    assert group.is_equal()


def test_later_changes_of_the_row_wait_behind_it_in_their_order(group_of_two: Group) -> None:
    group = group_of_two
    group.source.execute("INSERT INTO t VALUES (1, 'good'), (2, 'other')")
    for statement in (
        "UPDATE t SET note = 'better' WHERE id = 1",
        f"UPDATE t SET note = '{POISON}' WHERE id = 1",
        "UPDATE t SET id = 11 WHERE id = 1",
        "UPDATE t SET note = 'late' WHERE id = 2",
    ):
        group.source.execute(statement)
    succeed(replicate(group.keys))
    succeed(apply(group.keys))
    assert sorted(group.target.execute("SELECT id, note FROM t")) == [(1, "better"), (2, "late")]
    group.source.execute("UPDATE t SET note = 'last' WHERE id = 11")
    succeed(replicate(group.keys))
    succeed(apply(group.keys))
    assert sorted(group.target.execute("SELECT id, note FROM t")) == [(1, "better"), (2, "late")]
    first, *behind = group.letters()
    assert "SQLSTATE 22001" in first["reason"]
    assert len(behind) == 2
    assert all("behind" in letter["reason"] or "SQLSTATE 22001" in letter["reason"] for letter in behind)
    group.widen()
    group.dead("replay", behind[-1]["position"])  # takes the earlier ones along
    succeed(apply(group.keys))
    assert group.letters() == []
    assert sorted(group.target.execute("SELECT id, note FROM t")) == [(2, "late"), (11, "last")]


def test_a_replay_that_is_refused_again_comes_back_with_its_reason_and_a_discarded_letter_frees_its_row(
    group_of_two: Group,
) -> None:
    group = group_of_two
    with GroupUnderTest(group.keys) as running:
        group.source.execute(f"INSERT INTO t VALUES (1, '{POISON}')")
        wait_until(lambda: len(group.letters()) == 1, deadline_s=APPLY_DEADLINE_S, what="a dead letter")
        group.dead("replay", "--all", "--wait", "60")
        (letter,) = group.letters()
        assert (letter["state"], letter["attempts"]) == ("dead", 2)
        group.dead("discard", "--all", "--yes")
        group.source.execute("DELETE FROM t")
        group.source.execute("INSERT INTO t VALUES (1, 'short'), (2, 'two')")
        wait_until(group.is_equal, deadline_s=APPLY_DEADLINE_S, what="the row, without its discarded letter")
        assert group.letters() == []
        assert POISON not in running.worker.log()


def test_more_than_the_limit_stops_the_worker_and_loses_nothing(group_of_two: Group) -> None:
    group = group_of_two
    group.source.execute(f"INSERT INTO t SELECT i, '{POISON}' FROM generate_series(1, 3) AS i")
    succeed(replicate(group.keys))
    outcome = apply(group.keys, "postgres", "--max-dead-letters", "2")
    assert outcome.code == 70
    assert "max-dead-letters (2)" in outcome.log.strip().splitlines()[-1]
    assert group.letters() == []
    group.widen()
    succeed(apply(group.keys))
    assert group.is_equal()


def test_a_copied_row_that_is_refused_is_set_aside_and_later_changes_of_it_wait(group_of_two: Group) -> None:
    group = group_of_two
    group.source.execute(
        f"INSERT INTO t SELECT i, CASE i WHEN 777 THEN '{POISON}' ELSE 'n' || i END FROM generate_series(1, 3000) AS i"
    )
    keys = group.keys | {"group": group.keys["group"] + "-copy", "copy-and-stream": True}
    group.keys = keys
    succeed(replicate(keys))
    group.source.execute("UPDATE t SET note = 'short' WHERE id IN (777, 778)")
    succeed(replicate(keys))
    outcome = succeed(apply(keys))
    assert POISON not in outcome.log
    assert group.target.execute("SELECT count(*), count(*) FILTER (WHERE note = 'short') FROM t") == [(2999, 1)]
    copied, behind = group.letters()
    assert (copied["copied"], behind["copied"]) == (True, False)
    assert "SQLSTATE 22001, column 'note'" in copied["reason"]
    assert json.loads(group.dead("show", copied["position"]))["after"] == {"id": 777, "note": POISON}
    group.widen()
    group.dead("replay", "--all")
    succeed(apply(keys))
    assert group.letters() == []
    assert group.is_equal()


@pytest.mark.long
def test_a_worker_that_dies_when_it_has_published_letters_neither_loses_nor_doubles_a_change(group_of_two: Group) -> None:
    group = group_of_two
    bad_rows = 0
    with GroupUnderTest(group.keys) as running:
        for turn in range(4):
            first = 10_000 * turn + 1
            group.source.execute(
                f"INSERT INTO t SELECT i, CASE i % 1000 WHEN 0 THEN '{POISON}' ELSE 'n' || i END"
                f" FROM generate_series({first}, {first + 9_999}) AS i"
            )
            bad_rows += 10
            published = running.worker.log().count("became dead letters")
            wait_until(
                lambda: running.worker.log().count("became dead letters") > published,  # noqa: B023  waited for in this turn
                deadline_s=APPLY_DEADLINE_S,
                what="letters",
            )
            running.worker.kill()
            running.worker.wait()
            running.worker.start()
        query = "SELECT count(*) FROM t"
        wait_until(
            lambda: group.target.execute(query) == [(40_000 - bad_rows,)], deadline_s=APPLY_DEADLINE_S, what="all good rows"
        )
        assert len(group.letters()) == bad_rows
        group.widen()
        group.dead("replay", "--all", "--wait", "60")
        assert group.letters() == []
        assert group.is_equal()
