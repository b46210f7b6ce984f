"""The file that ``up`` writes says what was given, to whoever reads it, and holds no secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.console.up.equivalent_configuration import equivalent_configuration
from pgsluice.shared import config
from pgsluice.shared.config.file import expand, parse_config_file
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.settings import ReplicatorSettings, WorkerSettings
from pgsluice.shared.config.values import Values
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.webhook.options import WebhookSinkSettings
from tests.configuration import REQUIRED, load_from

EXCLUDED = ("config", "nats-token", "stream", "copy", "recopy", "format", "row-layout", "publication")
"""They exclude others that are given here, or are no setting."""

READERS = ((ReplicatorSettings,), (WorkerSettings, PostgresSinkSettings), (WorkerSettings, WebhookSinkSettings))


@pytest.mark.parametrize("readers", READERS, ids=lambda readers: readers[-1].__name__)
def test_what_reads_the_file_gets_what_was_given(tmp_path: Path, readers: tuple[type[object], ...]) -> None:
    flags: dict[str, str | tuple[str, ...]] = dict(REQUIRED)
    for option in config.options_of(*readers):
        if option.kind not in (Kind.FILE, Kind.DATABASE) and option.name not in EXCLUDED and not option.example.startswith("${"):
            flags[option.name] = (option.example,) if option.kind is Kind.PAIRS else option.example
    secrets = {"PGSLUICE_PASSWORD": "hunter2", "PGSLUICE_NATS_PASSWORD": "hunter2"}
    values = load_from(flags, secrets, *readers)
    equivalent = equivalent_configuration(values, {})
    (tmp_path / "pgsluice.yaml").write_text(equivalent.text)
    again = load_from({"config": str(tmp_path / "pgsluice.yaml")}, equivalent.variables, *readers)
    for settings in readers:
        assert config.make(settings, again) == config.make(settings, values)
    assert "hunter2" not in equivalent.text
    assert "hunter2" not in repr(equivalent)


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


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_text_comes_back_as_it_was(text: str) -> None:
    values = Values({}, {}, {}, None)
    equivalent = equivalent_configuration(values, {"user": text})
    raw = parse_config_file("pgsluice.yaml", equivalent.text).entries["user"].raw
    assert raw is not None
    assert expand(raw, {}) == text
