"""Poolers in front of the source: what our sessions set there is in force in them, or they are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.replicator.source.source import Source
from pgsluice.shared.errors import UsageError
from tests.servers import Database
from tests.servers.pooler import HOST, Pooler


@pytest.mark.parametrize("by_transaction", [False, True])
async def test_a_pooler_that_leaves_out_our_settings_is_refused(source_database: Database, by_transaction: bool) -> None:
    refused = pytest.raises(UsageError, match=r"leaves out the settings .* set host and port to the PostgreSQL server itself")
    with Pooler(source_database.settings, by_transaction=by_transaction) as pooler, refused:
        await Source.connect(replace(source_database.settings, host=HOST, port=pooler.port))
