"""Loading a sink by the name of its class."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.sink import NOTHING_APPLIED
from pgsluice.worker.sinks.sink_registry import default_name, is_sink_class, load_sink
from tests.changes_builder import insert, message, table
from tests.worker.sinks.batch import apply
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
