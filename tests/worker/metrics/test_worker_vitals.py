"""What a running worker shows, asked over HTTP: with real Spark, a real broker and a small sink."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.metrics import asked_looks, health
from pgsluice.shared.metrics.declared_metrics import FILTERED_CHANGES, MISSING_ROWS
from pgsluice.shared.metrics.metric import Shown
from pgsluice.shared.wire.names import GroupNames
from tests.endpoints import ANY_PORT, ask, not_shown, scraped
from tests.logged import fields_of
from tests.waiting import wait_until
from tests.worker.published_stream import ids_in
from tests.worker.stage import LONGEST_S, SlowSink, Stage


def test_a_worker_shows_what_it_applies_and_is_ill_while_its_sink_hangs(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health, "STILL_S", 1.0)
    monkeypatch.setattr(asked_looks, "FRESH_S", 0.0)
    stage.settings = replace(stage.settings, metrics=ANY_PORT)
    sinks: list[SlowSink] = []

    def new_sink(settings: WorkerSettings) -> SlowSink:
        sinks.append(SlowSink(settings, stage.path))
        return sinks[-1]

    stage.start(new_sink)
    stage.wait_for_log("metrics and health are shown")
    [shown] = [each for each in caplog.records if each.message == "metrics and health are shown"]
    address = fields_of(shown)["url"]
    starting = ask(address, "/readyz")
    assert (starting.status, starting.content["activity"]) == (503, "starting")
    assert ask(address, "/healthz").status == 200

    stage.publish(3)
    wait_until(sinks[0].is_committing.is_set, deadline_s=LONGEST_S, what="a commit")
    wait_until(lambda: ask(address, "/healthz").status == 503, what="an ill worker")
    assert "nothing has moved" in ask(address, "/healthz").content["why"]
    stage.loop.run(stage.client.publish(GroupNames(stage.group).steps_subject("w")))
    wait_until(lambda: ask(address, "/healthz").status == 200, what="a worker of which a task has moved")
    wait_until(lambda: ask(address, "/healthz").status == 503, what="an ill worker again")
    wait_until(lambda: scraped(address).get("pgsluice_apply_lag_messages") == {(): 3}, what="a lag")
    sinks[0].may_commit.set()
    wait_until(lambda: ids_in(stage.path) == [1, 2, 3], what="the batch")
    wait_until(lambda: ask(address, "/healthz").status == 200, what="a healthy worker")
    ready = ask(address, "/readyz")
    assert (ready.status, ready.content["lease"], ready.content["nats"], ready.content["sink"]) == (200, True, True, True)

    wait_until(lambda: scraped(address).get("pgsluice_apply_lag_messages") == {(): 0}, what="no lag")
    found = scraped(address)
    assert found["pgsluice_applied_changes_total"] == {("insert", "public.t"): 3}
    assert found["pgsluice_commit_to_applied_seconds_count"] == {(): 3}
    assert found["pgsluice_batch_changes_sum"] == {(): 3}
    assert found["pgsluice_batch_seconds_count"] == {("plan",): 1, ("write",): 1, ("commit",): 1}
    assert found["pgsluice_jvm_heap_bytes"]["used",] < found["pgsluice_jvm_heap_bytes"]["max",]
    assert found["pgsluice_python_workers_rss_bytes"][()] > 10 << 20
    assert found["pgsluice_activity"] == {("starting",): 0, ("working",): 1, ("paused",): 0, ("ending",): 0}
    others = ("pgsluice_search_", "pgsluice_subscription", "pgsluice_kafka_", "pgsluice_run_")
    of_others = {name for name in not_shown(address, Shown.WORKER) if not name.startswith(others)}
    assert of_others == {FILTERED_CHANGES.name, MISSING_ROWS.name}
    stage.stop()
    with pytest.raises(OSError, match="refused"):
        ask(address, "/healthz")
