"""A group with a search worker, and what its indexes ought to hold: the source's rows, with versions that the streams tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.pgoutput.messages import Delete, Truncate
from pgsluice.shared.wire.position import parse_lsn
from tests.end_to_end.group_under_test import configuration
from tests.group_reader import GroupReader, text
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.opensearch import SearchServer, SearchServerError
from tests.waiting import wait_until

DEADLINE_S = 600.0

Documents = dict[str, tuple[int, dict[str, Any]]]
"""Version and fields, by id."""


def search_configuration(group: str, source: Database, nats: NatsServer, url: str, **more: Any) -> dict[str, Any]:
    keys = {"search-url": [url], "search-allow-hosts": ["127.0.0.1"], "search-index": f"{group}_{{table}}"}
    return configuration(group, source, None, nats, **keys | {"copy-and-stream": True} | more)


@contextmanager
def running(configuration: dict[str, Any]) -> Iterator[PgsluiceProcess]:
    """A replicator that replicates, and a search worker, whose end is to be a clean one."""
    with (
        PgsluiceProcess("replicator", config=configuration) as replicator,
        PgsluiceProcess("worker", "search", config=configuration) as worker,
    ):
        replicator.wait_for_log("replicating")
        yield worker
        worker.terminate()
        assert worker.wait() == 0, worker.log()


@dataclass(frozen=True)
class Indexed:
    """A table whose key is its column ``id``."""

    source: Database
    nats: NatsSettings
    group: str
    table: str

    @property
    def alias(self) -> str:
        return f"{self.group}_{self.table}"

    def expected(self) -> Documents:
        """To be asked when nothing is written."""
        versions = self._versions()
        rows = self.source.execute(f"SELECT id::text, to_jsonb(t) FROM {self.table} t")
        return {str(key): (versions[str(key)], _document(row)) for key, row in rows}

    def arrive(self, server: SearchServer) -> None:
        """Returns when nothing differs. To be called when nothing is written."""
        is_equal = lambda: self.differences(server) == []  # noqa: E731
        wait_until(is_equal, deadline_s=DEADLINE_S, what="the source in the index", interval_s=3.0)

    def count(self, server: SearchServer) -> int:
        """How many a search finds; 0 while the index is made."""
        try:
            return server.count(self.alias)
        except SearchServerError:
            return 0

    def differences(self, server: SearchServer) -> list[str]:
        """What is not as it ought to be, the first few."""
        expected, found = self.expected(), server.documents(self.alias)
        wrong = [
            f"{key}: {found.get(key)} is to be {document}" for key, document in expected.items() if found.get(key) != document
        ]
        return [*wrong[:5], *(f"{key} is too much" for key in list(found.keys() - expected.keys())[:5])]

    def _versions(self) -> dict[str, int]:
        reader = GroupReader(self.nats, self.group)
        record = reader.record(self.table)
        copied = parse_lsn(record.lsn)
        versions: dict[str, int] = _Copied(copied - 1)
        for lsn, change in reader.changes[record.oid]:
            if lsn >= copied and not isinstance(change, Delete | Truncate):
                versions[text(change.new[0]).decode()] = lsn
        return versions


class _Copied(dict[str, int]):
    """Rows that nobody changed are the copy's."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self._version = version

    def __missing__(self, key: str) -> int:
        return self._version


def _document(row: object) -> dict[str, Any]:
    assert isinstance(row, Mapping)
    return dict(row)
