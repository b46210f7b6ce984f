"""The first configuration file, completion, and names that are mistyped."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.console.test_program import program_process
from tests.source_code import REPOSITORY


def test_init_writes_a_file_that_check_can_read_and_overwrites_none(tmp_path: Path) -> None:
    path = tmp_path / "pgsluice.yaml"
    written = program_process("init", str(path))
    assert (written.returncode, written.stdout) == (0, f"{path} is written. Edit it, then run: pgsluice check --config {path}\n")
    assert program_process("init", "-").stdout == path.read_text()
    path.write_text("mine")
    refused = program_process("init", str(path))
    assert refused.returncode == 2
    assert f"{path} exists already: give another name, or remove it" in refused.stderr
    assert path.read_text() == "mine"
    assert "cannot be written" in program_process("init", str(tmp_path / "nowhere" / "file")).stderr


def test_the_readme_has_the_keys_of_the_first_file() -> None:
    [shown] = [part for part in (REPOSITORY / "README.md").read_text().split("```") if part.startswith("yaml\n# pgsluice.yaml")]
    keys = yaml.safe_load(shown.removeprefix("yaml\n"))
    assert keys.keys() - {"tables"} == yaml.safe_load(program_process("init", "-").stdout).keys()


@pytest.mark.parametrize(
    ("shell", "sign"), [("bash", "complete -o nosort -F"), ("zsh", "compdef"), ("fish", "complete --no-files")]
)
def test_completion_is_a_script_of_the_shell(shell: str, sign: str) -> None:
    script = program_process("completion", shell).stdout
    assert sign in script
    assert "_PGSLUICE_COMPLETE" in script


def test_completion_finds_commands_and_flags() -> None:
    words = {"_PGSLUICE_COMPLETE": "bash_complete", "COMP_WORDS": "pgsluice stat", "COMP_CWORD": "1"}
    assert program_process(variables=words).stdout.split() == ["plain,status"]
    flags = words | {"COMP_WORDS": "pgsluice status --wa", "COMP_CWORD": "2"}
    assert program_process(variables=flags).stdout.split() == ["plain,--watch"]


@pytest.mark.parametrize(
    ("mistyped", "said"),
    [
        (("stauts",), "No such command 'stauts'. Did you mean 'status'"),
        (("tables", "resnyc"), "No such command 'resnyc'"),
        (("quuux",), "No such command 'quuux'.\n"),
    ],
)
def test_a_command_that_is_mistyped_is_answered_with_those_that_are_alike(mistyped: tuple[str, ...], said: str) -> None:
    ended = program_process(*mistyped)
    assert ended.returncode == 2
    assert said in ended.stderr


def test_earlier_and_other_names_of_commands_are_taken() -> None:
    assert "Usage: pgsluice dlq" in program_process("dlq", "--help").stdout
    assert "Usage: pgsluice tables recopy" in program_process("tables", "recopy", "--help").stdout
    listed = program_process("--help").stdout + program_process("tables", "--help").stdout
    assert "dlq " not in listed
    assert "recopy" not in listed
