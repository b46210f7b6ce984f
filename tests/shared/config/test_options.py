"""The table of options, and the example configuration that shows all of it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from pgsluice.shared import config
from pgsluice.shared.config.kinds import Kind, parse, parse_flag_pairs
from pgsluice.shared.config.options import BY_NAME, OPTIONS, Option, Role, options_of

EXAMPLE = Path(__file__).parents[3] / "config.example.yaml"

COMMANDS = (
    (Role.REPLICATOR,),
    (Role.STATUS,),
    (Role.DROP,),
    (Role.RULES,),
    (Role.WORKER, Role.STDOUT),
    (Role.WORKER, Role.POSTGRES),
)

PG_FLO = """
    host port dbname user password group schema tables nats-url stream copy copy-and-stream max-copy-workers-per-table track-ddl
    rules-config routing-config batch-size file-output-dir webhook-url target-host target-port target-dbname target-user
    target-password target-sync-schema target-disable-foreign-keys source-host source-port source-dbname source-user
    source-password retry-max-attempts retry-initial-wait retry-max-wait
"""

each_option = pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)


def test_no_option_and_no_variable_is_there_twice() -> None:
    assert [name for name, count in Counter(option.name for option in OPTIONS).items() if count > 1] == []
    assert len({option.variable for option in OPTIONS}) == len(OPTIONS)


def test_every_key_of_pg_flo_is_known() -> None:
    assert [name for name in PG_FLO.split() if name not in BY_NAME] == []


def test_options_keep_the_order_of_the_table_and_belong_to_their_role() -> None:
    names = [option.name for option in options_of(Role.WORKER, Role.STDOUT)]
    assert names == [option.name for option in OPTIONS if {Role.WORKER, Role.STDOUT} & set(option.roles)]
    assert "transactions" in names
    assert "target-host" not in names


@each_option
def test_an_option_has_a_well_formed_name_and_a_help_text(option: Option) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", option.name)
    assert option.help
    assert option.help[0].isupper()
    assert not option.help.endswith(".")
    assert option.roles
    assert set(option.required) <= set(option.roles)


@each_option
def test_the_example_of_an_option_is_a_value_it_takes(option: Option) -> None:
    if option.kind is Kind.FILE or option.example in option.words or option.example.startswith("${"):
        return
    value = parse_flag_pairs((option.example,)) if option.kind is Kind.PAIRS else parse(option.kind, option.example)
    for item in value if isinstance(value, tuple) else (value,):
        assert not option.choices or item in option.choices


@each_option
def test_the_default_of_an_option_is_a_value_it_takes(option: Option) -> None:
    if option.default:
        assert not option.secret
        assert not option.required
        parse(option.kind, option.default)


@each_option
def test_a_secret_can_come_from_a_file(option: Option) -> None:
    if option.content_of:
        assert BY_NAME[option.content_of].secret
    if option.secret and option.kind is Kind.TEXT and not option.no_effect:
        assert BY_NAME[option.name + "-file"].content_of == option.name


@each_option
def test_the_example_configuration_lists_the_option(option: Option) -> None:
    if option.name != "config":
        assert re.search(rf"^(# )?{option.name}:", EXAMPLE.read_text(), re.MULTILINE), f"add {option.name} to {EXAMPLE.name}"


@each_option
def test_the_example_configuration_shows_the_default(option: Option) -> None:
    shown = {key: value for key, value in yaml.load(EXAMPLE.read_text(), yaml.BaseLoader).items() if value}
    if option.default and option.name in shown:
        value = shown[option.name]
        assert parse(option.kind, tuple(value) if isinstance(value, list) else value) == parse(option.kind, option.default)


def test_the_example_configuration_holds_no_other_key() -> None:
    keys = re.findall(r"^(?:# )?([a-z]+(?:-[a-z]+)*):", EXAMPLE.read_text(), re.MULTILINE)
    assert [key for key in keys if key not in BY_NAME] == []


@pytest.mark.parametrize("roles", COMMANDS, ids=lambda roles: roles[-1].value)
def test_the_example_configuration_loads_as_it_is(roles: tuple[Role, ...]) -> None:
    values = config.load({"config": str(EXAMPLE)}, {}, *roles)
    assert values.text("group") == "orders"
    assert list(config.notices(values, {})) == []
