"""What a stranger's sink and rule are tried with: the pages' files pass, and a sink that breaks its promise does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pgsluice.testing import Promise, SinkContract
from tests.page_files import write_files_of_page
from tests.source_code import REPOSITORY


def tried(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest in that directory, which knows nothing of this repository's own settings."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("written", "wrong", "test"),
    [
        ("with self._database:", "if True:", "test_open_returns_what_the_last_commit_returned"),
        ("if self._stored() != applied:", "if False:", "test_of_two_processes_only_one_moves_the_position"),
        ("for table in change.tables:", "for table in ():", "test_rows_that_were_copied_before_their_table_was_begun_anew"),
    ],
)
def test_a_sink_that_breaks_a_promise_fails_the_contract(tmp_path: Path, written: str, wrong: str, test: str) -> None:
    write_files_of_page("how-to/own-sink.md", tmp_path)
    sink = tmp_path / "upsert_sink.py"
    assert written in sink.read_text()
    sink.write_text(sink.read_text().replace(written, wrong))
    done = tried(tmp_path, "-k", test)
    assert done.returncode == 1, done.stdout
    assert f"FAILED test_upsert_sink.py::TestUpsertSink::{test}" in done.stdout


TABLES_OF_ONE_NAME = """
import sqlite3
from contextlib import closing

from pgsluice.testing import apply, insert, message, table, worker_settings
from upsert_sink import Options, UpsertSink

def test_tables_of_one_name(tmp_path):
    sink = UpsertSink(worker_settings(), Options(str(tmp_path / "rows.db")))
    sink.open()
    own, others, position = (table(name, "id bigint") for name in ("a.t", "b.t", "public.position"))
    apply(sink, [[message(1, insert(own, b"1"), insert(others, b"1"), insert(others, b"2"), insert(position, b"3"))]])
    sink.close()
    with closing(sqlite3.connect(tmp_path / "rows.db")) as database:
        counts = [database.execute(f'SELECT count(*) FROM "{name}"').fetchone() for name in ("a.t", "b.t", "public.position")]
    assert counts == [(1,), (2,), (1,)]
"""


def test_the_sink_of_the_page_keeps_apart_tables_of_one_name_and_its_own(tmp_path: Path) -> None:
    write_files_of_page("how-to/own-sink.md", tmp_path)
    (tmp_path / "test_tables.py").write_text(TABLES_OF_ONE_NAME)
    done = tried(tmp_path, "test_tables.py")
    assert done.returncode == 0, done.stdout


def test_a_contract_without_its_fixture_names_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_bare.py").write_text(
        "from pgsluice.testing import SinkContract, TransformationContract\n"
        "class TestSink(SinkContract): pass\n"
        "class TestRule(TransformationContract): pass\n"
    )
    done = tried(tmp_path)
    assert done.returncode == 1, done.stdout
    assert "fixture 'destination' not found" in done.stdout
    assert "fixture 'rule' not found" in done.stdout


class AtLeastOnce(SinkContract):
    promises = frozenset({Promise.COPIED_ROWS})


class Renumbering(AtLeastOnce):
    promises = AtLeastOnce.promises | {Promise.RENUMBER}


def test_a_sink_is_asked_for_what_it_promises_alone() -> None:
    for contract, is_asked in ((AtLeastOnce, False), (Renumbering, True)):
        asked = contract.test_a_sink_goes_on_at_another_sequence_when_the_stream_counts_anew
        assert (asked is not None) is is_asked
        assert contract.test_rejected_changes_leave_the_position is None
        assert contract.test_changes_go_on_after_the_copy is not None


def test_a_sink_with_an_ability_that_it_does_not_promise_fails_the_contract(tmp_path: Path) -> None:
    """It would not be tried."""
    write_files_of_page("how-to/own-sink.md", tmp_path)
    test = tmp_path / "test_upsert_sink.py"
    test.write_text(test.read_text().replace(", Promise.CATCH_UP", ""))
    done = tried(tmp_path)
    assert done.returncode == 1, done.stdout
    assert "Promise.CATCH_UP and keeps_catch_up differ" in done.stdout
    assert "assert True is (" in done.stdout, "pytest explains the asserts of the contract"
    assert "1 failed" in done.stdout
