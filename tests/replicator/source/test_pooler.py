"""Poolers in front of the source: what our sessions set there is in force in them, or they are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.replicator.source.source import Source
from pgsluice.shared.errors import UsageError
from pgsluice.shared.postgres.session_settings import SESSION_SETTINGS, startup_options
from tests.servers import Database
from tests.servers.child import HOST
from tests.servers.pooler import Pooler


@pytest.mark.parametrize("by_transaction", [False, True])
async def test_a_pooler_that_leaves_out_our_settings_is_refused(source_database: Database, by_transaction: bool) -> None:
    refused = pytest.raises(UsageError, match=r"drops the start settings .* set host and port to the PostgreSQL server itself")
    with Pooler(source_database.settings, by_transaction=by_transaction) as pooler, refused:
        await Source.connect(replace(source_database.settings, host=HOST, port=pooler.port))


@pytest.mark.parametrize("by_transaction", [False, True])
async def test_a_pooler_whose_sessions_have_our_settings_is_refused_where_it_shares_them(
    source_database: Database, by_transaction: bool
) -> None:
    options = startup_options({"search_path": SESSION_SETTINGS["search_path"]})
    with Pooler(source_database.settings, sessions=4, by_transaction=by_transaction, options=options) as pooler:
        connecting = Source.connect(replace(source_database.settings, host=HOST, port=pooler.port))
        if by_transaction:
            with pytest.raises(UsageError, match=r"a pooler at .* serve several clients in turn"):
                await connecting
        else:
            await (await connecting).close()
