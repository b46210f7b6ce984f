"""The file that ``up`` writes says what was given, to whoever reads it, and holds no secret."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from pgsluice.console import program
from pgsluice.console.up.equivalent_configuration import equivalent_configuration
from pgsluice.shared import config
from pgsluice.shared.config.declaration import CONFIG
from pgsluice.shared.config.file import expand, parse_config_file
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.settings import ReplicatorSettings, WorkerSettings
from pgsluice.shared.config.values import Values
from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.file.options import FileSinkSettings
from pgsluice.worker.sinks.sink_registry import SINKS, find_sink, sink_settings
from tests.configuration import BY_NAME, REQUIRED, Readers, load_from

Flags = dict[str, str | tuple[str, ...]]

SECRET = "whsec_" + base64.b64encode(b"x" * 32).decode()
"""Of a form that every secret may have."""
WITH_OTHERS: dict[str, Flags] = {
    "kafka-sasl": {"kafka-user": "u", "kafka-password": SECRET},
    "kafka-user": {"kafka-sasl": "scram-sha-512", "kafka-password": SECRET},
    "kafka-password": {"kafka-sasl": "scram-sha-512", "kafka-user": "u"},
    "kafka-password-file": {"kafka-sasl": "scram-sha-512", "kafka-user": "u"},
    "search-allow-indexes": {"search-allow-indexes": "pgsluice-*"},
    "search-user": {"search-password": SECRET},
    "search-password": {"search-user": "u"},
    "search-password-file": {"search-user": "u"},
    "nats-user": {"nats-password": SECRET},
    "nats-password": {"nats-user": "u"},
    "nats-password-file": {"nats-user": "u"},
    "worker-source": {"worker-source": "replicator"},
    "format": {"format": "debezium"},
    "recopy": {"copy": "true", "tables": "orders"},
}
READERS = [(ReplicatorSettings,), *((WorkerSettings, settings) for settings in sink_settings().values())]


LINE_OPTIONS = (
    "transactions",
    "format",
    "row-layout",
    "column-case",
    "include-before",
    "column-ids",
    "debezium-name",
    "debezium-database",
)


def write_files(directory: Path) -> None:
    """A secret, and what is empty to all that read YAML."""
    (directory / "some.file").write_text(SECRET)
    (directory / "some.yaml").write_text("tables: {}\n")


def example(option: Option, file: Path) -> str | tuple[str, ...]:
    if option.kind is Kind.FILE:
        return str(file if option.content_of else file.with_suffix(".yaml"))
    text = SECRET if option.example.startswith("${") else option.example
    return (text,) if option.kind is Kind.PAIRS else text


def required(readers: Readers) -> Flags:
    examples = {option.name: option.example for option in config.options_of(*readers) if option.required}
    return {**examples, **REQUIRED}


def with_others(option: Option, file: Path) -> Flags:
    """What has to be given with it."""
    others = {"nats-stream": "orders"} if option.name in LINE_OPTIONS else {}
    if option.name in ("kafka-client-cert", "kafka-client-key"):
        others = dict.fromkeys(("kafka-client-cert", "kafka-client-key"), str(file.with_suffix(".yaml")))
    return {**others, **WITH_OTHERS.get(option.name, {})}


def nothing_to_check(settings: object) -> None:
    pass


def given_in_turn(readers: Readers, file: Path, check: Callable[[Any], None] = nothing_to_check) -> Iterator[Flags]:
    """Every option by its example, as many at a time as do not exclude each other."""
    urls = [option.name for option in config.options_of(*readers) if option.kind is Kind.DATABASE]  # whose parts are given
    left = [option for option in config.options_of(*readers) if option is not CONFIG and not option.no_effect]
    left = [option for option in left if not {option.name, option.content_of} & set(urls)]
    while left:
        flags, others = required(readers), []
        for option in left:
            more = flags | {option.name: example(option, file)} | with_others(option, file)
            try:
                check(config.make(readers[-1], load_from(more, {}, *readers)))
                flags = more
            except UsageError:
                others.append(option)
        assert len(others) < len(left), f"cannot be given: {[option.name for option in left]}"
        left = others
        yield flags


@pytest.mark.parametrize("readers", READERS, ids=lambda readers: readers[-1].__name__)
def test_what_reads_the_file_gets_what_was_given(tmp_path: Path, readers: Readers) -> None:
    write_files(tmp_path)
    for flags in given_in_turn(readers, tmp_path / "some.file"):
        values = load_from(flags, {}, *readers)
        equivalent = equivalent_configuration(values, {})
        (tmp_path / "pgsluice.yaml").write_text(equivalent.text)
        again = load_from({"config": str(tmp_path / "pgsluice.yaml")}, equivalent.variables, *readers)
        for settings in readers:
            assert config.make(settings, again) == config.make(settings, values)
        assert SECRET not in equivalent.text
        assert SECRET not in repr(equivalent)


@pytest.mark.parametrize("sink", SINKS)
def test_up_takes_every_option_of_every_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], sink: str
) -> None:
    """As ``--print-config`` shows; a command that was told that reads the same."""
    monkeypatch.setenv("HOME", str(tmp_path))
    write_files(tmp_path)
    settings = sink_settings()[sink]
    target = {} if sink == "postgres" else {"target-host", "target-dbname", "target-user"}
    for flags in given_in_turn((settings,), tmp_path / "some.file", find_sink(sink).check):
        given = {name: text for name, text in flags.items() if name not in target}
        arguments = [f"--{name}={text if isinstance(text, str) else text[0]}" for name, text in given.items()]
        code = program.run(["up", "--worker", sink, f"--state-dir={tmp_path}/state", "--print-config", *arguments])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        (tmp_path / "pgsluice.yaml").write_text(printed.out)
        secrets = {variable: text_of(flags, variable) for variable in re.findall(r"\$\{(\w+)\}", printed.out)}
        again = load_from({"config": str(tmp_path / "pgsluice.yaml")}, secrets, WorkerSettings, settings)
        assert config.make(settings, again) == config.make(settings, load_from(flags, {}, settings))


def text_of(flags: Flags, variable: str) -> str:
    [text] = [
        text
        for name, text in flags.items()
        if variable in (BY_NAME[name].variable, BY_NAME[BY_NAME[name].content_of or name].variable)
    ]
    if isinstance(text, tuple):
        return json.dumps(dict(pair.split("=", 1) for pair in text))
    return text if not Path(text).is_file() else Path(text).read_text()


def test_paths_are_written_as_they_are_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other commands of the group are called in other directories."""
    (tmp_path / "rules.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    given = REQUIRED | {"rules-config": "rules.yaml", "file-output-dir": "out"}
    equivalent = equivalent_configuration(load_from(given, {}, WorkerSettings, FileSinkSettings), {})
    assert {f"rules-config: {tmp_path}/rules.yaml", f"file-output-dir: {tmp_path}/out"} <= set(equivalent.text.splitlines())


def test_secrets_are_references_and_defaults_are_left_out() -> None:
    flags: dict[str, str | tuple[str, ...]] = {
        "group": "shop",
        "nats-url": "nats://u:hunter2@n",
        "source-url": "postgres://ada:hunter2@db/shop?sslmode=require",
        "spark": ("spark.hadoop.fs.s3a.secret.key=hunter2",),
        "tables": "a,s.*",
    }
    equivalent = equivalent_configuration(load_from(flags, {}, ReplicatorSettings), {"group": "shop", "copy-and-stream": "true"})
    assert equivalent.text.splitlines() == [
        "group: shop",
        "copy-and-stream: true",
        "nats-url: ${PGSLUICE_NATS_URL}",
        "host: db",
        "port: 5432",
        "dbname: shop",
        "user: ada",
        "password: ${PGSLUICE_PASSWORD}",
        "sslmode: require",
        'tables: [a, "s.*"]',
        "spark: ${PGSLUICE_SPARK}",
    ]
    assert equivalent.variables["PGSLUICE_PASSWORD"] == "hunter2"


@hypothesis.given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_comes_back_as_it_was(text: str) -> None:
    values = Values({}, {}, {}, None)
    equivalent = equivalent_configuration(values, {"user": text})
    raw = parse_config_file("pgsluice.yaml", equivalent.text).entries["user"].raw
    assert raw is not None
    assert expand(raw, {}) == text
