"""The file that ``up`` writes says what was given, to whoever reads it, and holds no secret."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

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
from pgsluice.worker.sinks.sink_registry import sink_settings
from tests.configuration import REQUIRED, Readers, load_from

Flags = dict[str, str | tuple[str, ...]]

WITH_OTHERS: dict[str, Flags] = {
    "nats-user": {"nats-password": "hunter2"},
    "nats-password": {"nats-user": "u"},
    "nats-password-file": {"nats-user": "u"},
    "worker-source": {"worker-source": "replicator"},
    "format": {"format": "debezium"},
    "recopy": {"copy": "true", "tables": "orders"},
}
READERS = [(ReplicatorSettings,), *((WorkerSettings, settings) for settings in sink_settings().values())]


def example(option: Option, file: Path) -> str | tuple[str, ...]:
    if option.kind is Kind.FILE:
        return str(file)
    text = "hunter2" if option.example.startswith("${") else option.example
    return (text,) if option.kind is Kind.PAIRS else text


def required(readers: Readers) -> Flags:
    examples = {option.name: option.example for option in config.options_of(*readers) if option.required}
    return {**examples, **REQUIRED}


def given_in_turn(readers: Readers, file: Path) -> Iterator[Flags]:
    """Every option by its example, as many at a time as do not exclude each other."""
    urls = [option.name for option in config.options_of(*readers) if option.kind is Kind.DATABASE]  # whose parts are given
    left = [option for option in config.options_of(*readers) if option is not CONFIG and not option.no_effect]
    left = [option for option in left if not {option.name, option.content_of} & set(urls)]
    while left:
        flags, others = required(readers), []
        for option in left:
            more = flags | {option.name: example(option, file)} | WITH_OTHERS.get(option.name, {})
            try:
                load_from(more, {}, *readers)
                flags = more
            except UsageError:
                others.append(option)
        assert len(others) < len(left), f"cannot be given: {[option.name for option in left]}"
        left = others
        yield flags


@pytest.mark.parametrize("readers", READERS, ids=lambda readers: readers[-1].__name__)
def test_what_reads_the_file_gets_what_was_given(tmp_path: Path, readers: Readers) -> None:
    (tmp_path / "some.file").write_text("hunter2")
    for flags in given_in_turn(readers, tmp_path / "some.file"):
        values = load_from(flags, {}, *readers)
        equivalent = equivalent_configuration(values, {})
        (tmp_path / "pgsluice.yaml").write_text(equivalent.text)
        again = load_from({"config": str(tmp_path / "pgsluice.yaml")}, equivalent.variables, *readers)
        for settings in readers:
            assert config.make(settings, again) == config.make(settings, values)
        assert "hunter2" not in equivalent.text
        assert "hunter2" not in repr(equivalent)


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
