"""The role that the page names is exactly enough for a worker's whole life: each of its rights that is taken away is missed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pgsluice.shared.broker.ledger import Phase
from pgsluice.shared.errors import MissingPrivilegeError
from pgsluice.shared.preflight.finding import Severity
from pgsluice.shared.wire.table import UNCHANGED
from pgsluice.testing.batch import apply_copied
from pgsluice.testing.changes_builder import copied, insert, message, restart, truncate, update
from pgsluice.worker.sinks.incoming import Incoming
from pgsluice.worker.sinks.search.findings import find
from pgsluice.worker.sinks.search.options import SearchSinkSettings
from pgsluice.worker.sinks.search.sink import SearchSink
from tests.end_to_end.search_group import DEADLINE_S, Indexed, running, search_configuration
from tests.end_to_end.test_search_reindex import index_of
from tests.servers import Database, NatsServer, PgsluiceProcess
from tests.servers.elasticsearch import PASSWORD, GuardedElasticsearch
from tests.state_bucket import ensure_bucket
from tests.waiting import wait_until
from tests.worker.sinks.search.indexed_table import IndexedTable
from tests.worker.sinks.search.sinks import search_settings
from tests.worker.sinks.search.test_altered_indexes import ITEMS, LATER, RENAMED, ROWS, SNAPSHOT, altered, row, written
from tests.worker.sinks.settings import worker_settings

pytestmark = [pytest.mark.elasticsearch, pytest.mark.timeout(900)]

PAGE = Path(__file__).resolve().parents[4] / "docs" / "how-to" / "sink-search.md"
SECOND = "0000000000001B58-b"
"""A snapshot at 7000."""
HISTORY = "pgsluice-schema"


def documented() -> dict[str, Any]:
    """The role for Elasticsearch, for names that tests' groups have."""
    found = re.search(r"Elasticsearch:\n\n```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    role: dict[str, Any] = json.loads(found[1].replace("shop_*", "test-*"))
    return role


def without(privilege: str) -> dict[str, Any]:
    role = documented()
    for given in (role["cluster"], role["indices"][0]["privileges"]):
        given[:] = [each for each in given if each != privilege]
    return role


DENIED = {
    "cluster:monitor/main": "cluster:monitor/main",
    "manage": "indices:admin/",
    "read": "indices:data/read/",
    "write": "indices:data/write/",
}
"""Privilege of the page → the beginning of the action that is missed without it."""


def lacking(privilege: str) -> str:
    """The user without it."""
    return f"without-{privilege.rpartition('/')[2]}"


@pytest.fixture(scope="module")
def guarded() -> Iterator[GuardedElasticsearch]:
    roles = {"whole": documented(), "stranger": {"cluster": [], "indices": []}}
    with GuardedElasticsearch(roles | {lacking(each): without(each) for each in DENIED}) as server:
        yield server


@pytest.fixture
def place(guarded: GuardedElasticsearch, nats_server: NatsServer, group: str) -> Iterator[IndexedTable]:
    ensure_bucket(nats_server.settings(), group)
    place = IndexedTable(nats_server.settings(), group, guarded, ROWS, {SNAPSHOT: 1000, SECOND: 7000})
    yield place
    for sink in place.sinks:
        sink.close()
    guarded.clear()


def as_user(place: IndexedTable, user: str, **changed: Any) -> SearchSinkSettings:
    settings = search_settings(place.server.url, place.group, schema_index=HISTORY, keep_old_s=0.0, **changed)
    return replace(settings, user=user, password=PASSWORD)


def opened(place: IndexedTable, user: str) -> SearchSink:
    """Of a process that has just started; those before it are as killed."""
    sink = SearchSink(worker_settings(place.group, place.nats), as_user(place, user))
    place.sinks.append(sink)
    sink.open()
    return sink


def live(place: IndexedTable, user: str) -> None:
    """A copy, changes of which one does not send a large value, a kill, a definition, a copy anew, a truncation."""
    sink = opened(place, user)
    apply_copied(sink, [[copied(1, ROWS, row(1, b"a"), row(2, b"a"), snapshot=SNAPSHOT)]])
    place.note(Phase.FINISHED_COPY, SNAPSHOT, 1)
    sink.finish_copy()
    written(sink, [[message(2, update(ROWS, b"2", b"b", b"20", UNCHANGED)), message(3, insert(ROWS, *row(3, b"c")))]])
    after = opened(place, user)
    written(after, [[message(4, altered(ITEMS, RENAMED), insert(LATER, *row(4, b"d")))]])
    place.note(Phase.DATA_SYNC, SECOND)
    apply_copied(after, [[restart(2, LATER, snapshot=SECOND)]])
    apply_copied(after, [[copied(3, LATER, *(row(number, b"e") for number in (1, 2, 3, 4)), snapshot=SECOND)]])
    place.note(Phase.FINISHED_COPY, SECOND, 3)
    after.finish_copy()
    written(after, [[message(8, truncate(LATER), insert(LATER, *row(5, b"f")))]])
    after.close()


def test_a_worker_lives_with_the_role_that_the_page_names(place: IndexedTable, group: str) -> None:
    live(place, "whole")
    assert {key: fields["title"] for key, (_, fields) in place.documents().items()} == {"5": "f"}
    assert len(place.server.documents(HISTORY)) == 1
    found = find(worker_settings(group), as_user(place, "whole"), Incoming(tables=[LATER]))
    assert [each.check for each in found if each.severity is Severity.ERROR] == []


@pytest.mark.timeout(1200)
def test_a_group_is_killed_altered_indexed_anew_and_dropped_with_that_role(
    source_database: Database, nats_server: NatsServer, guarded: GuardedElasticsearch, group: str
) -> None:
    source_database.execute("CREATE TABLE items (id bigint PRIMARY KEY, note text); INSERT INTO items VALUES (1, 'copied')")
    items = Indexed(source_database, nats_server.settings(), group, "items")
    more = {"search-user": "whole", "search-password": PASSWORD, "search-schema-index": HISTORY, "track-ddl": True}
    keys = search_configuration(group, source_database, nats_server, guarded.url, **more)
    with running(keys) as worker:
        items.arrive(guarded, worker)
        source_database.execute("INSERT INTO items VALUES (2, 'added')")
        worker.kill()
        source_database.execute("ALTER TABLE items RENAME note TO title; UPDATE items SET title = 'other' WHERE id = 1")
        worker.start()
        items.arrive(guarded, worker)
        with PgsluiceProcess("search", "reindex", "items", "--wait", "200", config=keys) as command:
            assert command.wait() == 0, command.log()
        wait_until(lambda: index_of(guarded, items) == f"{items.alias}-000003", deadline_s=DEADLINE_S, what="the new index")
        items.arrive(guarded, worker)
        with PgsluiceProcess("check", "--sink", "search", config=keys) as command:
            assert command.wait() == 0, command.stdout()
    with PgsluiceProcess("drop", "--yes", config=keys) as command:
        assert command.wait() == 0, command.log()
    guarded.clear()


@pytest.mark.parametrize("privilege", list(DENIED))
def test_each_right_of_the_page_is_needed_and_named_where_it_is_missing(place: IndexedTable, privilege: str) -> None:
    with pytest.raises(MissingPrivilegeError, match=DENIED[privilege]) as refusal:
        live(place, lacking(privilege))
    assert f"manage, read and write on {place.group}_*" in refusal.value.remedy
    assert HISTORY in refusal.value.remedy


def test_a_check_says_what_a_user_without_rights_is_to_be_given(place: IndexedTable, group: str) -> None:
    [found] = [
        each
        for each in find(worker_settings(group), as_user(place, "stranger"), Incoming(tables=[ROWS]))
        if each.severity is Severity.ERROR
    ]
    assert "status 403" in found.fact
    assert "manage, read and write" in found.remedy


def test_a_wrong_password_is_told_from_a_missing_right(place: IndexedTable) -> None:
    wrong = replace(as_user(place, "whole"), password="other")
    with pytest.raises(MissingPrivilegeError, match="check search-user and search-password"):
        SearchSink(worker_settings(place.group, place.nats), wrong).open()
