"""A reader that may only read, by the rights that docs/how-to/notebook.md names."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql import SparkSession

from tests.servers import Database, NatsServer
from tests.worker.data_source.conftest import Feed, ids, run

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


def test_a_reader_needs_the_rights_to_read_and_no_other(
    spark: SparkSession, source_database: Database, group: str, tmp_path: Path
) -> None:
    assert len(SUBJECTS) == 4
    names = (f"pgsluice_{group}_changes", f"KV_pgsluice_{group}")
    subjects = {re.sub(r"\bSTREAM$", name, subject) for subject in SUBJECTS for name in names}
    config = CONFIG.format(publish=", ".join(f'"{subject}"' for subject in sorted(subjects)))
    with NatsServer(config=config) as nats:
        feed = Feed(source_database, nats, group)
        feed.keys |= {"nats-user": "app", "nats-password": "app"}
        feed.publish("CREATE TABLE t (id int PRIMARY KEY)")
        feed.publish("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
        feed.options |= {"nats-user": "reader", "nats-password": "s3cret"}
        assert [row.after.id for row in feed.rows(spark, table="t", from_="2020-01-01T00:00:00Z")] == [1, 2]
        assert [ids(batch) for batch in run(feed.stream(spark), tmp_path)] == [[1, 2]]
