"""What this machine lacks."""

from __future__ import annotations

import os

import pytest

from pgsluice.console.check.machine import machine_findings
from pgsluice.shared.preflight.finding import Severity

SMALL = {"spark.driver.memory": "64m", "spark.master": "local[1]"}


def found(spark: dict[str, str], environment: dict[str, str] | None = None) -> list[tuple[str, Severity]]:
    return [(each.check, each.severity) for each in machine_findings(SMALL | spark, environment or dict(os.environ))]


def test_a_machine_that_runs_these_tests_will_do() -> None:
    assert Severity.ERROR not in [severity for _, severity in found({})]


@pytest.mark.parametrize(
    ("spark", "environment", "finding"),
    [
        ({"spark.driver.memory": "900t"}, None, ("machine-memory", Severity.ERROR)),
        ({"spark.master": "local[100000]"}, None, ("machine-memory", Severity.WARNING)),
        ({}, {"JAVA_HOME": "/nowhere"}, ("machine-java", Severity.ERROR)),
        ({"spark.local.dir": "/proc/nowhere"}, None, ("machine-disk", Severity.ERROR)),
        ({"spark.master": "spark://cluster:7077"}, None, ("machine-executors", Severity.INFO)),
    ],
)
def test_what_is_missing_is_found(
    spark: dict[str, str], environment: dict[str, str] | None, finding: tuple[str, Severity]
) -> None:
    assert finding in found(spark, environment)
