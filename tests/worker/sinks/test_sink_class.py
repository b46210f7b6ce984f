"""Loading a sink by the name of its class."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from pgsluice.console.program import program
from pgsluice.shared.errors import UsageError
from pgsluice.testing.batch import apply
from pgsluice.testing.changes_builder import insert, message, table
from pgsluice.worker.sinks.sink import NOTHING_APPLIED
from pgsluice.worker.sinks.sink_registry import default_name, is_sink_class, load_sink
from tests.worker.sinks.settings import worker_settings
from tests.worker.sinks.sqlite_sink import SqliteSink

SETTINGS = worker_settings("orders")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the worker is started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    return tmp_path


def test_a_sink_is_made_from_settings_and_options(tmp_path: Path) -> None:
    sink = load_sink("tests.worker.sinks.sqlite_sink:SqliteSink", SETTINGS, {"path": str(tmp_path / "changes.db")})
    assert isinstance(sink, SqliteSink)
    sink.open()
    sink.close()
    assert (tmp_path / "changes.db").exists()


def test_each_worker_has_a_position_of_its_own_in_the_examples_file(tmp_path: Path) -> None:
    first, second = (SqliteSink(replace(SETTINGS, name=name), {"path": str(tmp_path / "changes.db")}) for name in "ab")
    first.open()
    applied = apply(first, [[message(1, insert(table("public.events", "id bigint"), b"1"))]])
    assert second.open() == NOTHING_APPLIED
    assert first.open() == applied


def test_a_module_in_the_working_directory_is_found_here_and_by_the_processes_that_tasks_run_in(directory: Path) -> None:
    (directory / "own_sink.py").write_text("from tests.worker.sinks.sqlite_sink import SqliteSink as OwnSink\n")
    assert isinstance(load_sink("own_sink:OwnSink", SETTINGS, {"path": ""}), SqliteSink)
    assert os.environ["PYTHONPATH"] == os.pathsep.join((str(directory), "/elsewhere"))
    found = [sys.executable, "-c", "import importlib.util as util; print(util.find_spec('own_sink').origin)"]
    assert subprocess.check_output(found, cwd="/", text=True).strip() == str(directory / "own_sink.py")


DECLARING = """
from pgsluice import Kind, Option, read, settings

@settings
class Options:
    path: str = read(Option("path", Kind.TEXT, "File that holds the rows", "rows.db", required=True))
    most_rows: int = read(Option("most-rows", Kind.NUMBER, "Rows of one statement", "500", "100", minimum=1, maximum=1000))

class OwnSink:
    options = Options
    def __init__(self, worker, options):
        raise ValueError(f"{worker.group} {options.path} {options.most_rows!r}")

class OlderSink:
    def __init__(self, worker, options):
        options.get("note")
        options["path"]

class Plain:
    def __init__(self):
        pass
"""


@pytest.fixture
def declaring(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "declaring.py").write_text(DECLARING)
    monkeypatch.delitem(sys.modules, "declaring", raising=False)


@pytest.mark.usefixtures("declaring")
def test_a_class_is_told_the_options_that_it_declares_in_their_types() -> None:
    with pytest.raises(ValueError, match=r"^orders here\.db 7$"):
        load_sink("declaring:OwnSink", SETTINGS, {"path": "here.db", "most-rows": "7"})


@pytest.mark.usefixtures("declaring")
@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("OwnSink", {}, "sink declaring:OwnSink: path is not set: .*rows.db.*--sink-option NAME=VALUE"),
        ("OwnSink", {"path": "a", "pth": "b"}, "no option 'pth': did you mean 'path'.*--sink-option"),
        ("OwnSink", {"path": "a", "most-rows": "many"}, "most-rows 'many' .*is not a whole number"),
        ("OwnSink", {"path": "a", "most-rows": "1001"}, "most-rows .*1001"),
        ("OlderSink", {}, "sink declaring:OlderSink needs the option 'path', which was not given: give --sink-option"),
        ("Plain", {}, "sink declaring:Plain takes other arguments than the 2 it is given"),
    ],
)
def test_an_option_that_is_missing_unknown_or_malformed_is_a_usage_error(name: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_sink(f"declaring:{name}", SETTINGS, options)


@pytest.mark.usefixtures("declaring")
def test_help_lists_the_options_that_a_class_declares() -> None:
    shown = CliRunner().invoke(program, ["worker", "declaring:OwnSink", "--help"]).output
    assert re.search(r"path=TEXT +File that holds the rows \[required\]", shown)
    assert re.search(r"most-rows=NUMBER +Rows of one statement \[default 100\]", shown)
    assert "Options of the sink" not in CliRunner().invoke(program, ["worker", "declaring:OlderSink", "--help"]).output


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.to.be:Found", "no module 'nowhere'.*PYTHONPATH"),
        ("importing_sink:Sink", "no module 'a_missing_library'"),
        ("tests.worker.sinks.sqlite_sink:Sqlight", "'Sqlight' is no class of .*sqlite_sink.py"),
        ("tests.worker.sinks.sqlite_sink:TABLES", "'TABLES' is no class"),
        ("half_sink:Sink", "lacks commit, finish_copy, close, delivery.*sink.py"),
    ],
)
def test_a_name_that_makes_no_sink_is_a_usage_error(directory: Path, name: str, said: str) -> None:
    (directory / "importing_sink.py").write_text("import a_missing_library\n")
    (directory / "half_sink.py").write_text(
        "class Sink:\n    def __init__(self, settings, options): ...\n    def open(self): ...\n    def writer(self): ...\n"
    )
    with pytest.raises(UsageError, match=said):
        load_sink(name, SETTINGS, {})


@pytest.mark.parametrize("name", ["postgres", "module:", ":Class", "module:Class:more", "module:Class()", "a b:Class", ".a:B"])
def test_what_has_not_the_form_of_a_class_is_no_sink_class(name: str) -> None:
    assert not is_sink_class(name)


def test_a_worker_without_a_name_is_called_like_its_class() -> None:
    assert is_sink_class("package.module:_OwnSink")
    assert default_name("package.module:_OwnSink") == "ownsink"
