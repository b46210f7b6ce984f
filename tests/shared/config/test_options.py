"""The table of options, and the example configuration that shows all of it."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import yaml

from pgsluice.shared import config
from pgsluice.shared.config.kinds import Kind, parse, parse_flag_pairs
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.settings import DropSettings, ReplicatorSettings, SourceTablesSettings, StatusSettings, WorkerSettings
from pgsluice.worker.sinks.postgres.options import PostgresSinkSettings
from pgsluice.worker.sinks.stdout.options import StdoutSinkSettings
from tests.configuration import BY_NAME, OPTIONS, READERS, Readers, load_from

EMPTY = Path("/dev/null")
EXAMPLE = Path(__file__).parents[3] / "config.example.yaml"

COMMANDS = (
    (ReplicatorSettings,),
    (StatusSettings,),
    (DropSettings,),
    (SourceTablesSettings,),
    (WorkerSettings, StdoutSinkSettings),
    (WorkerSettings, PostgresSinkSettings),
)

PG_FLO = """
    host port dbname user password group schema tables nats-url stream copy copy-and-stream max-copy-workers-per-table track-ddl
    rules-config routing-config batch-size file-output-dir webhook-url target-host target-port target-dbname target-user
    target-password target-sync-schema target-disable-foreign-keys source-host source-port source-dbname source-user
    source-password retry-max-attempts retry-initial-wait retry-max-wait
"""


def test_no_option_and_no_variable_is_there_twice() -> None:
    assert [name for name, count in Counter(option.name for option in OPTIONS).items() if count > 1] == []
    assert len({option.variable for option in OPTIONS}) == len(OPTIONS)


def test_every_key_of_pg_flo_is_known() -> None:
    assert [name for name in PG_FLO.split() if name not in BY_NAME] == []


def test_options_of_a_command_come_in_the_order_of_their_declarations() -> None:
    names = [option.name for option in config.options_of(WorkerSettings, StdoutSinkSettings)]
    assert names[:4] == ["config", "group", "log-level", "log-format"]
    assert names[-10:-6] == ["alert-repeat", "alert-interval", "transactions", "format"]
    assert "target-host" not in names


@pytest.mark.parametrize("settings", list(dict.fromkeys(chain(*READERS))), ids=lambda each: each.__name__)
def test_a_field_holds_what_its_option_is_read_as(tmp_path: Path, settings: type[Any]) -> None:
    """Once with nothing but what is required, and once with an example of everything."""
    required = {option.name: option.example for option in config.options_of(settings) if option.required}
    everything = {option.name: option.example for option in config.options_of(settings) if not left_out(option)}
    for given in (required, required | everything):
        flags: dict[str, str | tuple[str, ...]] = {"config": str(EMPTY)}
        for name, text in given.items():
            flags[name] = (text,) if BY_NAME[name].kind is Kind.PAIRS else text
        values = load_from(flags, {}, settings)
        assert_types(config.make(settings, values))


def left_out(option: Option) -> bool:
    """Options whose example is of this machine, or that another one excludes."""
    return (
        option.kind in (Kind.FILE, Kind.DATABASE)
        or option.name in ("nats-token", "worker-source", "stream", "copy", "track-ddl", "recopy", "format", "row-layout")
        or option.name.startswith("source-")
    )


def assert_types(settings: Any) -> None:
    hints = get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        allowed = [get_origin(hint) or hint for hint in get_args(hints[field.name]) or ()]
        plain = get_origin(hints[field.name]) or hints[field.name]
        assert type(value) in (allowed if plain is UnionType else [plain]), field.name
        if dataclasses.is_dataclass(value):
            assert_types(value)


def test_an_option_has_a_well_formed_name_and_a_help_text() -> None:
    for option in OPTIONS:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", option.name)
        assert option.help, option.name
        assert option.help[0].isupper(), option.name
        assert not option.help.endswith("."), option.name


def test_the_example_of_an_option_is_a_value_it_takes() -> None:
    for option in OPTIONS:
        if option.kind is not Kind.FILE and option.example not in option.words and not option.example.startswith("${"):
            value = parse_flag_pairs((option.example,)) if option.kind is Kind.PAIRS else parse(option.kind, option.example)
            for item in value if isinstance(value, tuple) else (value,):
                assert not option.choices or item in option.choices, option.name


def test_the_default_of_an_option_is_a_value_it_takes() -> None:
    for option in OPTIONS:
        if option.default:
            assert not option.secret, option.name
            assert not option.required, option.name
            parse(option.kind, option.default)


def test_a_secret_can_come_from_a_file() -> None:
    for option in OPTIONS:
        if option.content_of:
            assert BY_NAME[option.content_of].secret, option.name
        if option.secret and option.kind is Kind.TEXT and not option.no_effect:
            assert BY_NAME[option.name + "-file"].content_of == option.name


def test_the_example_configuration_lists_every_option() -> None:
    listed = set(re.findall(r"^(?:# )?([a-z-]+):", EXAMPLE.read_text(), re.MULTILINE))
    assert not [option.name for option in OPTIONS if option.name not in {*listed, "config"}], f"add them to {EXAMPLE.name}"


def test_the_example_configuration_shows_defaults() -> None:
    shown = {key: value for key, value in yaml.load(EXAMPLE.read_text(), yaml.BaseLoader).items() if value}
    for option in OPTIONS:
        if option.default and option.name in shown:
            value = shown[option.name]
            given = parse(option.kind, tuple(value) if isinstance(value, list) else value)
            assert given == parse(option.kind, option.default), option.name


def test_the_example_configuration_holds_no_other_key() -> None:
    keys = re.findall(r"^(?:# )?([a-z]+(?:-[a-z]+)*):", EXAMPLE.read_text(), re.MULTILINE)
    assert [key for key in keys if key not in BY_NAME] == []


@pytest.mark.parametrize("readers", COMMANDS, ids=lambda readers: readers[-1].__name__)
def test_the_example_configuration_loads_as_it_is(readers: Readers) -> None:
    values = load_from({"config": str(EXAMPLE)}, {}, *readers)
    assert values.text("group") == "orders"
    assert list(config.notices(values, {}, OPTIONS)) == []
