"""Every planted fault is found; the SQL that is printed cures it as it stands; a start names the same errors, all at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pgsluice.console.program import run
from pgsluice.shared import config
from pgsluice.shared.config.settings import ReplicatorSettings, WorkerSettings
from pgsluice.shared.errors import PgsluiceError
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.postgres.sink import PostgresSink
from tests.configuration import load_from
from tests.console.check.planted import FAULTS, NOT_BY_SQL, Planted, run_script, told
from tests.end_to_end.once import apply, replicate, succeed
from tests.servers import Database, NatsServer, PostgresServer


def configuration(directory: Path, **keys: Any) -> str:
    path = directory / "check.yaml"
    path.write_text(yaml.safe_dump({name.replace("_", "-"): value for name, value in keys.items()}))
    return str(path)


def source_keys(database: Database) -> dict[str, Any]:
    return {
        "group": "g",
        "host": database.server.host,
        "port": database.server.port,
        "dbname": database.dbname,
        "user": "postgres",
    }


def cure(planted: Planted, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs what ``--sql`` prints for each server, once."""
    capsys.readouterr()
    for flag, database in (("--source", planted.source), ("--target", planted.target)):
        planted.check(flag, "--sql")
        run_script(database, capsys.readouterr().out)
    planted.source_server.restart()


def test_every_planted_fault_is_found_and_cured_by_the_printed_sql(
    nats_server: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Planted(nats_server, tmp_path) as planted:
        assert planted.check("--json") == 1
        found = told(capsys.readouterr().out)
        missing = [fault for fault in FAULTS if not any(fault[:2] == each[:2] and fault[2] in each[2] for each in found)]
        assert not missing, found
        starts_name_the_errors(planted, tmp_path)
        cure(planted, capsys)
        assert planted.check("--json") == 0
        left = told(capsys.readouterr().out)
        assert {check for severity, check, _ in left if severity != "info"} == NOT_BY_SQL


def starts_name_the_errors(planted: Planted, directory: Path) -> None:
    """Replicator and worker, each in one error; they make nothing."""
    from pgsluice.replicator.replicator import run as replicate_for_ever

    path = configuration(directory, **planted.keys)
    values = load_from({"config": path}, {}, ReplicatorSettings)
    with pytest.raises(PgsluiceError) as refusal:
        replicate_for_ever(config.make(ReplicatorSettings, values))
    for text in ("wal_level", "may not replicate", "unused: taken", "public.bare", "public.silent", "is unlogged", "lacks"):
        assert text in str(refusal.value)
    values = load_from({"config": path}, {}, WorkerSettings, PostgresSinkSettings)
    sink = PostgresSink(config.make(WorkerSettings, values).named("postgres"), config.make(PostgresSinkSettings, values))
    with pytest.raises(PgsluiceError) as refusal:
        sink.open()
    sink.close()
    for text in ("may not use schema pgsluice", "session_replication_role"):
        assert text in str(refusal.value)


@pytest.mark.long
def test_the_cured_pipeline_starts_and_rows_arrive(
    nats_server: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Planted(nats_server, tmp_path) as planted:
        cure(planted, capsys)
        planted.source.execute("ROLLBACK PREPARED 'held'")
        succeed(replicate(planted.keys))
        planted.source.execute(
            "INSERT INTO ordinary VALUES (2, 'two'); UPDATE silent SET id = 2; INSERT INTO bare VALUES (2, 'c')"
        )
        succeed(replicate(planted.keys))
        succeed(apply(planted.keys))
        assert planted.target.execute("SELECT id, note FROM ordinary ORDER BY id") == [(1, "one"), (2, "two")]
        assert planted.target.execute("SELECT id, feeling::text FROM sales.secret") == [(1, "sad")]
        assert planted.target.execute("SELECT id, v FROM bare ORDER BY id") == [(1, "b"), (2, "c")]
        assert planted.check("--json") == 0


def test_nothing_is_touched(source_database: Database, nats_server: NatsServer, tmp_path: Path) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    counts = (
        "SELECT (SELECT count(*) FROM pg_replication_slots),"
        " (SELECT count(*) FROM pg_publication),"
        " (SELECT count(*) FROM pg_class), (SELECT pg_current_xact_id_if_assigned())"
    )
    before = source_database.execute(counts)
    path = configuration(tmp_path, **source_keys(source_database), nats_url=nats_server.url, copy_and_stream=True)
    assert run(["check", "--config", path]) == 0
    assert source_database.execute(counts) == before


def test_json_has_the_documented_fields(source_database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source_database.execute("CREATE TABLE t (id int)")
    path = configuration(tmp_path, **source_keys(source_database))
    assert run(["check", "--config", path, "--source", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["format"], report["group"], report["looked_at"]) == (1, "g", ["source"])
    assert report["counts"]["errors"] == sum(finding["severity"] == "error" for finding in report["findings"]) == 1
    [identity] = [finding for finding in report["findings"] if finding["check"] == "source-replica-identity"]
    assert identity == {
        "check": "source-replica-identity",
        "severity": "error",
        "subject": "source",
        "fact": "without a primary key or replica identity: public.t; once published, UPDATE and DELETE of it fail",
        "remedy": "ALTER TABLE public.t REPLICA IDENTITY FULL, or add a primary key, or set publish to [insert, truncate]",
        "statements": ["ALTER TABLE public.t REPLICA IDENTITY FULL"],
        "choices": [],
        "restart": False,
        "configuration": False,
    }


def test_a_source_that_is_named_by_its_url_is_looked_at(
    source_database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = source_database.server
    url = f"postgres://{server.user}@{server.host}:{server.port}/{source_database.dbname}"
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    assert run(["check", "--config", configuration(tmp_path, group="g", source_url=url, target_url=url), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["looked_at"] == ["machine", "source", "target"]
    assert [finding["check"] for finding in report["findings"] if finding["severity"] == "error"] == ["target-is-source"]


def test_a_target_that_was_made_by_a_base_backup_of_the_source_is_another_server(
    source_database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with PostgresServer() as copy:
        target = copy.create_database(source_database.dbname)
        identifier = "SELECT system_identifier FROM pg_control_system()"
        assert target.execute(identifier) == source_database.execute(identifier)
        there = {"target_host": copy.host, "target_port": copy.port, "target_dbname": target.dbname, "target_user": copy.user}
        path = configuration(tmp_path, **source_keys(source_database), **there)
        assert run(["check", "--config", path, "--target", "--json"]) == 0
    assert "target-is-source" not in [check for _, check, _ in told(capsys.readouterr().out)]


def test_insert_only_tables_need_no_identity(source_database: Database, tmp_path: Path) -> None:
    source_database.execute("CREATE TABLE t (id int)")
    path = configuration(tmp_path, **source_keys(source_database), publish=["insert"])
    assert run(["check", "--config", path, "--source"]) == 0


def test_servers_that_are_away_are_found_together_and_no_secret_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsluice.shared.broker.broker_findings.PATIENCE_S", 0.3)
    secrets = {"password": "s3cret-source", "target_password": "s3cret-target"}
    nowhere = {
        "group": "g",
        "host": "127.0.0.1",
        "port": 1,
        "dbname": "d",
        "user": "u",
        "nats_url": "nats://u:s3cret-nats@127.0.0.1:1",
    }
    target = {"target_host": "127.0.0.1", "target_port": 1, "target_dbname": "d", "target_user": "u"}
    webhook = {"webhook_url": "http://127.0.0.1:1/s3cret-path", "webhook_allow_hosts": ["127.0.0.1"]}
    path = configuration(tmp_path, **nowhere, **target, **secrets, **webhook)
    for flags in (("--json",), ("--sql",)):
        assert run(["check", "--config", path, *flags]) == 1
        said = capsys.readouterr()
        assert "s3cret" not in said.out + said.err
        if flags == ("--json",):
            errors = [check for severity, check, _ in told(said.out) if severity == "error"]
            assert errors == ["nats-connection", "source-connection", "target-connection", "webhook-receiver"]
        if flags == ("--sql",):
            assert said.out == ""


def test_a_part_that_is_asked_for_and_not_named_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--config", configuration(tmp_path, group="g"), "--target"]) == 2
    assert "target-host is not set" in capsys.readouterr().err


def test_the_same_database_as_source_and_target_is_refused_unless_routes_part_them(
    source_database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    keys = source_keys(source_database)
    same = {f"target_{name}": keys[name] for name in ("host", "port", "dbname", "user")}
    path = configuration(tmp_path, **keys, **same)
    assert run(["check", "--config", path, "--target", "--json"]) == 1
    assert "target-is-source" in [check for _, check, _ in told(capsys.readouterr().out)]
    routes = tmp_path / "routing.yaml"
    routes.write_text("t: {destination_schema: copied}\n")
    path = configuration(tmp_path, **keys, **same, routing_config=str(routes))
    assert run(["check", "--config", path, "--target"]) == 0


def test_rules_are_held_against_the_source(source_database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    routes = tmp_path / "routing.yaml"
    routes.write_text("nowhere: {destination_schema: copied}\n")
    path = configuration(tmp_path, **source_keys(source_database), routing_config=str(routes))
    assert run(["check", "--config", path, "--rules", "--json"]) == 1
    [finding] = told(capsys.readouterr().out)
    assert finding[1] == "rules-tables"
    assert "there is no table 'nowhere'" in finding[2]


PARTED = """
CREATE TABLE x (id int NOT NULL, part int NOT NULL, note text, UNIQUE (id, part)) PARTITION BY LIST (part);
CREATE TABLE x1 PARTITION OF x FOR VALUES IN (1);
CREATE TABLE x2 PARTITION OF x FOR VALUES IN (2) PARTITION BY RANGE (id);
CREATE TABLE x2a PARTITION OF x2 FOR VALUES FROM (0) TO (100);
CREATE UNIQUE INDEX a_shorter_one ON x1 (id);
"""


IDENTITIES = """
SELECT c.relname::text, c.relreplident::text,
       ARRAY(SELECT a.attname::text FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
              WHERE i.indrelid = c.oid AND i.indisreplident ORDER BY 1)
  FROM pg_class c WHERE c.relname IN ('x', 'x1', 'x2a') ORDER BY 1
"""


@pytest.mark.parametrize(
    ("altered", "identity"),
    [
        ("", "i"),
        ("ALTER TABLE x1 REPLICA IDENTITY USING INDEX a_shorter_one", "i"),
        ("ALTER TABLE x REPLICA IDENTITY USING INDEX x_id_part_key", "i"),
        ("ALTER TABLE x1 REPLICA IDENTITY FULL; ALTER TABLE x2a REPLICA IDENTITY FULL", "i"),
        ("ALTER TABLE x REPLICA IDENTITY FULL", "f"),
        ("ALTER TABLE x DROP CONSTRAINT x_id_part_key", "f"),
    ],
    ids=["nothing", "a partition", "the root", "partitions full", "root full", "no index"],
)
def test_the_cures_of_a_partitioned_table_agree(
    source_database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str], altered: str, identity: str
) -> None:
    """What one check asks for no later one takes back, and in the end rows of all partitions are identified alike."""
    source_database.execute(PARTED + altered)
    path = configuration(tmp_path, **source_keys(source_database), tables=["x"])
    asked: list[str] = []
    for _ in range(3):
        run(["check", "--config", path, "--source", "--json"])
        found = [each for each in json.loads(capsys.readouterr().out)["findings"] if "identity" in each["check"]]
        statements = [statement for each in found for statement in each["statements"]]
        asked += statements
        for statement in statements:
            source_database.execute(statement)
    assert found == []
    assert len({statement.split()[2] for statement in asked}) == len(set(asked))
    columns = ["id", "part"] if identity == "i" else []
    assert source_database.execute(IDENTITIES) == [(name, identity, columns) for name in ("x", "x1", "x2a")]


def test_tables_that_inherit_and_are_left_out_are_told_of(
    source_database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source_database.execute(
        "CREATE TABLE readings (id int PRIMARY KEY); CREATE SCHEMA chunks;"
        "CREATE TABLE chunks.first (PRIMARY KEY (id)) INHERITS (readings);"
        "CREATE TABLE chunks.below (PRIMARY KEY (id)) INHERITS (chunks.first); INSERT INTO chunks.below VALUES (1)"
    )
    path = configuration(tmp_path, **source_keys(source_database), tables=["readings"])
    assert run(["check", "--config", path, "--source", "--json"]) == 0
    facts = {check: fact for _, check, fact in told(capsys.readouterr().out)}
    assert facts["source-inheritance"].endswith("leaves these out: chunks.below, chunks.first")
    path = configuration(tmp_path, **source_keys(source_database), tables=["readings", "chunks.*"])
    run(["check", "--config", path, "--source", "--json"])
    assert "source-inheritance" not in [check for _, check, _ in told(capsys.readouterr().out)]
