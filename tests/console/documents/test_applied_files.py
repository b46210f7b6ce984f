"""``pgsluice plan``, ``apply`` and ``export`` against a real broker."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from pgsluice.console.documents.control_bucket import ControlBucket
from pgsluice.console.documents.document_plan import apply_documents
from pgsluice.console.documents.document_store import DocumentStore, StoredDocument
from pgsluice.console.documents.group_document import GroupDocument
from pgsluice.console.program import run
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.errors import TransientError
from tests.servers import NatsServer


class Files:
    """Documents in files, and the commands about them, in groups of this test alone."""

    def __init__(self, nats: NatsServer, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = directory / "documents.yaml"
        self.groups = [f"d-{uuid.uuid4().hex[:8]}" for _ in range(2)]
        self._flags = ["--nats-url", nats.url]
        self._capsys = capsys

    def write(self, *lines: str) -> None:
        """A document for each."""
        documents = [f"group: {group}\n{line}\n" for group, line in zip(self.groups, lines, strict=False)]
        self.path.write_text("---\n".join(documents))

    def run(self, command: str, *arguments: str) -> tuple[int, str]:
        files = [] if command == "export" else ["-f", str(self.path)]
        code = run([command, *self._flags, *files, *arguments])
        captured = self._capsys.readouterr()
        return code, captured.out + captured.err


@pytest.fixture
def files(nats_server: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Files:
    return Files(nats_server, tmp_path, capsys)


def test_what_is_planned_is_applied_and_exported(files: Files) -> None:
    first, second = files.groups
    files.write("tables: [a]", "publish: [insert]")
    assert files.run("plan") == (
        1,
        f'{first}: create\n  + group: "{first}"\n  + tables: ["a"]\n{second}: create\n'
        f'  + group: "{second}"\n  + publish: ["insert"]\n',
    )
    assert files.run("apply", "--yes") == (0, f"{first}: created\n{second}: created\n")
    assert files.run("plan") == (0, f"{first}: none\n{second}: none\n")
    files.write("tables: [a, b]", "publish: [insert]")
    assert files.run("plan")[1] == f'{first}: change\n  ~ tables: ["a"] -> ["a","b"]\n{second}: none\n'
    assert files.run("apply", "--yes") == (0, f"{first}: changed\n{second}: as it was\n")
    code, exported = files.run("export", first)
    assert (code, exported) == (0, f'group: "{first}"\ntables: ["a","b"]\n')
    files.path.write_text(exported)
    assert files.run("plan")[0] == 0


def test_nothing_is_applied_without_being_asked_for(files: Files) -> None:
    files.write("tables: [a]")
    code, said = files.run("apply")
    assert (code, "give --yes" in said) == (2, True)
    assert "create" in files.run("plan")[1]


def test_what_cannot_be_applied_is_said(files: Files) -> None:
    files.write("tabels: [a]")
    assert files.run("plan")[0] == 2
    files.path.write_text(f"group: {files.groups[0]}\n---\ngroup: {files.groups[0]}\n")
    assert "two documents" in files.run("apply", "--yes")[1]
    assert "has no document" in files.run("export", "nobody")[1]
    assert files.run("plan", "-f", "/nowhere.yaml")[0] == 2


def test_a_user_without_a_name_applies_by_its_number(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that is given any user."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 1_234_567)
    files.write("tables: [a]")
    assert files.run("apply", "--yes") == (0, f"{files.groups[0]}: created\n")


async def test_who_was_overtaken_is_told_and_overwrites_nothing(nats_server: NatsServer) -> None:
    group = f"d-{uuid.uuid4().hex[:8]}"

    class Overtaken(DocumentStore[GroupDocument]):
        """Somebody else writes as soon as it was looked at."""

        async def find(self, name: str) -> StoredDocument[GroupDocument] | None:
            found = await super().find(name)
            await DocumentStore(control, GroupDocument).put(theirs, "somebody else", None)
            return found

    async with connected(nats_server.settings(), "test") as client:
        control = ControlBucket(client)
        await control.make(1)
        ours, theirs = (GroupDocument(group, {"group": group, "tables": [table]}) for table in ("ours", "theirs"))
        with pytest.raises(TransientError, match="another client has changed the configuration"):
            await apply_documents(Overtaken(control, GroupDocument), [ours], "we")
        stored = await DocumentStore(control, GroupDocument).find(group)
        assert stored is not None
        assert (stored.document.applied_by, stored.document.raw("tables")) == ("somebody else", ("theirs",))
