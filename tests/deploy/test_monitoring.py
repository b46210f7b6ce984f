"""Rules and dashboard hold together with the metrics, the documents and the chart."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from pgsluice.shared.metrics.declared_metrics import METRICS
from tests.deploy.monitoring import CASES, DASHBOARD, LABELS, RULES, alerts, dashboard_queries, selected, series_of
from tests.deploy.test_kubernetes import CHART
from tests.servers.program import REPOSITORY

SEVERITIES = {"critical", "warning"}
_SAMPLE_LABEL = re.compile(r'(\w+)="')

each_alert = pytest.mark.parametrize("rule", alerts(), ids=lambda rule: f"{rule['alert']}-{rule['labels']['severity']}")


@pytest.mark.parametrize("query", [*dashboard_queries(), *(rule["expr"] for rule in alerts())])
def test_a_query_names_metrics_and_labels_that_there_are(query: str) -> None:
    found = selected(query)
    assert found
    for metric in found:
        assert metric.name in LABELS
        assert metric.labels <= LABELS[metric.name]


def test_the_dashboard_shows_every_metric() -> None:
    shown = {metric.name for query in dashboard_queries() for metric in selected(query)}
    assert {metric.name for metric in METRICS if not series_of(metric) & shown} == set()


def test_panels_of_the_dashboard_do_not_overlap_and_say_their_unit() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["type"] == "row" or panel["fieldConfig"]["defaults"]["unit"]
    assert len({panel["id"] for panel in panels}) == len(panels)


@each_alert
def test_an_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, object]) -> None:
    labels, annotations = rule["labels"], rule["annotations"]
    assert isinstance(labels, dict)
    assert isinstance(annotations, dict)
    assert labels["severity"] in SEVERITIES
    assert annotations.keys() == {"summary", "description", "runbook"}
    path, _, anchor = annotations["runbook"].partition("#")
    headings = re.findall(r"^### (\w+)$", (REPOSITORY / path).read_text(), re.MULTILINE)
    assert anchor == str(rule["alert"]).lower()
    assert rule["alert"] in headings


def test_the_page_has_no_alert_that_there_is_not() -> None:
    page = (REPOSITORY / "docs" / "how-to" / "alerts.md").read_text()
    assert set(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == {rule["alert"] for rule in alerts()}


@each_alert
def test_an_alert_has_a_case_in_which_it_fires_and_resolves_and_its_texts_name_labels_that_it_has(
    rule: dict[str, object],
) -> None:
    labels = rule["labels"]
    assert isinstance(labels, dict)
    wanted = f'ALERTS{{alertname="{rule["alert"]}", alertstate="firing", severity="{labels["severity"]}"}}'
    checks = [check for case in yaml.safe_load(CASES.read_text())["tests"] for check in case["promql_expr_test"]]
    samples = [check["exp_samples"] for check in checks if check["expr"] == wanted]
    fired = [sample["labels"] for found in samples for sample in found]
    assert fired
    assert [] in samples
    named = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    possible = set(_SAMPLE_LABEL.findall("".join(fired))) | (
        {"worker"} if "if $labels.worker" in str(rule["annotations"]) else set()
    )
    assert named <= possible


def test_the_chart_brings_the_same_rules_and_the_same_dashboard() -> None:
    assert (CHART / "files" / "alerts.yaml").resolve() == RULES
    assert (CHART / "files" / "dashboard.json").resolve() == DASHBOARD
