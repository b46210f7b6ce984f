"""Poolers in front of the target: one that shares sessions is refused before anything is set in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

from pgsluice.shared.errors import UsageError
from pgsluice.shared.preflight.finding import Severity
from pgsluice.testing.changes_builder import insert, table
from pgsluice.worker.sinks.incoming import NOTHING_KNOWN
from pgsluice.worker.sinks.postgres import findings
from tests.servers.child import HOST
from tests.servers.pooler import Pooler
from tests.worker.sinks.postgres.conftest import Target
from tests.worker.sinks.settings import worker_settings

T = table("public.t", "id bigint", "note text")

OF_A_SESSION = (
    "SELECT current_setting('search_path'), current_setting('default_transaction_read_only'),"
    " current_setting('session_replication_role'), current_setting('statement_timeout')"
)


@contextmanager
def behind(target: Target, *, sessions: int, by_transaction: bool) -> Iterator[Pooler]:
    with Pooler(target.database.settings, sessions=sessions, by_transaction=by_transaction) as pooler:
        address = replace(target.settings.target, host=HOST, port=pooler.port)
        target.settings = replace(target.settings, target=address, disable_foreign_keys=True)
        yield pooler


def met_by_others(target: Target, pooler: Pooler) -> list[tuple[str, ...]]:
    """What the server's sessions, which are two, have set when an application gets them."""

    def client() -> psycopg.Connection[tuple[str, ...]]:
        return psycopg.connect(host=HOST, port=pooler.port, user=target.database.settings.user, dbname=target.database.dbname)

    with client() as one, client() as other:
        return [connection.execute(OF_A_SESSION).fetchall()[0] for connection in (one, other)]


def test_a_pooler_of_transactions_is_refused_and_nothing_is_left_in_its_sessions(target: Target) -> None:
    untouched = [target.database.execute(OF_A_SESSION)[0]] * 2
    with behind(target, sessions=2, by_transaction=True) as pooler:
        assert met_by_others(target, pooler) == untouched
        found = findings.find(worker_settings("orders"), target.settings, NOTHING_KNOWN)
        assert [(each.check, each.severity, each.is_usage) for each in found] == [("target-connection", Severity.ERROR, True)]
        assert "target-host" in found[0].remedy
        with pytest.raises(UsageError, match=r"a pooler at .* serve several clients in turn"):
            target.new_sink().open()
        assert met_by_others(target, pooler) == untouched


def test_a_pooler_of_sessions_is_worked_with(target: Target) -> None:
    with behind(target, sessions=8, by_transaction=False):
        target.apply(insert(T, b"1", b"a"))
        assert target.table("public", "t") == [("1", "a")]
        target.close()
