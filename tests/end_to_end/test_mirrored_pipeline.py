"""Raw changes, rules, a second group of the broker, and sinks behind that: what arrives is what the rules make of the source."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import Outcome, apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess

RULES = """
tables:
  users:
    - {type: transform, column: email, parameters: {type: mask, mask_char: "*", keep_domain: true}}
    - {type: filter, column: age, parameters: {operator: gte, value: 18}}
"""
ROUTES = """
users: [{destination_table: customers}, {destination_table: newcomers, operations: [INSERT]}]
"""
LATER_RULES = """
tables:
  customers:
    - {type: transform, column: note, parameters: {type: regex, pattern: "secret", replace: "-"}}
"""
MADE = (
    "SELECT id, left(email, 1) || repeat('*', position('@' in email) - 3) || substr(email, position('@' in email) - 1), age, "
    "replace(note, 'secret', '-') FROM users WHERE age >= 18 ORDER BY id"
)


def test_a_worker_reads_the_group_that_another_worker_publishes(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    """Copied rows, then changes; one that the target refuses becomes a letter of the second group."""
    for name, text in (("rules", RULES), ("routes", ROUTES), ("later", LATER_RULES)):
        (tmp_path / name).write_text(text)
    raw = configuration(group, source_database, None, nats_server, **{"copy-and-stream": True, "nats-group": f"{group}-next"})
    raw |= {"rules-config": str(tmp_path / "rules"), "routing-config": str(tmp_path / "routes")}
    after = configuration(f"{group}-next", source_database, target_database, nats_server)
    after |= {"target-sync-schema": True, "rules-config": str(tmp_path / "later")}
    source_database.execute("CREATE TABLE users (id int PRIMARY KEY, email text, age int, note text)")
    source_database.execute(
        "INSERT INTO users SELECT n, 'user' || n || '@example.com', n % 60, 'a secret' FROM generate_series(1, 2000) n"
    )
    with PgsluiceProcess("replicator", "--until-lsn", "current", config=raw) as replicator:
        assert replicator.wait(120) == 0, replicator.log()
    source_database.execute("UPDATE users SET age = age + 1 WHERE id % 5 = 0; DELETE FROM users WHERE id % 11 = 0")
    source_database.execute("UPDATE users SET note = repeat('x', 3000000) WHERE id = 30")
    source_database.execute("UPDATE users SET age = 95 WHERE id = 40; UPDATE users SET id = 5000 WHERE id = 30")
    source_database.execute("INSERT INTO users VALUES (6000, 'last@example.com', 40, 'n')")
    target_database.execute("CREATE TABLE customers (id int PRIMARY KEY, email text, age int, note text, CHECK (age < 90))")
    log = hop(raw, after).log
    assert "dead letter" in log, log
    expected = [row for row in source_database.execute(MADE) if row[0] != 40]
    assert target_database.execute("SELECT * FROM customers WHERE id <> 40 ORDER BY id") == expected
    assert target_database.execute("SELECT age FROM customers WHERE id = 40") == [(41,)]
    assert target_database.execute("SELECT count(*) FROM newcomers WHERE id = 6000") == [(1,)]


@pytest.mark.long  # seven processes, one after the other
@pytest.mark.timeout(900)
def test_a_table_that_the_source_alters_stops_the_second_groups_worker_until_the_target_is_altered(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str
) -> None:
    """It says what to run, and goes on where it was."""
    raw = configuration(group, source_database, None, nats_server, **{"copy-and-stream": True, "track-ddl": True})
    raw |= {"nats-group": f"{group}-next"}
    after = configuration(f"{group}-next", source_database, target_database, nats_server)
    source_database.execute("CREATE TABLE notes (id int PRIMARY KEY, note text); INSERT INTO notes VALUES (1, 'a')")
    hop(raw, after)
    source_database.execute("INSERT INTO notes VALUES (2, 'b')")
    source_database.execute("ALTER TABLE notes ADD COLUMN n int DEFAULT 7; INSERT INTO notes VALUES (3, 'c')")
    succeed(replicate(raw))
    succeed(apply(raw, "nats"))
    stopped = apply(after)
    assert stopped.code == 70, stopped.log
    statement = re.search(r"run there: (ALTER TABLE .*?); then start again", stopped.log)
    assert statement is not None, stopped.log
    target_database.execute(statement[1])
    succeed(apply(after))
    assert target_database.execute("SELECT id, note, n FROM notes ORDER BY id") == [(1, "a", None), (2, "b", None), (3, "c", 7)]


STUBBORN_PATTERN = "(?=x)^(x|xx)+$"
STUBBORN = f"""
tables:
  notes:
    - {{type: transform, column: note, parameters: {{type: regex, pattern: "{STUBBORN_PATTERN}", replace: "-"}}}}
"""


@pytest.mark.long  # a dozen processes, one after the other
@pytest.mark.timeout(900)
def test_letters_of_both_hops_are_replayed_and_arrive_once_in_their_rows_order(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    """One of the first hop, whose rule cannot process a value; one of the second, whose target refuses it."""
    (tmp_path / "rules").write_text(STUBBORN)
    raw = configuration(group, source_database, None, nats_server, **{"nats-group": f"{group}-next"})
    raw |= {"rules-config": str(tmp_path / "rules")}
    after = configuration(f"{group}-next", source_database, target_database, nats_server)
    source_database.execute("CREATE TABLE notes (id int PRIMARY KEY, note text)")
    target_database.execute("CREATE TABLE notes (id int PRIMARY KEY, note varchar(60) CHECK (note <> 'refused'))")
    succeed(replicate(raw))
    source_database.execute("INSERT INTO notes VALUES (1, 'a'), (2, repeat('x', 40) || '!'), (3, 'refused'), (4, 'd')")
    source_database.execute("UPDATE notes SET note = 'later' WHERE id = 2")
    hop(raw, after)
    assert target_database.execute("SELECT id, note FROM notes ORDER BY id") == [(1, "a"), (4, "d")]
    assert letters(raw) == [("public.notes", "nats")] * 2, "its row's later change waits behind it"
    assert letters(after) == [("public.notes", "postgres")]
    target_database.execute("ALTER TABLE notes DROP CONSTRAINT notes_note_check")
    (tmp_path / "rules").write_text(STUBBORN.replace(STUBBORN_PATTERN, "secret"))
    for keys in (raw, after):
        dead(keys, "replay", "--all")
    hop(raw, after)
    hop(raw, after)
    expected = [(1, "a"), (2, "later"), (3, "refused"), (4, "d")]
    assert target_database.execute("SELECT id, note FROM notes ORDER BY id") == expected
    assert letters(raw) + letters(after) == []


def dead(keys: dict[str, Any], *arguments: str) -> str:
    """What ``pgsluice dead`` prints."""
    own = {key: keys[key] for key in ("group", "nats-url")}
    return succeed(Outcome(PgsluiceProcess("dead", *arguments, config=own), 60.0)).stdout


def letters(keys: dict[str, Any]) -> list[tuple[str, str]]:
    listed = [json.loads(line) for line in dead(keys, "list", "--json").splitlines()]
    return [(each["table"], each["worker"]) for each in listed]


def hop(raw: dict[str, object], after: dict[str, object]) -> Outcome:
    succeed(replicate(raw))
    succeed(apply(raw, "nats"))
    return succeed(apply(after))
