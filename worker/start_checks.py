"""Checks a worker's settings: all errors are reported at once and before anything is started or waited for.

Checks its rules too, when the tables are known.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from pgsluice.rules.transformation import Transformation
from pgsluice.rules.transformation_files import check_tables, load_transformation
from pgsluice.shared import telemetry
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.preflight.finding import Findings, Severity, Subject, raise_errors
from pgsluice.shared.spark.java import check_java
from pgsluice.shared.wire.names import check_worker_name
from pgsluice.shared.wire.table import Table
from pgsluice.worker.definitions.policy import Policies
from pgsluice.worker.positions.target import check_until
from pgsluice.worker.sinks.abilities import ForeseeingSink, NamingSink
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, Sink

log = telemetry.logger(__name__)


def check_start(settings: WorkerSettings) -> Transformation:
    """Returns the rules and routes of the files. Raises UsageError or TerminalError."""
    found, transformation = Findings(Subject.MACHINE), Transformation()
    with found.looking("worker-name"):
        check_worker_name(settings.name)
    with found.looking("worker-until"):
        check_until(settings.until_sequence)
    with found.looking("machine-java"):
        check_java(os.environ)
    with found.looking("worker-ddl-policy"):
        Policies.parse(settings.ddl, settings.ddl_policy)
    with found.looking("rules-files"):
        transformation = load_transformation(settings.rules_file, settings.routing_file)
    raise_errors(found, "the worker")
    return transformation


def warn_of_destination(sink: Sink, applied: Applied, transformation: Transformation, tables: Sequence[Table] | None) -> None:
    """Logs what ``sink`` foresees before the first row comes. ``tables`` are from the replicator's record."""
    if isinstance(sink, ForeseeingSink) and applied == NOTHING_APPLIED and tables is not None:
        routed = transformation.knowing(tables)
        for sentence in sink.foresee([destination for table in tables for destination in routed.destinations(table)]):
            log.warning("check the destination before rows come", reason=sentence)


def check_places(sink: Sink, transformation: Transformation, tables: Sequence[Table] | None) -> None:
    """Raises TerminalError when tables would meet in a place of the sink that holds one table's rows. ``tables`` as above."""
    names = sink.place_names() if isinstance(sink, NamingSink) else None
    if names is None or tables is None:
        return
    routed = transformation.knowing(tables)
    found = names.findings(destination for table in tables for destination in routed.destinations(table))
    for finding in found:
        if finding.severity is Severity.WARNING:
            log.warning("tables share a place", reason=finding.fact, remedy=finding.remedy)
    raise_errors(found, "the sink's names")


def check_transformation(transformation: Transformation, tables: Sequence[Table]) -> Transformation:
    """Returns the transformation with the tables that the replicator publishes. Raises UsageError when it does not fit
    them."""
    check_tables(transformation, tables)
    for warning in transformation.warnings(tables):
        log.warning("a rule may surprise", reason=warning)
    log.info("rules are in force", hash=transformation.hash)
    return transformation.knowing(tables)
