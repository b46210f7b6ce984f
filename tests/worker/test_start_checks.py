"""A worker's settings are refused with everything that is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgsluice.shared import config
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import UsageError
from pgsluice.worker.start_checks import check_start
from tests.configuration import load


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))
    (tmp_path / "none.yaml").write_text("nonsense: [")
    content = f"rules-config: {tmp_path}/none.yaml\nddl-policy: {{what: ever}}\n"
    settings = config.make(WorkerSettings, load(tmp_path, content, WorkerSettings)).named("w")
    with pytest.raises(UsageError, match="the worker: 3 things are wrong") as refusal:
        check_start(settings)
    for text in ("no-java", "none.yaml", "what"):
        assert text in refusal.value.remedy
