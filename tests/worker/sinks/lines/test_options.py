"""Options that several sinks read from one key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pgsluice.shared import config
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import UsageError
from pgsluice.worker.sinks.stdout.options import StdoutSinkSettings
from pgsluice.worker.sinks.webhook.options import WebhookSinkSettings
from tests.configuration import load


def test_a_format_of_files_is_not_minded_by_others_in_a_file_that_serves_all(tmp_path: Path) -> None:
    sinks: tuple[type[Any], ...] = (StdoutSinkSettings, WebhookSinkSettings)
    for sink in sinks:
        needed = "webhook-url: https://a/b\n"
        assert config.make(sink, load(tmp_path, f"format: parquet\n{needed}", WorkerSettings, sink)).lines.shape == "json"
        assert config.make(sink, load(tmp_path, f"format: pg-flo\n{needed}", WorkerSettings, sink)).lines.shape == "pg-flo"
        with pytest.raises(UsageError, match=r"format 'parquet' \(--format\) is of files alone: write json, pg-flo or debezium"):
            load(tmp_path, needed, WorkerSettings, sink, format="parquet")
