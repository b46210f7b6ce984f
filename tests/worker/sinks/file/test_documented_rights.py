"""An ordinary user with the documented rights on the directory, and no others, is enough for a worker's whole life."""

from __future__ import annotations

import os
import pwd
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pgsluice.shared.errors import TerminalError
from pgsluice.shared.preflight.finding import Severity
from pgsluice.shared.wire.definition import TableDefined
from pgsluice.shared.wire.published_definition import PublishedDefinition
from pgsluice.testing.batch import apply
from pgsluice.testing.changes_builder import message
from pgsluice.testing.tried_batches import batch, events, position
from pgsluice.worker.sinks.file.findings import find
from pgsluice.worker.sinks.incoming import NOTHING_KNOWN
from tests.servers.child import PrivateDirectory, unprivileged_user
from tests.worker.definitions.definitions_of import ID, NOTE, TABLE, column, with_columns
from tests.worker.sinks.file.output import STORED_NOTE, WORKER, file_settings, lines, new_sink, position_of

ADDED = PublishedDefinition(TableDefined("ALTER TABLE", with_columns(ID, NOTE, column(3, "more"))), TABLE)


@pytest.fixture
def owned() -> Iterator[Path]:
    """A directory of an ordinary user: of nobody where we are root, else of ourselves."""
    directory = PrivateDirectory("files", unprivileged_user())
    yield directory.path
    directory.path.chmod(0o700)
    directory.remove()


def as_ordinary_user(action: Callable[[], None]) -> None:
    """Runs ``action`` in a child, which ends as one that is killed: nothing is closed. What it raises fails the caller."""
    user = unprivileged_user()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _become(user)
            action()
            code = 0
        except BaseException:  # noqa: BLE001  whatever it is must not run the parent's tests on
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the action failed in the child, see its output"


def _become(user: pwd.struct_passwd | None) -> None:
    if user is not None:
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)


def begin(directory: Path) -> None:
    """Begins a file, and finishes others."""
    sink = new_sink(directory, rotate_bytes=4 * len(STORED_NOTE))
    assert sink.open().sequence == 0
    apply(sink, batch([1]))
    apply(sink, batch([2, 3], [4, 5], note=STORED_NOTE))


def go_on(directory: Path) -> None:
    sink = new_sink(directory, rotate_bytes=4 * len(STORED_NOTE))
    assert sink.open() == position(5)
    apply(sink, [[message(6, ADDED)]])
    apply(sink, batch([7]))
    sink.close()


def make_parquet(directory: Path) -> None:
    sink = new_sink(directory, file_format="parquet")
    sink.open()
    apply(sink, batch([1]))
    sink.close()


def test_a_worker_writes_is_killed_and_goes_on_in_a_directory_of_its_user(owned: Path, tmp_path: Path) -> None:
    for live in (begin, go_on):
        live(tmp_path / "rehearsal")  # so that all is imported, wherever it may not be read
        as_ordinary_user(lambda live=live: live(owned / "out"))  # type: ignore[misc]
    told = lines(owned / "out")
    assert [line["after"]["id"] for line in told if line["operation"] == "INSERT"] == [*events(5), 14, 15]
    assert [line["operation"] for line in told][10] == "DDL"
    assert position_of(owned / "out")["sequence"] == 7
    user = unprivileged_user()
    assert {path.stat().st_uid for path in owned.rglob("*")} == {os.geteuid() if user is None else user.pw_uid}
    assert {path.stat().st_mode & 0o077 for path in owned.rglob("*")} == {0}


def test_a_worker_makes_parquet_in_a_directory_of_its_user(owned: Path, tmp_path: Path) -> None:
    make_parquet(tmp_path / "rehearsal")
    as_ordinary_user(lambda: make_parquet(owned))
    assert len(list(owned.glob("*/*.parquet"))) == 1


@pytest.mark.parametrize(("mode", "lacking"), [(0o300, "read"), (0o500, "write"), (0o600, "enter")])
def test_each_right_that_is_missing_is_found_and_stops_the_start(owned: Path, mode: int, lacking: str) -> None:
    owned.chmod(mode)

    def look() -> None:
        [found] = find(WORKER, file_settings(owned), NOTHING_KNOWN)
        assert (found.check, found.severity) == ("file-directory", Severity.ERROR)
        assert f"may not {lacking} {owned}" in found.fact
        assert "file-output-dir" in found.remedy
        with pytest.raises(TerminalError, match="let the worker's user"):
            new_sink(owned).open()

    as_ordinary_user(look)


def test_a_directory_above_that_may_not_be_entered_is_named(owned: Path) -> None:
    (owned / "above" / "out").mkdir(parents=True)
    (owned / "above").chmod(0o000)
    user = unprivileged_user()
    if user is not None:
        os.chown(owned / "above" / "out", user.pw_uid, user.pw_gid)

    def look() -> None:
        [found] = find(WORKER, file_settings(owned / "above" / "out"), NOTHING_KNOWN)
        assert (found.check, found.severity) == ("file-directory", Severity.ERROR)
        assert f"may not enter {owned / 'above'}" in found.fact

    as_ordinary_user(look)
    (owned / "above").chmod(0o700)
