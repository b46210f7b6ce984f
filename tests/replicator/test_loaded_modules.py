"""A replicator that streams stays small: it loads no library that only workers and copies need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pgsluice.shared.broker.replicator_records import REPLICATOR_KEY
from tests.end_to_end.group_under_test import configuration
from tests.replicated_group import Group
from tests.servers import NatsServer

REPOSITORY = Path(__file__).resolve().parents[2]
HEAVY = {"numpy", "pyarrow", "pandas", "pyspark", "py4j", "prometheus_client", "opentelemetry"}
COMPRESSION = "pgsluice.shared.wire.compressed_body"

STREAM_AND_TELL = """
import sys
from pgsluice.console.program import run
code = run(sys.argv[1:])
print(*sys.modules)
raise SystemExit(code)
"""


@pytest.mark.parametrize("compression", ["none", "s2", "zstd"])
def test_a_replicator_that_has_streamed_a_transaction_has_loaded_nothing_heavy(
    replication: Group, nats_server: NatsServer, tmp_path: Path, compression: str
) -> None:
    replication.replicate()
    replication.source.execute("INSERT INTO t VALUES (1, 'a')")
    file = tmp_path / "pgsluice.yaml"
    keys = configuration(replication.name, replication.source, None, nats_server, **{"stream-compression": compression})
    file.write_text(yaml.safe_dump(keys))
    arguments = ["replicator", f"--config={file}", "--stream", "--until-lsn=current"]
    ended = subprocess.run(
        [sys.executable, "-c", STREAM_AND_TELL, *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert replication.audit().rows == {"public.t insert": 1}
    assert replication.record(REPLICATOR_KEY)["changes"] == 1
    modules = set(ended.stdout.split())
    loaded = {name.partition(".")[0] for name in modules}
    assert {"pgsluice", "psycopg", "nats"} <= loaded
    assert not loaded & HEAVY
    assert "http.server" not in modules
    assert (COMPRESSION in modules) == (compression == "zstd")
