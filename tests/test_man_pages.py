"""Man pages: one of every command, with its options, and in a form that groff takes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.commands import commands
from tests.misses import no_misses
from tests.source_code import REPOSITORY


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, "docs/man_pages.py", str(directory)], cwd=REPOSITORY, check=True)
    return {path.name: path.read_text() for path in directory.iterdir()}


def _file(command: str) -> str:
    return f"pgsluice {command}".rstrip().replace(" ", "-") + ".1"


def test_every_command_has_a_page_with_each_option_that_is_not_hidden(pages: dict[str, str]) -> None:
    assert pages.keys() == set(map(_file, commands()))
    absent = (
        f"{path}: {flag}"
        for path, command in commands().items()
        for each in command.params
        if isinstance(each, click.Option) and not each.hidden and each.name != "help_all"
        for flag in each.opts
        if flag.replace("-", r"\-") not in pages[_file(path)]
    )
    no_misses(absent, "an option that the man page lacks")


def test_a_page_has_its_sections_and_names_the_pages_of_its_commands(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        sections = re.findall(r"^\.SH (.+)$", page, re.MULTILINE)
        assert sections[:4] == ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"], name
        assert "EXIT STATUS" in sections
        named = {f"{each.replace(chr(92), '')}.1" for each in re.findall(r"^\.BR (\S+) \(1\)$", page, re.MULTILINE)}
        no_misses(named - pages.keys(), f"{name} names a page that there is not")


def test_groff_has_nothing_to_say_about_the_pages(pages: dict[str, str], tmp_path: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    for name, page in pages.items():
        path = tmp_path / name
        path.write_text(page)
        checked = subprocess.run(["groff", "-man", "-Tutf8", "-Kutf8", "-ww", "-z", str(path)], capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, ""), name
