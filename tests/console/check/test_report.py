"""How findings are shown, and what a script holds."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pgsluice.console.check.report import CheckReport
from pgsluice.console.check.script import scripts
from pgsluice.shared.preflight.finding import Finding, Severity, Subject
from tests.servers.program import REPOSITORY

RELOADED = ("ALTER SYSTEM SET a = '1'", "SELECT pg_reload_conf()")
ALSO_RELOADED = ("ALTER SYSTEM SET b = '1'", "SELECT pg_reload_conf()")


def report(*findings: Finding) -> CheckReport:
    return CheckReport("g", (Subject.SOURCE,), {Subject.SOURCE: "db:5432, database shop"}, findings)


def finding(severity: Severity, fact: str, *statements: str, choices: tuple[str, ...] = (), restart: bool = False) -> Finding:
    return Finding("c", severity, Subject.SOURCE, fact, "r", statements, choices, restart=restart)


def test_a_script_reloads_once_behind_all_settings_and_says_when_a_restart_is_due() -> None:
    found = report(
        finding(Severity.WARNING, "w", *RELOADED),
        finding(Severity.ERROR, "e", *ALSO_RELOADED),
        finding(Severity.ERROR, "s", "X", restart=True),
    )
    assert list(scripts(found)) == [
        "-- source: db:5432, database shop",
        "-- error: e",
        "ALTER SYSTEM SET b = '1';",
        "-- error: s",
        "X;",
        "-- warning: w",
        "ALTER SYSTEM SET a = '1';",
        "SELECT pg_reload_conf();",
        "-- then restart the server of the source",
    ]


def test_what_takes_something_away_is_a_comment() -> None:
    assert list(scripts(report(finding(Severity.WARNING, "w", choices=("DROP x",)))))[1:] == ["-- warning: w", "-- or: DROP x;"]


def test_a_fact_of_several_lines_begins_no_line_of_the_script() -> None:
    lines = list(scripts(report(finding(Severity.ERROR, "a\nDROP TABLE t", "X\nY"))))
    assert lines[1:] == ["-- error: a DROP TABLE t", "X Y;"]


def test_a_statement_that_cures_several_things_stands_once() -> None:
    lines = list(scripts(report(finding(Severity.ERROR, "a", "X"), finding(Severity.ERROR, "b", "X"))))
    assert lines[1:] == ["-- error: a", "X;"]


def test_people_read_the_worst_first_and_a_sum() -> None:
    lines = list(report(finding(Severity.INFO, "i"), finding(Severity.ERROR, "e", "X")).lines())
    assert lines == [
        "The source (db:5432, database shop)",
        "  error    e",
        "           -> r",
        "  info     i",
        "           -> r",
        "",
        "1 error, 0 warnings, 1 for information",
    ]
    assert report(finding(Severity.WARNING, "w")).exit_code == 0


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_what_the_page_makes_of_a_report_is_what_prometheus_reads() -> None:
    page = (REPOSITORY / "docs" / "how-to" / "check.md").read_text()
    (program,) = re.findall(r"jq -r '(.*?)'", page, re.DOTALL)
    found = report(finding(Severity.WARNING, "w"), finding(Severity.ERROR, "e"), finding(Severity.ERROR, "s"))
    made = subprocess.run(["jq", "-r", program], input=found.encode(), capture_output=True, check=True)
    samples = [sample for family in text_string_to_metric_families(made.stdout.decode()) for sample in family.samples]
    assert {sample.labels["severity"]: sample.value for sample in samples} == {"error": 2, "warning": 1, "info": 0}
    assert {(sample.name, sample.labels["group"]) for sample in samples} == {("pgsluice_check_findings", "g")}
