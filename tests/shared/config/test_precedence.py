"""Which of the flag, the environment, the file and the default wins, for every option of the table."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest

from pgsluice.shared import config
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.settings import OPERATIONS, ReplicatorSettings, StatusSettings, WorkerSettings
from pgsluice.shared.errors import UsageError
from tests.configuration import BY_NAME, OPTIONS, READERS, REQUIRED, case_name, load, load_from, readers_of, yaml_file

COMPANIONS = {
    "nats-user": {"nats-password": "x"},
    "nats-password": {"nats-user": "x"},
    "nats-password-file": {"nats-user": "x"},
    "recopy": {"copy-and-stream": "true"},
    "nats-tls-key": {"nats-tls-cert": "/dev/null"},
    "server-tls-cert": {"server-tls-key": "/dev/null"},
    "server-tls-key": {"server-tls-cert": "/dev/null"},
    "behind-proxy": {"server-hosts": "pgsluice.example.com"},
    "sslkey": {"sslcert": "/dev/null"},
    "otlp-headers": {"otlp-endpoint": "http://collector"},
    "target-sslkey": {"target-sslcert": "/dev/null"},
}
"""What an option needs beside it."""

SAMPLES = {
    Kind.TEXT: (("one", "one"), ("two", "two"), ("three", "three")),
    Kind.NUMBER: (("1", 1), ("2", 2), ("3", 3)),
    Kind.SIZE: (("1MiB", 2**20), ("2MiB", 2**21), ("4MiB", 2**22)),
    Kind.DURATION: (("1s", 1.0), ("2m", 120.0), ("3h", 10_800.0)),
    Kind.LSN: (("0/1", "0/1"), ("0/2", "0/2"), ("0/3", "0/3")),
    Kind.SERVERS: (("nats://a", "nats://a"), ("b", "nats://b"), ("tls://c", "tls://c")),
    Kind.URL: (("https://a/", "https://a/"), ("http://b:80/c", "http://b:80/c"), ("https://c?d", "https://c?d")),
    Kind.ADDRESS: (("127.0.0.1:0", "127.0.0.1:0"), ("host:9464", "host:9464"), ("localhost:80", "localhost:80")),
    Kind.LIST: (("a,b", ("a", "b")), ("c", ("c",)), ("d e", ("d", "e"))),
    Kind.FILE: (("/dev/null", "/dev/null"), ("/dev/zero", "/dev/zero"), ("/dev/full", "/dev/full")),
}

LAYERS = ("flag", "environment", "file")

FILES_OF_SECRETS = [option for option in OPTIONS if option.content_of and BY_NAME[option.content_of].kind is not Kind.DATABASE]


def sample_texts(option: Option) -> tuple[tuple[str, object], ...]:
    if option.name == "publish":
        return tuple((operation, (operation,)) for operation in OPERATIONS)
    if option.name == "search-url":
        return tuple((url, (url,)) for url in ("https://a/", "http://b:80", "https://c/d"))
    if option.name == "file-output-dir":
        return tuple((place, place) for place in ("/one", "/two", "/three"))
    if option.name.endswith("kafka-brokers"):
        return tuple((address, (address,)) for address in ("a:1", "b:9092", "c:443"))
    if option.kind is Kind.NUMBER and (option.minimum or 0) > 1:
        return tuple((str(number), number) for number in range(int(option.minimum or 0), int(option.minimum or 0) + 3))
    if option.choices:
        return tuple((choice, choice) for choice in (option.choices * 2)[:3])
    return SAMPLES[option.kind]


def load_layers(directory: Path, option: Option, given: Mapping[str, str]) -> config.Values:
    """Loads ``option`` from the layers in ``given``, and all that it needs beside it from the file."""
    needed = {other.name: other.example for other in config.options_of(*readers_of(option)) if other.required} | REQUIRED
    rest = {key: value for key, value in needed.items() if key != option.name} | COMPANIONS.get(option.name, {})
    path = yaml_file(directory, rest | ({option.name: given["file"]} if "file" in given else {}))
    flags: dict[str, str | tuple[str, ...]] = {"config": path}
    if "flag" in given:
        flags[option.name] = (given["flag"],) if option.kind is Kind.LIST else given["flag"]
    environment = {option.variable: given["environment"]} if "environment" in given else {}
    return load_from(flags, environment, *readers_of(option))


OF_ONE_VALUE = [
    option
    for option in OPTIONS
    if option.name != "config" and not option.content_of and option.kind not in (Kind.PAIRS, Kind.DATABASE)
]
ONE_OF_EACH_KIND = list({option.kind: option for option in OF_ONE_VALUE}.values())


@pytest.mark.parametrize(
    "layers", [layers for count in (1, 2, 3) for layers in itertools.combinations(LAYERS, count)], ids=" ".join
)
def test_flag_wins_over_environment_over_file(tmp_path: Path, layers: tuple[str, ...]) -> None:
    """Every option with all layers; the others with one option of each kind, because which layers there are is one decision."""
    for option in OF_ONE_VALUE if layers == LAYERS else ONE_OF_EACH_KIND:
        if option.kind is Kind.SWITCH:
            samples: tuple[tuple[str, object], ...] = (("true", True), ("false", False), ("false", False))
        else:
            samples = sample_texts(option)
        values = load_layers(tmp_path, option, {layer: samples[i][0] for i, layer in enumerate(layers)})
        assert values.values[option.name] == samples[0][1], option.name
        assert values.places[option.name].startswith(place_of(option, layers[0], tmp_path))


def place_of(option: Option, layer: str, directory: Path) -> str:
    return {"flag": option.flag, "environment": option.variable, "file": f"{directory}/pgsluice.yaml, line "}[layer]


def test_without_any_other_layer_the_default_holds(tmp_path: Path) -> None:
    for option in OPTIONS:
        if option.default and not option.required:
            assert load_layers(tmp_path, option, {}).places[option.name] == "default", option.name


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.required], ids=case_name)
def test_an_option_that_is_needed_and_missing_is_named_with_every_place_and_an_example(tmp_path: Path, option: Option) -> None:
    every_required = {other.name: other.example for other in OPTIONS if other.required} | REQUIRED
    for readers in READERS:
        if option.name not in (other.name for other in config.options_of(*readers) if other.required):
            continue
        path = yaml_file(tmp_path, {key: value for key, value in every_required.items() if key != option.name})
        with pytest.raises(UsageError) as raised:
            load_from({"config": path}, {}, *readers)
        assert str(raised.value) == (
            f"{option.name} is not set: give {option.flag}, {option.variable} or '{option.name}:' in {path}"
            f"{f', or a {option.url} for it' if option.url else ''}; "
            f"for example {option.flag} {option.example}"
        )


@pytest.mark.parametrize("option", FILES_OF_SECRETS, ids=case_name)
def test_a_secret_is_the_content_of_its_file_without_the_line_end(tmp_path: Path, option: Option) -> None:
    (tmp_path / "secret").write_text(" hunter 2 \n")
    values = load_layers(tmp_path, option, {"environment": str(tmp_path / "secret")})
    assert values.text(option.content_of) == " hunter 2 "
    assert values.places[option.content_of] == option.variable


def test_a_secret_and_its_file_follow_the_same_precedence(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from file")
    from_file = {"password-file": str(tmp_path / "secret")}
    given = {"config": yaml_file(tmp_path, REQUIRED | {"password": "plain"})}
    assert load_from(given | from_file, {}, StatusSettings).text("password") == "from file"
    given = {"config": yaml_file(tmp_path, REQUIRED | from_file)}
    assert load_from(given, {}, StatusSettings).text("password") == "from file"
    assert load_from(given, {"PGSLUICE_PASSWORD": "plain"}, StatusSettings).text("password") == "plain"


def test_a_secret_and_its_file_in_the_same_place_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2")
    with pytest.raises(UsageError, match=r"password and password-file are both given \(--password-file\): give one of them"):
        load(tmp_path, "", StatusSettings, password="x", password_file=str(tmp_path / "secret"))


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe"])
def test_an_empty_or_unreadable_secret_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(UsageError, match=r"password: .*/secret \(--password-file\) (is empty|cannot be read)"):
        load(tmp_path, "", StatusSettings, password_file=str(tmp_path / "secret"))


def test_an_empty_value_counts_as_not_given(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, REQUIRED | {"schema": "sales", "sslmode": "", "tables": "[]", "password": "~"})
    environment = {"PGSLUICE_SCHEMA": "", "PGSLUICE_PORT": " "}
    values = load_from({"config": path, "host": ""}, environment, ReplicatorSettings)
    assert (values.text("schema"), values.number("port"), values.text("host")) == ("sales", 5432, "db")
    assert not any(values.given(name) for name in ("sslmode", "tables", "password"))


def test_entries_of_the_spark_mapping_are_merged_one_by_one(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, REQUIRED | {"spark": '{master: "local[1]", memory: 2g, spark.ui.enabled: no}'})
    environment = {"PGSLUICE_SPARK": '{"spark.ui.enabled": true, "spark.task.cpus": 1}'}
    values = load_from({"config": path, "spark": ("master=local[4]", "spark.x=a=b")}, environment, WorkerSettings)
    assert values.pairs("spark") == {
        "spark.master": "local[4]",
        "spark.driver.memory": "2g",
        "spark.executor.memory": "2g",
        "spark.ui.enabled": "true",
        "spark.task.cpus": "1",
        "spark.x": "a=b",
    }


def test_the_configuration_file_is_named_by_the_environment_too(tmp_path: Path) -> None:
    path = yaml_file(tmp_path, REQUIRED | {"schema": "sales"})
    assert load_from({}, {"PGSLUICE_CONFIG": path}, ReplicatorSettings).text("schema") == "sales"


def test_the_file_in_the_home_directory_is_read_when_none_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    Path(yaml_file(tmp_path, REQUIRED | {"schema": "sales"})).rename(tmp_path / ".pgsluice.yaml")
    assert load_from({}, {}, ReplicatorSettings).text("schema") == "sales"


def test_without_a_file_everything_can_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    environment = {BY_NAME[name].variable: value for name, value in REQUIRED.items()}
    assert load_from({}, environment, ReplicatorSettings).text("host") == "db"


def test_a_file_serves_every_role_and_keys_of_others_are_not_read(tmp_path: Path) -> None:
    content = "target-port: nonsense\nbatch-size: ${NOT_SET_HERE}\nwebhook-url: x\ntransactions: maybe\n"
    assert load(tmp_path, content, ReplicatorSettings).text("group") == "orders"


def test_an_overridden_value_is_not_read(tmp_path: Path) -> None:
    assert (
        load(tmp_path, "port: nonsense\npassword: ${NOT_SET_HERE}\n", StatusSettings, port="1", password="x").number("port") == 1
    )
