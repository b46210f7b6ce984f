"""Rules and dashboard hold together with the metrics, the documents and the chart."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from pgsluice.shared.metrics.declared_metrics import METRICS
from tests.deploy.monitoring import CASES, DASHBOARD, LABELS, RULES, alerts, dashboard_queries, selected, series_of
from tests.deploy.test_kubernetes import CHART
from tests.misses import no_misses
from tests.servers.program import REPOSITORY

SEVERITIES = {"critical", "warning"}
DOCS_URL = "https://docs.example.com/pgsluice/"
"""Where the rules expect the site, until whoever deploys them says where it is."""

_SAMPLE_LABEL = re.compile(r'(\w+)="')


def called(alert: dict[str, Any]) -> str:
    """An alert may have several rules, one for each severity."""
    return f"{alert['alert']} ({alert['labels']['severity']})"


def test_a_query_names_metrics_and_labels_that_there_are() -> None:
    queries = [*dashboard_queries(), *(alert["expr"] for alert in alerts())]
    no_misses((query for query in queries if not selected(query)), "names no metric of ours")
    strangers = (
        f"{metric.name}{{{', '.join(sorted(metric.labels))}}} in {query}"
        for query in queries
        for metric in selected(query)
        if not metric.labels <= LABELS.get(metric.name, frozenset()) or metric.name not in LABELS
    )
    no_misses(strangers, "no such metric, or it has no such label: see shared/metrics/declared_metrics.py")


def test_the_dashboard_shows_every_metric() -> None:
    shown = {metric.name for query in dashboard_queries() for metric in selected(query)}
    hidden = (metric.name for metric in METRICS if not series_of(metric) & shown)
    no_misses(hidden, "shown by no panel of deploy/grafana/pgsluice.json: add it to one")


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


def test_an_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for alert in alerts():
        annotations = alert["annotations"]
        assert alert["labels"]["severity"] in SEVERITIES, called(alert)
        assert annotations.keys() == {"summary", "description", "runbook_url"}, called(alert)
        page, _, anchor = annotations["runbook_url"].partition("#")
        assert page.startswith(DOCS_URL), called(alert)
        path = f"docs/{page.removeprefix(DOCS_URL).removesuffix('.html')}.md"
        headings = re.findall(r"^### (\w+)$", (REPOSITORY / path).read_text(), re.MULTILINE)
        assert anchor == alert["alert"].lower(), called(alert)
        assert alert["alert"] in headings, f"{path} has no section about it"


def test_the_chart_puts_another_address_of_the_site_into_the_rules() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["monitoring"]["rules"]["docsUrl"] == DOCS_URL.removesuffix("/")
    assert f'replace "{DOCS_URL}" (printf "%s/" .rules.docsUrl)' in (CHART / "templates" / "monitoring.yaml").read_text()


def test_the_page_has_no_alert_that_there_is_not() -> None:
    page = (REPOSITORY / "docs" / "how-to" / "alerts.md").read_text()
    described = set(re.findall(r"^### (\w+)$", page, re.MULTILINE))
    no_misses(described - {alert["alert"] for alert in alerts()}, "described in docs/how-to/alerts.md, and no alert")


def test_an_alert_has_a_case_in_which_it_fires_and_resolves_and_its_texts_name_labels_that_it_has() -> None:
    checks = [check for case in yaml.safe_load(CASES.read_text())["tests"] for check in case["promql_expr_test"]]
    for alert in alerts():
        wanted = f'ALERTS{{alertname="{alert["alert"]}", alertstate="firing", severity="{alert["labels"]["severity"]}"}}'
        samples = [check["exp_samples"] for check in checks if check["expr"] == wanted]
        fired = [sample["labels"] for found in samples for sample in found]
        assert fired, f"{called(alert)} fires in no case of {CASES.name}: add one"
        assert [] in samples, f"{called(alert)} resolves in no case of {CASES.name}: add one"
        texts = str(alert["annotations"])
        named = set(re.findall(r"\$labels\.(\w+)", texts))
        possible = set(_SAMPLE_LABEL.findall("".join(fired))) | ({"worker"} if "if $labels.worker" in texts else set())
        no_misses(named - possible, f"{called(alert)} names labels that it does not have")


def test_the_chart_brings_the_same_rules_and_the_same_dashboard() -> None:
    assert (CHART / "files" / "alerts.yaml").resolve() == RULES
    assert (CHART / "files" / "dashboard.json").resolve() == DASHBOARD
