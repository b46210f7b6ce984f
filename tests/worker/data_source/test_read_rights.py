"""A reader that may only read, by the rights that docs/how-to/notebook.md names; it needs all of them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from pyspark.sql import SparkSession

from pgsluice.shared.broker.connection import connected
from pgsluice.shared.errors import TransientError
from pgsluice.worker.batches.broker_connection import process_connection
from pgsluice.worker.data_source.data_source import ChangeFeed
from pgsluice.worker.data_source.read_options import read_settings
from tests.servers import Database, NatsServer
from tests.servers.child import HOST, free_port
from tests.worker.data_source.conftest import Feed, ids, run
from tests.worker.published_stream import publish_inserts

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "notebook.md").read_text()
SUBJECTS = re.findall(r"`(\$JS\.API[^`]*)`", PAGE.partition("**Rights.**")[2])
CONFIG = """
authorization {{
  users = [
    {{user: app, password: app}}
    {{user: reader, password: s3cret, permissions: {{publish: [{publish}], subscribe: ["_INBOX.>"]}}}}
  ]
}}
"""


def config_for(group: str, subjects: Iterable[str]) -> str:
    """Of a server whose user ``reader`` has those rights."""
    names = (f"pgsluice_{group}_changes", f"KV_pgsluice_{group}")
    of_group = {re.sub(r"\bSTREAM$", name, subject) for subject in subjects for name in names}
    return CONFIG.format(publish=", ".join(f'"{subject}"' for subject in sorted(of_group)))


def test_a_reader_that_has_the_rights_to_read_needs_no_other_and_is_called_a_reader(
    spark: SparkSession, source_database: Database, group: str, tmp_path: Path
) -> None:
    assert SUBJECTS, "the page names no rights any more"
    monitor = free_port()
    with NatsServer(config=config_for(group, SUBJECTS) + f'http: "{HOST}:{monitor}"\n') as nats:
        feed = Feed(source_database, replace(nats.settings(), user="app", password="app"), group)
        feed.publish("CREATE TABLE t (id int PRIMARY KEY)")
        feed.publish("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
        feed.options |= {"nats-user": "reader", "nats-password": "s3cret"}
        assert [row.after.id for row in feed.rows(spark, table="t", from_="2020-01-01T00:00:00Z")] == [1, 2]
        assert [ids(batch) for batch in run(feed.stream(spark), tmp_path)] == [[1, 2]]
        names = connection_names(monitor)
        assert f"pgsluice reader {group}" in names
        assert not [name for name in names if name.startswith("pgsluice worker")]


def connection_names(monitor: int) -> set[str]:
    """Of all that are connected, or were."""
    with urlopen(f"http://{HOST}:{monitor}/connz?state=all") as answer:
        return {connection.get("name", "") for connection in json.load(answer)["connections"]}


@pytest.mark.long
@pytest.mark.parametrize("missing", SUBJECTS)
def test_a_reader_that_lacks_a_right_ends_with_the_right_that_it_lacks(group: str, missing: str) -> None:
    with NatsServer(config=config_for(group, set(SUBJECTS) - {missing})) as nats:

        async def publish() -> None:
            async with connected(replace(nats.settings(), user="app", password="app"), "test") as client:
                await publish_inserts(client, group, 3)

        asyncio.run(publish())
        options = {"group": group, "nats-url": nats.url, "nats-user": "reader", "nats-password": "s3cret"}
        feed = ChangeFeed(options)
        reader = feed.reader(feed.schema())
        lacking = missing.removesuffix("STREAM").lower()
        with pytest.raises(TransientError, match=rf"the NATS user may not publish {re.escape(lacking)}") as caught:
            [list(reader.read(part)) for part in reader.partitions()]
        assert "s3cret" not in str(caught.value)
        process_connection(read_settings(options).nats, group, "reader").close()
