"""What is found of directories and receivers before a worker writes there."""

from __future__ import annotations

from pathlib import Path

from pgsluice.shared import config
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.preflight.finding import Severity
from pgsluice.worker.sinks.incoming import NOTHING_KNOWN
from pgsluice.worker.sinks.sink_registry import find_sink
from tests.configuration import REQUIRED, load_from
from tests.servers.child import free_port


def look(kind: str, **keys: str) -> list[tuple[str, Severity]]:
    sink = find_sink(kind)
    given = {"group": "g", "nats-url": REQUIRED["nats-url"]} | {name.replace("_", "-"): value for name, value in keys.items()}
    values = load_from(given, {}, WorkerSettings, sink.settings)
    worker = config.make(WorkerSettings, values).named(kind)
    return [(each.check, each.severity) for each in sink.look(worker, config.make(sink.settings, values), NOTHING_KNOWN)]


def test_a_directory_that_can_be_made_is_fine_and_is_not_made(tmp_path: Path) -> None:
    assert look("file", file_output_dir=str(tmp_path / "a" / "b")) == []
    assert not (tmp_path / "a").exists()


def test_a_file_in_the_directorys_place_is_found(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    assert look("file", file_output_dir=str(tmp_path / "a" / "b")) == [("file-directory", Severity.ERROR)]


def test_stdout_needs_nothing() -> None:
    assert look("stdout") == []


def test_a_receiver_that_is_not_allowed_or_not_there_is_found() -> None:
    url = f"http://127.0.0.1:{free_port()}/x"
    plain, away = ("webhook-plain", Severity.WARNING), ("webhook-receiver", Severity.ERROR)
    assert look("webhook", webhook_url=url) == [("sink-settings", Severity.ERROR), plain, away]
    assert look("webhook", webhook_url=url, webhook_allow_hosts="127.0.0.1") == [plain, away]
