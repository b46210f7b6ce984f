"""What rules hold back leaves nowhere: not into the target, standard output, logs, errors or our own tables.

Every value that must not leave begins with a marker, so that one search through everything that a process wrote finds it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import Outcome, apply, replicate, succeed
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.waiting import wait_until

CLEAR = "clearvalue"
COPY_DEADLINE_S = 120.0

SOURCE_TABLES = f"""
CREATE TABLE customers (id bigint PRIMARY KEY, email text, phone text, age int, secret text);
CREATE TABLE visits (customer bigint, email text, age int);
ALTER TABLE visits REPLICA IDENTITY FULL;
CREATE TABLE plain (id bigint PRIMARY KEY, note text);
INSERT INTO customers VALUES
    (1, 'a{CLEAR}@example.org', '0123456789', 30, '{CLEAR}'), (2, 'b{CLEAR}@example.org', NULL, 12, '{CLEAR}'),
    (3, NULL, '5550001111', 40, NULL);
INSERT INTO visits VALUES (1, 'a{CLEAR}@example.org', 30), (2, 'b{CLEAR}@example.org', 12);
INSERT INTO plain VALUES (1, 'kept');
"""
CHANGES = f"""
INSERT INTO customers VALUES (4, 'd{CLEAR}@example.org', '9998887777', 50, '{CLEAR}');
UPDATE customers SET email = 'e{CLEAR}@example.org', secret = '{CLEAR} again' WHERE id = 1;
UPDATE customers SET age = 12 WHERE id = 4;
UPDATE customers SET age = 18 WHERE id = 2;
DELETE FROM customers WHERE id = 3;
INSERT INTO visits VALUES (3, 'c{CLEAR}@example.org', 40);
UPDATE visits SET email = 'z{CLEAR}@example.org' WHERE customer = 1;
DELETE FROM visits WHERE customer = 3;
UPDATE visits SET age = 19 WHERE customer = 2;
UPDATE plain SET note = 'changed';
"""
RULES = """\
tables:
  customers:
    - &mask {type: transform, column: email, parameters: {type: mask, mask_char: "*"}}
    - &adults {type: filter, column: age, parameters: {operator: gte, value: 18}}
    - type: transform
      column: phone
      parameters: {type: regex, pattern: '^(\\d{3})(\\d{3})(\\d{4})$', replace: "($1) $2-$3"}
  visits: [*mask, *adults]
"""
ROUTES = """\
customers:
  - destination_table: crm.people
    column_mappings: [{source: id, destination: person}]
    drop_columns: [secret]
  - destination_schema: log
    drop_columns: [secret]
    operations: [INSERT]
visits: {destination_table: seen}
"""


PG_FLO_RULES = """\
tables:
  customers:
    - type: transform
      column: email
      parameters: {type: mask, mask_char: "*", allow_empty_deletes: true}
      operations: [INSERT, UPDATE, DELETE]
    - type: transform
      column: secret
      parameters: {type: mask, mask_char: "X"}
    - type: transform
      column: phone
      parameters: {type: regex, pattern: "^(\\\\d{3})(\\\\d{7})$", replace: "$1-$2"}
      operations: [INSERT, UPDATE]
    - type: filter
      column: age
      parameters: {operator: gte, value: 18, allow_empty_deletes: true}
      operations: [INSERT, UPDATE, DELETE]
  visits:
    - type: transform
      column: email
      parameters: {type: mask, mask_char: "*"}
    - type: filter
      column: age
      parameters: {operator: gte, value: 18}
"""
PG_FLO_ROUTES = """\
customers:
  source_table: customers
  destination_table: people
  column_mappings:
    - source: id
      destination: person
  operations:
    - INSERT
    - UPDATE
    - DELETE
visits:
  source_table: visits
  destination_table: seen
  operations: [INSERT, UPDATE]
"""
"""Nothing but what pg_flo's files can say."""


def keys_with_rules(base: dict[str, Any], directory: Path, rules: str, routes: str) -> dict[str, Any]:
    (directory / "rules.yaml").write_text(rules)
    (directory / "routing.yaml").write_text(routes)
    return base | {"rules-config": str(directory / "rules.yaml"), "routing-config": str(directory / "routing.yaml")}


def check_nothing_leaked(*outcomes: Outcome) -> None:
    for outcome in outcomes:
        assert CLEAR not in outcome.log
        assert CLEAR not in outcome.stdout


def everything_in(database: Database) -> str:
    """All rows of all tables, our own included, as text."""
    tables = database.execute(
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
        " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
    )
    return "\n".join(str(database.execute(f"SELECT t::text FROM {name} AS t")) for (name,) in tables)


def copy_and_stream(keys: dict[str, Any]) -> None:
    with PgsluiceProcess("replicator", "--copy-and-stream", "--until-lsn", "current", config=keys) as replicator:
        assert replicator.wait(COPY_DEADLINE_S) == 0, replicator.log()


def test_nothing_that_is_masked_filtered_or_dropped_reaches_a_postgres_target(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    keys = configuration(group, source_database, target_database, nats_server)
    keys = keys_with_rules(keys | {"log-level": "debug"}, tmp_path, RULES, ROUTES)
    source_database.execute(SOURCE_TABLES)
    copy_and_stream(keys)
    source_database.execute(CHANGES)
    succeed(replicate(keys))
    outcome = succeed(apply(keys))
    check_nothing_leaked(outcome)
    assert CLEAR not in everything_in(target_database)
    people = target_database.execute("SELECT * FROM crm.people ORDER BY person")
    assert [(row[0], row[2], row[3]) for row in people] == [(1, "(012) 345-6789", 30), (2, None, 18)]
    assert all(row[1][0] in "eb" and set(row[1][1:-1]) == {"*"} and row[1][-1] == "g" for row in people)
    assert [row[0] for row in target_database.execute("SELECT id FROM log.customers ORDER BY id")] == [1, 3, 4]
    assert sorted(row[0] for row in target_database.execute("SELECT customer FROM seen")) == [1, 2]
    assert target_database.execute("SELECT note FROM plain") == [("changed",)]
    assert target_database.execute("SELECT to_regclass('public.customers')") == [(None,)]
    ((stored,),) = target_database.execute("SELECT rules FROM pgsluice.applied")
    status = PgsluiceProcess("status", "--json", config=keys)
    with status:
        assert status.wait() == 0
        (worker,) = json.loads(status.stdout())["workers"]
    assert len(stored) == 64
    assert worker["rules"] == stored


def test_files_of_pg_flo_keep_what_they_mask_and_filter_out_of_standard_output(
    source_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    keys = configuration(group, source_database, None, nats_server)
    keys = keys_with_rules(keys | {"log-level": "debug"}, tmp_path, PG_FLO_RULES, PG_FLO_ROUTES)
    source_database.execute(SOURCE_TABLES)
    copy_and_stream(keys)
    source_database.execute(CHANGES)
    succeed(replicate(keys))
    outcome = succeed(apply(keys, "stdout"))
    check_nothing_leaked(outcome)
    lines = [json.loads(line) for line in outcome.stdout.splitlines()]
    assert {line["table"] for line in lines} == {"people", "seen", "plain"}
    assert {line["after"]["phone"] for line in lines if line["table"] == "people" and line["after"]} == {
        "012-3456789",
        "555-0001111",
        "999-8887777",
        None,
    }
    people = [(line["operation"], line["key"]["person"]) for line in lines if line["table"] == "people"]
    assert people == [
        ("READ", 1),
        ("READ", 3),
        ("INSERT", 4),
        ("UPDATE", 1),
        ("DELETE", 4),
        ("UPDATE", 2),
        ("DELETE", 3),
    ]
    seen = [(line["operation"], (line["after"] or line["before"])["customer"]) for line in lines if line["table"] == "seen"]
    assert seen == [("READ", 1), ("INSERT", 3), ("UPDATE", 1), ("INSERT", 2)]


def test_a_value_that_a_rule_cannot_come_to_an_end_with_stays_behind_and_is_not_shown(
    source_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    regex = "{type: regex, pattern: '(?=a)(a|aa)+$', replace: x, time_limit_ms: 20}"
    rules = f"tables:\n  t:\n    - {{type: transform, column: v, parameters: {regex}}}\n"
    keys = keys_with_rules(configuration(group, source_database, None, nats_server), tmp_path, rules, "{}")
    source_database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    succeed(replicate(keys))
    source_database.execute(f"INSERT INTO t VALUES (1, 'fine'), (2, repeat('a', 5000) || '{CLEAR}'), (3, 'good')")
    succeed(replicate(keys))
    outcome = succeed(apply(keys, "stdout"))
    check_nothing_leaked(outcome)
    assert [json.loads(line)["after"]["id"] for line in outcome.stdout.splitlines()] == [1, 3]
    assert "rules.yaml:3: table 't', rule 1" in outcome.log


def test_a_table_or_column_that_is_not_there_stops_the_start(
    source_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    mask = "{type: transform, column: %s, parameters: {type: mask, mask_char: '*'}}"
    rules = f"tables:\n  users: [{mask % 'e_mail'}]\n  custmers: [{mask % 'email'}]\n"
    keys = keys_with_rules(
        configuration(group, source_database, None, nats_server), tmp_path, rules, "people: {destination_table: x}"
    )
    source_database.execute("CREATE TABLE users (id bigint PRIMARY KEY, email text)")
    succeed(replicate(keys))
    outcome = apply(keys, "stdout")
    assert outcome.code == 2, outcome.log
    for part in ("rules.yaml:2: table 'users'", "e_mail", "rules.yaml:3: table 'custmers'", "routing.yaml:1: table 'people'"):
        assert part in outcome.log


MASK = '{type: transform, column: %s, parameters: {type: mask, mask_char: "*"}}'


def test_a_mask_that_was_set_before_its_column_exists_hides_the_first_row_that_has_it(
    source_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    """And a worker that starts while the replicator goes on knows the column."""
    source_database.execute("CREATE TABLE users (id bigint PRIMARY KEY, email text)")
    base = configuration(group, source_database, None, nats_server, **{"log-level": "debug"})
    awaited = MASK.replace("{type", "{optional: true, type", 1) % "phone"
    keys = keys_with_rules(base, tmp_path, f"tables:\n  users: [{MASK % 'email'}, {awaited}]\n", "{}")
    with PgsluiceProcess("replicator", config=keys) as replicator, PgsluiceProcess("worker", "stdout", config=keys) as worker:
        replicator.wait_for_log("replicating")
        worker.wait_for_log("rules are in force")
        source_database.execute(f"INSERT INTO users VALUES (1, '{CLEAR}')")
        source_database.execute(f"ALTER TABLE users ADD phone text; INSERT INTO users VALUES (2, '{CLEAR}', '{CLEAR}')")
        wait_until(lambda: worker.stdout().count("\n") == 2, what="the rows")
        worker.terminate()
        later = tmp_path / "later"
        later.mkdir()
        named = Outcome(
            PgsluiceProcess(
                *("worker", "stdout", "--name", "later", "--until-sequence", "current"),
                config=keys_with_rules(base, later, f"tables:\n  users: [{MASK % 'email'}, {awaited}]\n", "{}"),
            ),
            COPY_DEADLINE_S,
        )
        replicator.terminate()
        hidden = f"{CLEAR[0]}{'*' * (len(CLEAR) - 2)}{CLEAR[-1]}"
        afters = [json.loads(line)["after"] for line in worker.stdout().splitlines()]
    assert afters == [{"id": 1, "email": hidden}, {"id": 2, "email": hidden, "phone": hidden}]
    check_nothing_leaked(succeed(named))
    assert "rules are in force" in named.log
    assert "has no column 'phone' yet" not in named.log


def test_what_no_rule_names_is_null_at_the_target_or_stops_the_worker(
    source_database: Database, target_database: Database, nats_server: NatsServer, group: str, tmp_path: Path
) -> None:
    source_database.execute(
        "CREATE TABLE users (id bigint PRIMARY KEY, email text, secret text NOT NULL);"
        f"INSERT INTO users VALUES (1, 'a{CLEAR}', '{CLEAR}')"
    )
    base = configuration(group, source_database, target_database, nats_server, **{"log-level": "debug"})
    rules = f"tables:\n  users:\n    unlisted: UNLISTED\n    keep: [id]\n    rules: [{MASK % 'email'}]\n"
    keys = keys_with_rules(base, tmp_path, rules.replace("UNLISTED", "null"), "{}")
    copy_and_stream(keys)
    source_database.execute(
        f"INSERT INTO users VALUES (2, 'b{CLEAR}', '{CLEAR}'); UPDATE users SET secret = '{CLEAR}2' WHERE id = 1"
    )
    succeed(replicate(keys))
    check_nothing_leaked(succeed(apply(keys)))
    assert target_database.execute("SELECT id, secret FROM users ORDER BY id") == [(1, None), (2, None)]
    assert CLEAR not in everything_in(target_database)
    refusing = keys_with_rules(base, tmp_path, rules.replace("UNLISTED", "refuse").replace("[id]", "[id, secret]"), "{}")
    with PgsluiceProcess("replicator", config=refusing) as replicator:
        with PgsluiceProcess("worker", "stdout", "--name", "other", config=refusing) as worker:
            worker.wait_for_log("rules are in force")
            source_database.execute("ALTER TABLE users ADD ssn text")
            source_database.execute(f"INSERT INTO users VALUES (3, 'c{CLEAR}', 'known', '{CLEAR}')")
            assert worker.wait() == 70
            assert "no rule names column 'ssn' of table 'public.users', and 'unlisted' is refuse" in worker.log()
            assert "ssn" not in worker.stdout()
        replicator.terminate()
