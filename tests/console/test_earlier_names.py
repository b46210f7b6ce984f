"""Names that were replaced still work, and the page of versions lists each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pgsluice.console.program import ALIASES, program
from pgsluice.console.table_commands import EARLIER_COMMANDS, tables
from pgsluice.shared import config
from pgsluice.shared.config.copy_settings import MODES, CopySettings
from pgsluice.shared.config.option import Option
from pgsluice.shared.config.settings import ReplicatorSettings
from tests.commands import commands
from tests.configuration import OPTIONS, REQUIRED, yaml_file
from tests.misses import no_misses
from tests.source_code import REPOSITORY

EARLIER = [option for option in OPTIONS if option.instead]
WITHOUT_EFFECT = [option for option in OPTIONS if option.no_effect]
PAGE = (REPOSITORY / "docs" / "reference" / "versions.md").read_text()


def replicator(directory: Path, flags: dict[str, str], variables: dict[str, str], **keys: str) -> ReplicatorSettings:
    flags = flags | {"config": yaml_file(directory, REQUIRED | keys)}
    return config.make(ReplicatorSettings, config.load(flags, variables, ReplicatorSettings, known=OPTIONS))


def is_in(settings: ReplicatorSettings, mode: str) -> bool:
    wanted = {"stream": None, "copy": False, "copy-and-stream": True}[mode]
    return wanted == (None if settings.copy is None else settings.copy.then_stream)


@pytest.mark.parametrize("option", EARLIER, ids=lambda option: option.name)
def test_an_earlier_option_does_the_same_as_the_current_one_in_each_place(option: Option, tmp_path: Path) -> None:
    current, _, value = option.instead.partition(": ")
    for name, given in ((option.name, "true"), (current, value)):
        variable = next(each.variable for each in OPTIONS if each.name == name)
        assert is_in(replicator(tmp_path, {name: given}, {}), value)
        assert is_in(replicator(tmp_path, {}, {variable: given}), value)
        assert is_in(replicator(tmp_path, {}, {}, **{name: given}), value)
    both = {option.name: "true", current: value}
    assert is_in(replicator(tmp_path, both, {}), value), "the same mode twice is one"


@pytest.mark.parametrize("option", EARLIER, ids=lambda option: option.name)
def test_an_earlier_option_is_a_flag_that_help_does_not_list(option: Option) -> None:
    [flag] = [each for each in commands()["replicator"].params if option.flag in each.opts]
    assert getattr(flag, "hidden", False)


def test_the_current_option_wins_over_a_switch_that_is_taken_back(tmp_path: Path) -> None:
    assert is_in(replicator(tmp_path, {"mode": "copy-and-stream"}, {}, **{"copy-and-stream": "false"}), "copy-and-stream")


def test_modes_are_the_earlier_options() -> None:
    assert {option.name for option in EARLIER} == set(MODES) == {option.name for option in CopySettings.EARLIER}


def test_an_option_without_effect_is_hidden_and_accepted(tmp_path: Path) -> None:
    shown = {
        flag
        for command in commands().values()
        for each in command.params
        if not getattr(each, "hidden", True)
        for flag in each.opts
    }
    no_misses({option.flag for option in WITHOUT_EFFECT} & shown, "help lists it, and it does nothing")
    replicator(tmp_path, {}, {}, **{option.name: option.example for option in WITHOUT_EFFECT if not option.secret})


def test_an_earlier_name_of_a_command_leads_to_the_current_one() -> None:
    import click

    context = click.Context(program)
    for earlier, current in ALIASES.items():
        assert program.get_command(context, earlier) is program.get_command(context, current)
    for earlier, current in EARLIER_COMMANDS.items():
        assert tables.get_command(context, earlier) is tables.get_command(context, current) is not None


def test_the_page_of_versions_lists_every_earlier_name() -> None:
    named = set(re.findall(r"^\| `([^`]+)`", PAGE, re.MULTILINE))
    wanted = {option.flag for option in EARLIER} | {f"pgsluice {name}" for name in ALIASES}
    wanted |= {f"pgsluice tables {name}" for name in EARLIER_COMMANDS}
    no_misses(wanted - named, "an earlier name that docs/reference/versions.md does not list")
