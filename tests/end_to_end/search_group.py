"""A group with a search worker, and what its indexes ought to hold: the source's rows, with versions that the streams tell."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream
from pgsluice.shared.broker.streams import ChangeStream
from pgsluice.shared.broker.worker_records import read_reports
from pgsluice.shared.config.settings import NatsSettings
from pgsluice.shared.pgoutput.messages import Delete, Truncate
from pgsluice.shared.wire.dead_letter import DeadLetter
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import parse_lsn
from tests.end_to_end.group_under_test import configuration
from tests.group_reader import GroupReader, text
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.opensearch import SearchServer, SearchServerError
from tests.waiting import DeadlineError, wait_until

DEADLINE_S = 600.0
LOOK_INTERVAL_S = 2.0
SHOWN = 8
"""Of each kind of difference."""

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

    def arrive(self, server: SearchServer, worker: PgsluiceProcess) -> None:
        """Returns when nothing differs. To be called when nothing is written. Raises DeadlineError, with what differs, the dead
        letters and the end of the worker's log."""

        def is_equal() -> bool:
            return asyncio.run(self._is_applied()) and self.differences(server) == []

        try:
            wait_until(is_equal, deadline_s=DEADLINE_S, what="the source in the index", interval_s=LOOK_INTERVAL_S)
        except DeadlineError as error:
            letters = [f"{each.position} {each.reason}" for each in asyncio.run(self._letters())]
            said = [*self.differences(server), f"{len(letters)} dead letters", *letters[:SHOWN], *worker.log().splitlines()[-30:]]
            raise DeadlineError("\n".join([str(error), *said])) from None

    def count(self, server: SearchServer) -> int:
        """How many a search finds; 0 while the index is made."""
        try:
            return server.count(self.alias)
        except SearchServerError:
            return 0

    def differences(self, server: SearchServer) -> list[str]:
        """What is not as it ought to be: how much, and the first few by ids, versions and fields, without values."""
        return _differences(self.expected(), server.documents(self.alias))

    async def _is_applied(self) -> bool:
        """All that the stream of changes holds. Before that, a look at all documents would only keep the server from its work."""
        names = GroupNames(self.group)
        async with connected(self.nats, "progress") as client:
            state, reports = await ChangeStream(client, names).state(), await read_reports(StateBucket(client, names))
        assert state is not None
        return bool(reports) and all(report.sequence >= state.last_sequence for report in reports.values())

    async def _letters(self) -> list[DeadLetter]:
        async with connected(self.nats, "letters") as client:
            return [each.letter for each in await DeadLetterStream(client, GroupNames(self.group)).letters()]

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


def _differences(expected: Documents, found: Documents) -> list[str]:
    missing, extra = expected.keys() - found.keys(), found.keys() - expected.keys()
    wrong = [key for key in expected.keys() & found.keys() if expected[key] != found[key]]
    if not missing and not extra and not wrong:
        return []
    return [
        f"{len(expected)} rows, {len(found)} documents: {len(missing)} missing, {len(extra)} too many, {len(wrong)} differ",
        *(f"{key} of version {expected[key][0]} is missing" for key in sorted(missing)[:SHOWN]),
        *(f"{key} of version {found[key][0]} is too much" for key in sorted(extra)[:SHOWN]),
        *(f"{key} {_difference(expected[key], found[key])}" for key in sorted(wrong)[:SHOWN]),
    ]


def _difference(expected: tuple[int, dict[str, Any]], found: tuple[int, dict[str, Any]]) -> str:
    names = sorted({*expected[1], *found[1]})
    fields = [name for name in names if expected[1].get(name, ...) != found[1].get(name, ...)]
    return f"of version {found[0]} is to be of version {expected[0]}; other values in {fields}"


def _document(row: object) -> dict[str, Any]:
    assert isinstance(row, Mapping)
    return dict(row)
