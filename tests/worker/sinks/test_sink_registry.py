"""The registry of sinks: a folder and a line are all that a sink needs."""

from __future__ import annotations

import importlib
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from pgsluice.worker.sinks.sink_registry import SINKS, find_sink
from tests.end_to_end.group_under_test import configuration
from tests.end_to_end.once import APPLY_DEADLINE_S, replicate, succeed
from tests.misses import no_misses
from tests.servers import Database, NatsServer
from tests.worker.sinks.contract import SinkContract

REPOSITORY = Path(__file__).parents[3]

OPTIONS = """
from pgsluice.shared.config.declaration import read, settings
from pgsluice.shared.config.kinds import Kind
from pgsluice.shared.config.option import Option
from pgsluice.worker.sinks.sink_registry import SinkKind

@settings
class LedgerSinkSettings:
    path: str = read(Option("ledger-path", Kind.TEXT, "File of the ledger", "/tmp/ledger.db", required=True))
    note: str = read(Option("ledger-note", Kind.TEXT, "Note beside each line", "mine", "none"))

SINK = SinkKind(LedgerSinkSettings, "ledger.sink:LedgerSink", "Write changes to a ledger.", "Write changes to a ledger, once.")
"""
SINK = """
from tests.worker.sinks.sqlite_sink import LineWriter, SqliteSink

class NotingWriter(LineWriter):
    def __init__(self, note):
        self.note = note

    def write(self, partition, messages):
        for body in super().write(partition, messages):
            yield body.replace(b'"position":', b'"note": "' + self.note.encode() + b'", "position":')

class LedgerSink(SqliteSink):
    def __init__(self, worker, settings):
        super().__init__(worker, {"path": settings.path})
        self._note = settings.note

    def writer(self):
        return NotingWriter(self._note)
"""
PROGRAM = """
from pgsluice.worker.sinks.sink_registry import SINKS
SINKS["ledger"] = "ledger"
from pgsluice.console.program import main
main()
"""
"""The program with one more line in the registry."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Holds the folder of a sink called ledger."""
    folder = tmp_path / "ledger"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "options.py").write_text(OPTIONS)
    (folder / "sink.py").write_text(SINK)
    return tmp_path


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{directory}"}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=APPLY_DEADLINE_S)


def test_help_knows_a_sink_and_its_options(directory: Path) -> None:
    listed = run(directory, "worker", "--help").stdout
    assert "ledger         Write changes to a ledger." in listed
    page = run(directory, "worker", "ledger", "--help").stdout
    assert "Write changes to a ledger, once." in page
    assert "--ledger-path TEXT" in page
    assert "File of the ledger [required]" in page
    assert "[default none]" in run(directory, "worker", "ledger", "--help-all").stdout


def test_a_missing_option_of_a_sink_is_named_like_any_other(directory: Path) -> None:
    ended = run(directory, "worker", "ledger", "--group=g", "--nats-url=nats://localhost")
    assert ended.returncode == 2
    assert "ledger-path is not set: give --ledger-path, PGSLUICE_LEDGER_PATH or 'ledger-path:'" in ended.stderr


@pytest.mark.long
def test_a_registered_sink_gets_every_change(
    source_database: Database, nats_server: NatsServer, group: str, directory: Path
) -> None:
    """As the sinks of ``SINKS`` and a class of others do in ``tests/end_to_end``, by the same lines."""
    path, config = directory / "changes.db", directory / "pgsluice.yaml"
    keys = configuration(group, source_database, None, nats_server)
    source_database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    succeed(replicate(keys))
    source_database.execute("INSERT INTO a SELECT generate_series(1, 3)")
    succeed(replicate(keys))
    config.write_text(yaml.safe_dump(keys | {"ledger-path": str(path), "ledger-note": "mine"}))
    ended = run(directory, "worker", "ledger", "--until-sequence", "current", "--config", str(config))
    assert ended.returncode == 0, ended.stderr
    with closing(sqlite3.connect(path)) as database:
        lines = [json.loads(line) for (line,) in database.execute("SELECT line FROM lines ORDER BY rowid")]
    assert [(line["after"]["id"], line["note"]) for line in lines] == [(1, "mine"), (2, "mine"), (3, "mine")]


def test_a_registered_sink_is_a_folder_of_its_name_and_can_be_imported() -> None:
    misplaced = (kind for kind, module in SINKS.items() if module != f"pgsluice.worker.sinks.{kind}")
    no_misses(misplaced, "registered in SINKS of worker/sinks/sink_registry.py with another folder than worker/sinks/KIND")
    for kind, folder in SINKS.items():
        module, _, name = find_sink(kind).sink.partition(":")
        assert module == f"{folder}.sink"
        assert callable(getattr(importlib.import_module(module), name).commit)


def test_every_registered_sink_keeps_the_contract() -> None:
    """The contract's own tests run in the classes that are looked for here."""
    here = Path(__file__).parent
    paths = [path.relative_to(REPOSITORY).with_suffix("") for path in here.rglob("test_contract.py")]
    modules = [importlib.import_module(".".join(path.parts)) for path in paths]
    classes = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    kept = {each.kind for each in classes if issubclass(each, SinkContract) and hasattr(each, "kind")}
    no_misses(SINKS.keys() - kept, "no class of a test_contract.py inherits SinkContract for it: write one")
