"""The table of options, and the example configuration that shows all of it."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

import pytest
import yaml

from pgsluice.shared import config
from pgsluice.shared.config.declaration import part, read, settings
from pgsluice.shared.config.kinds import Kind, parse, parse_flag_pairs
from pgsluice.shared.config.option import Option
from tests.configuration import BY_NAME, OPTIONS, READERS, load_from
from tests.misses import no_misses

EMPTY = Path("/dev/null")
EXAMPLE = Path(__file__).parents[3] / "config.example.yaml"

PG_FLO = """
    host port dbname user password group schema tables nats-url stream copy copy-and-stream max-copy-workers-per-table track-ddl
    rules-config routing-config batch-size file-output-dir webhook-url target-host target-port target-dbname target-user
    target-password target-sync-schema target-disable-foreign-keys source-host source-port source-dbname source-user
    source-password retry-max-attempts retry-initial-wait retry-max-wait
"""


def test_no_option_and_no_variable_is_there_twice() -> None:
    times = Counter(option.name for option in OPTIONS) + Counter(option.variable for option in OPTIONS)
    no_misses((name for name, count in times.items() if count > 1), "two options are called so: call one of them otherwise")


def test_every_key_of_pg_flo_is_known() -> None:
    no_misses(
        set(PG_FLO.split()) - BY_NAME.keys(), "a key of pg_flo that no option reads: a configuration of it would be refused"
    )


def text_option(name: str) -> Option:
    return Option(name, Kind.TEXT, "Help", "example")


@settings
class Inner:
    nested: str = read(text_option("nested"))


@settings
class Outer:
    first: str = read(text_option("first"))
    inner: Inner = part(Inner)
    CHECKED_ONLY: ClassVar[Option] = text_option("checked-only")
    secret: str = read(dataclasses.replace(text_option("secret"), secret=True, in_file="the secret"))


@settings
class Beside:
    again: str = read(text_option("first"))
    last: str = read(text_option("last"))


def test_options_of_a_command_come_in_the_order_of_their_declarations() -> None:
    """Each once, where it is declared first; and every command takes a configuration file."""
    names = [each.name for each in config.options_of(Outer, Beside)]
    assert names == ["config", "first", "nested", "checked-only", "secret", "secret-file", "last"]


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
    misnamed = (option.name for option in OPTIONS if not re.fullmatch(r"[a-z]+(-[a-z]+)*", option.name))
    no_misses(misnamed, "an option is called by words in small letters with hyphens between them")
    unlike = (option.name for option in OPTIONS if not re.fullmatch(r"(?s)[A-Z].*[^.]", option.help))
    no_misses(unlike, "its help begins with a capital letter and does not end in a full stop")


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
    no_misses(BY_NAME.keys() - listed - {"config"}, f"not in {EXAMPLE.name}: add it, in a comment where it has a default")


def test_the_example_configuration_shows_defaults() -> None:
    shown = {key: value for key, value in yaml.load(EXAMPLE.read_text(), yaml.BaseLoader).items() if value}
    for option in OPTIONS:
        if option.default and option.name in shown:
            value = shown[option.name]
            given = parse(option.kind, tuple(value) if isinstance(value, list) else value)
            assert given == parse(option.kind, option.default), option.name


def test_the_example_configuration_holds_no_other_key() -> None:
    keys = re.findall(r"^(?:# )?([a-z]+(?:-[a-z]+)*):", EXAMPLE.read_text(), re.MULTILINE)
    no_misses(set(keys) - BY_NAME.keys() - {"yaml-language-server"}, f"in {EXAMPLE.name}, and no option: take it out")


def test_the_example_configuration_loads_as_it_is_for_every_command() -> None:
    """But for the destinations of sinks that it shows in comments."""
    shown = {key for key, value in yaml.load(EXAMPLE.read_text(), yaml.BaseLoader).items() if value}
    for readers in READERS:
        needed = [each for each in config.options_of(*readers) if each.required and each.name not in shown]
        flags: dict[str, str | tuple[str, ...]] = {"config": str(EXAMPLE)}
        flags |= {each.name: (each.example,) if each.kind is Kind.LIST else each.example for each in needed}
        values = load_from(flags, {}, *readers)
        told = (f"{notice.name}: {notice.message}" for notice in config.notices(values, {}, OPTIONS))
        no_misses(told, f"{EXAMPLE.name} is read by {readers[-1].__name__} with a remark")
        assert values.get("group", "orders") == "orders"
