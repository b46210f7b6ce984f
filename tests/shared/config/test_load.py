"""What is said about values that cannot be used, and the settings that come of those that can."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgsluice.shared import config
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.settings import (
    DropSettings,
    LogSettings,
    NatsSettings,
    PostgresSettings,
    ReplicatorSettings,
    SourceTablesSettings,
    StatusSettings,
    WorkerSettings,
)
from pgsluice.shared.config.stream_settings import StreamSettings
from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.file.options import FileSinkSettings
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.stdout.options import StdoutSinkSettings
from tests.configuration import OPTIONS, Readers, case_name, load, load_from, readers_of, yaml_file


def test_a_configuration_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config '.*/absent.yaml' \(--config\) is not there \(no such file\): "):
        load_from({"config": str(tmp_path / "absent.yaml")}, {}, StatusSettings)


@pytest.mark.parametrize(
    ("mapping", "reason"),
    [
        ("{cores: 2}", "holds the unknown setting 'cores'"),
        ("{master: a, spark.master: b}", "holds spark.master twice"),
        ("{spark.x: [1]}", "is nested deeper than one level"),
        ("{spark.x: 1, spark.x: 2}", "holds spark.x twice"),
        ("[a]", "is a list"),
    ],
)
def test_a_spark_setting_that_cannot_be_meant_is_refused(tmp_path: Path, mapping: str, reason: str) -> None:
    with pytest.raises(UsageError, match="spark") as raised:
        load(tmp_path, f"spark: {mapping}\n", WorkerSettings)
    assert reason in str(raised.value)
    assert "line 9" in str(raised.value)


CLUSTERS = ("spark://spark:7077", "k8s://https://kubernetes", "yarn", "local-cluster[1,1,1024]", "spark://local:7077")
AUTHENTICATED = "spark.authenticate: true"


@pytest.mark.parametrize("master", CLUSTERS)
@pytest.mark.parametrize(
    "settings",
    ["", f", {AUTHENTICATED}", ", spark.network.crypto.enabled: true", f", {AUTHENTICATED}, spark.ssl.rpc.enabled: false"],
)
def test_a_cluster_that_would_give_passwords_to_the_network_is_refused(tmp_path: Path, master: str, settings: str) -> None:
    mapping = f'spark: {{master: "{master}"{settings}}}\n'
    for readers in ((WorkerSettings,), (WorkerSettings, PostgresSinkSettings)):
        with pytest.raises(UsageError) as raised:
            load(tmp_path, mapping, *readers)
        assert f"spark.master {master} runs tasks over the network without" in str(raised.value)
        assert "set spark.authenticate: true" in str(raised.value)
        assert "spark.network.crypto.enabled: true" in str(raised.value)
        assert ("spark.authenticate.secret" in str(raised.value)) is not master.startswith(("yarn", "k8s"))
    with pytest.raises(UsageError, match=r"spark\.master"):
        load(tmp_path, mapping + "copy-and-stream: true\n", ReplicatorSettings)
    load(tmp_path, mapping, ReplicatorSettings)  # it does not start Spark


@pytest.mark.parametrize("encryption", ["spark.network.crypto.enabled", "spark.ssl.rpc.enabled"])
@pytest.mark.parametrize("master", CLUSTERS)
def test_a_cluster_that_authenticates_and_encrypts_is_accepted(tmp_path: Path, master: str, encryption: str) -> None:
    load(tmp_path, f'spark: {{master: "{master}", {AUTHENTICATED}, {encryption}: true}}\n', WorkerSettings)


@pytest.mark.parametrize("master", CLUSTERS)
def test_a_cluster_in_a_network_of_its_own_does_without_when_somebody_says_so(tmp_path: Path, master: str) -> None:
    load(tmp_path, f'spark: {{master: "{master}", insecure: true}}\n', WorkerSettings)


OTHER_MACHINES = f'spark: {{master: "spark://spark:7077", {AUTHENTICATED}, spark.network.crypto.enabled: true}}\n'


@pytest.mark.parametrize(
    ("flags", "readers", "named"),
    [
        (
            {"nats_url": "nats://nats:4222,nats://u:hunter2@localhost:4222"},
            (WorkerSettings,),
            "nats-url (--nats-url) names localhost",
        ),
        ({"target_host": "127.0.0.1"}, (WorkerSettings, PostgresSinkSettings), "target-host (--target-host) names 127.0.0.1"),
        ({"host": "db,/run/postgresql", "copy": "true"}, (ReplicatorSettings,), "host (--host) names /run/postgresql"),
    ],
)
def test_an_address_that_means_another_machine_on_each_is_refused_for_executors(
    tmp_path: Path, flags: dict[str, str], readers: tuple[type, ...], named: str
) -> None:
    with pytest.raises(UsageError) as raised:
        load(tmp_path, OTHER_MACHINES, *readers, **flags)
    assert named in str(raised.value)
    assert "give the address under which the executors reach it" in str(raised.value)
    assert "hunter2" not in str(raised.value)
    load(tmp_path, 'spark: {master: "local[2]"}\n', *readers, **flags)
    load(tmp_path, OTHER_MACHINES, *readers)


def test_a_replicator_that_starts_no_spark_may_be_beside_its_source(tmp_path: Path) -> None:
    load(tmp_path, OTHER_MACHINES, ReplicatorSettings, host="localhost")


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*]", "local[2,3]", "local[*, 4]"])
def test_a_local_master_needs_nothing(tmp_path: Path, master: str) -> None:
    load(tmp_path, f'spark: {{master: "{master}"}}\n', WorkerSettings)


@pytest.mark.parametrize(
    ("content", "readers", "message"),
    [
        ("tabels: a\n", (ReplicatorSettings,), "unknown key 'tabels' ({file}, line 9): did you mean 'tables'?"),
        ("nats_url: a\n", (ReplicatorSettings,), "unknown key 'nats_url' ({file}, line 9): did you mean 'nats-url'?"),
        ("zzz: a\n", (StatusSettings,), "unknown key 'zzz' ({file}, line 9): remove it; config.example.yaml lists every key"),
        ("config: a\n", (StatusSettings,), "unknown key 'config' ({file}, line 9): "),
        ("port: abc\n", (StatusSettings,), "port 'abc' ({file}, line 9) is not a whole number: write it like 5432"),
        ("port: 70000\n", (StatusSettings,), "port '70000' ({file}, line 9) is not from 1 to 65535: write it like 5432"),
        ("port: [1]\n", (StatusSettings,), "port ({file}, line 9) is a list, but one value is needed: write it like 5432"),
        ("port: {a: 1}\n", (StatusSettings,), "port ({file}, line 9) is a mapping, but one value is needed: write it like 5432"),
        (
            "tables: [[a]]\n",
            (ReplicatorSettings,),
            "{file}, line 9: tables is nested deeper than one level: see config.example.yaml",
        ),
        ("failover: perhaps\n", (ReplicatorSettings,), "failover 'perhaps' ({file}, line 9) is neither true nor false: "),
        (
            "publish: [insert, merge]\n",
            (ReplicatorSettings,),
            "publish ({file}, line 9) is not one of insert, update, delete, truncate: ",
        ),
        (
            "file-output-dir: out\nformat: parquet\ntransactions: true\n",
            (WorkerSettings, FileSinkSettings),
            "transactions ({file}, line 11) has no meaning with format: parquet ({file}, line 10): remove it: ",
        ),
        (
            "format: pg-flo\ntransactions: true\n",
            (WorkerSettings, StdoutSinkSettings),
            "transactions ({file}, line 10) has no meaning with format: pg-flo ({file}, line 9): remove it: every line ",
        ),
        ("sslmode: always\n", (StatusSettings,), "sslmode 'always' ({file}, line 9) is not one of disable, allow, "),
        ("stream-max-bytes: 10G\n", (ReplicatorSettings,), "stream-max-bytes '10G' ({file}, line 9) is not a size "),
        ("stream-max-bytes: 1KiB\n", (ReplicatorSettings,), "stream-max-bytes '1KiB' ({file}, line 9) is not 1048576 or more: "),
        (
            "stream-compression: lz4\n",
            (ReplicatorSettings,),
            "stream-compression 'lz4' ({file}, line 9) is not one of none, s2, zstd: ",
        ),
        ("retention: 24\n", (ReplicatorSettings,), "retention '24' ({file}, line 9) is not a duration "),
        ("until-lsn: soon\n", (ReplicatorSettings,), "until-lsn 'soon' ({file}, line 9) is not an LSN "),
        ("until-sequence: 0\n", (WorkerSettings,), "until-sequence '0' ({file}, line 9) is not 1 or more: write it like current"),
        ("batch-size: many\n", (WorkerSettings,), "batch-size 'many' ({file}, line 9) is not a whole number: write it like 8192"),
        ("sslcert: /nowhere\n", (StatusSettings,), "sslcert '/nowhere' ({file}, line 9) is not there (no such file): "),
        ("password: ${PGSLUICE_NOWHERE}\n", (StatusSettings,), "password ({file}, line 9) refers to the environment variable "),
        ("schema: ${1}\n", (ReplicatorSettings,), "schema ({file}, line 9) holds a '${' that is not ${NAME} or ${NAME:-text}: "),
        ("host: again\n", (StatusSettings,), "{file}, line 9: host occurs twice: remove it here or in line 3"),
        (
            "name: My Worker\n",
            (WorkerSettings,),
            "worker name 'My Worker' is not valid ({file}, line 9): use 1 to 40 ",
        ),
        (
            "sslkey: /dev/null\n",
            (StatusSettings,),
            "sslkey is given ({file}, line 9) without sslcert: give sslcert too, or remove sslkey",
        ),
        ("nats-user: a\n", (StatusSettings,), "nats-password is not set: "),
        ("nats-token: a\nnats-user: b\nnats-password: c\n", (StatusSettings,), "nats-user and nats-token are both given: "),
        (
            "stream: true\ncopy: true\n",
            (ReplicatorSettings,),
            "several modes are given: stream ({file}, line 9), copy ({file}, line 10): give 'mode' alone; ",
        ),
        (
            "mode: stream\ncopy-and-stream: true\n",
            (ReplicatorSettings,),
            "several modes are given: mode ({file}, line 9) stream, copy-and-stream ({file}, line 10): give 'mode' alone; ",
        ),
        ("mode: copy\nuntil-lsn: current\n", (ReplicatorSettings,), "until-lsn ({file}, line 10) has no meaning with mode copy"),
        ("mode: both\n", (ReplicatorSettings,), "mode 'both' ({file}, line 9) is not one of stream, copy, copy-and-stream"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_key_the_place_and_the_remedy(
    tmp_path: Path, content: str, readers: Readers, message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        load(tmp_path, content, *readers)
    expected = message.replace("{file}", str(tmp_path / "pgsluice.yaml"))
    assert str(raised.value).startswith(expected)
    assert "\n" not in str(raised.value)
    assert raised.value.remedy


def test_a_group_with_a_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"group 'my orders' is not a valid name \(--group\): use 1 to 40 characters, a-z"):
        load(tmp_path, "", StatusSettings, group="my orders")


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        load(tmp_path, "port: x\ntabels: y\ncopy: true\nstream: true\n", ReplicatorSettings, sslmode="z")
    lines = str(raised.value).splitlines()
    assert lines[0] == "the configuration has 4 mistakes: correct each of these"
    assert [line.split(" (")[0] for line in lines[1:]] == [
        "  - unknown key 'tabels'",
        "  - port 'x'",
        "  - sslmode 'z'",
        "  - several modes are given: stream",
    ]


SECRETS = [option for option in OPTIONS if option.secret]


@pytest.mark.parametrize("option", SECRETS, ids=case_name)
def test_a_secret_is_in_no_error(tmp_path: Path, option: Option) -> None:
    readers = readers_of(option)
    for raw in ("http://u:hunter2@host", "[http://u:hunter2@host]", "{a: hunter2}", "hunter2${", "hunter2${PGSLUICE_NOWHERE}"):
        path = yaml_file(tmp_path, {option.name: f"'{raw}'" if raw.startswith("hunter2") else raw, "port": "x", "zzz": "1"})
        with pytest.raises(UsageError) as raised:
            load_from({"config": path}, {}, *readers)
        assert "hunter2" not in str(raised.value)
        assert "hunter2" not in repr(raised.value)


def test_a_secret_is_in_no_repr(tmp_path: Path) -> None:
    named = ("nats-url", "nats-token")
    secrets = [option for option in SECRETS if option.name not in named and option.kind is not Kind.DATABASE]
    texts = {Kind.PAIRS: "{key: hunter2}", Kind.URL: "https://hunter2.example.com"}
    content = "".join(f"{each.name}: {texts.get(each.kind, 'hunter2')}\n" for each in secrets)
    content += "otlp-endpoint: http://collector:4318\nnats-user: u\nspark: {spark.hadoop.fs.s3a.secret.key: hunter2}\n"
    for readers in (
        (ReplicatorSettings,),
        (StatusSettings,),
        (DropSettings,),
        (SourceTablesSettings,),
        (WorkerSettings, PostgresSinkSettings),
    ):
        values = load(tmp_path, content, *readers, nats_url="nats://u:hunter2@host")
        assert "hunter2" in str(dict(values.values))
        assert "hunter2" not in repr(values)
        assert "hunter2" not in repr([config.make(settings, values) for settings in readers])


def test_settings_of_the_replicator_hold_what_was_given(tmp_path: Path) -> None:
    content = (
        "tables: [a, sales.*]\npublish: INSERT update\nfailover: on\nretention: 1h\nstream-placement-tags: x\nsslmode: require\n"
        "stream-compression: zstd\n"
    )
    settings = config.make(
        ReplicatorSettings, load(tmp_path, content, ReplicatorSettings, until_lsn="Current", password="secret")
    )
    assert settings.source == PostgresSettings("db", 5432, "shop", "app", "secret", "require", "", "", "", "")
    assert settings.nats == NatsSettings(
        "nats://nats:4222", "", "", "", "", "", "", "", tls_first=False, inbox_prefix="_INBOX", creates_streams=True
    )
    assert settings.stream == StreamSettings(1, ("x",), 0, "zstd", 3600.0)
    assert settings.log == LogSettings("INFO", "text")
    assert (settings.group, settings.schema, settings.tables) == ("orders", "public", ("a", "sales.*"))
    assert (settings.publish, settings.failover, settings.until_lsn) == (("insert", "update"), True, "current")


def test_streams_are_not_compressed_unless_somebody_says_so(tmp_path: Path) -> None:
    assert config.make(ReplicatorSettings, load(tmp_path, "", ReplicatorSettings)).stream.compression == "none"


def test_settings_of_a_worker_hold_what_was_given(tmp_path: Path) -> None:
    values = load(
        tmp_path,
        "batch-bytes: 1MiB\nlog-format: json\nlog-level: DEBUG\n",
        WorkerSettings,
        PostgresSinkSettings,
        until_sequence="017",
    )
    settings = config.make(WorkerSettings, values).named("postgres")
    assert (settings.name, settings.until_sequence, settings.batch_messages, settings.batch_bytes) == (
        "postgres",
        "17",
        8192,
        2**20,
    )
    assert settings.log == LogSettings("DEBUG", "json")
    assert settings.spark == {}
    sink_settings = config.make(PostgresSinkSettings, values)
    assert sink_settings.target == PostgresSettings("target", 5432, "warehouse", "loader", "", "", "", "", "", "")
    assert (sink_settings.sync_schema, sink_settings.disable_foreign_keys) == (True, None)


def test_a_worker_keeps_the_name_it_was_given(tmp_path: Path) -> None:
    assert config.make(WorkerSettings, load(tmp_path, "name: second\n", WorkerSettings)).named("stdout").name == "second"


def test_status_needs_no_source_but_a_source_must_be_whole(tmp_path: Path) -> None:
    broker_only = {"config": yaml_file(tmp_path, {"group": "orders", "nats-url": "nats"})}
    assert config.make(StatusSettings, load_from(broker_only, {}, StatusSettings)).source is None
    with pytest.raises(UsageError, match="dbname is not set") as raised:
        load_from(broker_only, {"PGSLUICE_HOST": "db"}, StatusSettings)
    assert "user is not set" in str(raised.value)
    assert config.make(StatusSettings, load(tmp_path, "", StatusSettings)).source is not None


def test_what_has_no_effect_is_noticed(tmp_path: Path) -> None:
    values = load(tmp_path, "source-host: old\n", WorkerSettings, PostgresSinkSettings)
    environment = {"PGSLUICE_GRUOP": "x", "PGSLUICE_SOMETHING_ELSE": "x", "PGSLUICE_HOST": "x", "HOME": "x"}
    noticed = [(notice.name, notice.place) for notice in config.notices(values, environment, OPTIONS)]
    assert noticed == [("source-host", f"{tmp_path}/pgsluice.yaml, line 9"), ("PGSLUICE_GRUOP", "environment")]


def test_a_file_of_pg_flo_loads_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "pg-flo.yaml"
    path.write_text(PG_FLO_FILE)
    replicator = config.make(ReplicatorSettings, load_from({"config": str(path)}, {}, ReplicatorSettings))
    assert (replicator.source.host, replicator.tables, replicator.schema) == ("localhost", ("users", "orders"), "public")
    worker = load_from({"config": str(path)}, {}, WorkerSettings, PostgresSinkSettings)
    assert config.make(PostgresSinkSettings, worker).sync_schema is False
    assert config.make(WorkerSettings, worker).named("postgres").batch_messages == 1000


PG_FLO_FILE = """\
host: "localhost" # PostgreSQL host
port: 5432
dbname: "shop"
user: "app"
password: "se$cret"
schema: "public"
group: "orders"
tables: # empty for all tables
  - "users"
  - "orders"
stream: true
copy: false
copy-and-stream: false
max-copy-workers-per-table: 4
track-ddl: false
nats-url: "nats://localhost:4222"
batch-size: 1000
rules-config: ""
routing-config: ""
file-output-dir: "/tmp/out"
target-host: "localhost"
target-port: 5433
target-dbname: "warehouse"
target-user: "app"
target-password: "0123"
target-sync-schema: false
target-disable-foreign-keys: false
source-host: ""
source-port: 5432
source-dbname: ""
source-user: ""
source-password: ""
webhook-url: ""
"""
