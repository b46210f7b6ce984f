"""Findings about rules and routes, alone and compared with the source's tables."""

from __future__ import annotations

from collections.abc import Sequence

from pgsluice.rules.transformation import Transformation
from pgsluice.rules.transformation_files import check_tables, load_transformation
from pgsluice.shared.config.settings import WorkerSettings
from pgsluice.shared.errors import PgsluiceError
from pgsluice.shared.preflight.finding import Findings, Severity, Subject
from pgsluice.shared.wire.table import Table


class RuleLook:
    """``transformation`` is None when the files cannot be used."""

    def __init__(self, worker: WorkerSettings) -> None:
        self.found = Findings(Subject.RULES)
        self.transformation: Transformation | None = None
        with self.found.looking("rules-files"):
            self.transformation = load_transformation(worker.rules_file, worker.routing_file)

    def compare(self, tables: Sequence[Table] | None) -> None:
        """Compares with the tables. ``tables`` are all that the source has, None if unknown."""
        if self.transformation is None or not self.transformation.hash:
            return
        if tables is None:
            fact = "rules and routes were not compared with tables: neither the source nor NATS is available to list them"
            self.found.note("rules-tables-unknown", Severity.INFO, fact, "check with the source")
            return
        with self.found.looking("rules-tables"):
            check_tables(self.transformation, tables)
        for warning in self.transformation.warnings(tables):
            self.found.note("rules-surprise", Severity.WARNING, warning, "see 'pgsluice rules test'")

    def destinations(self, tables: Sequence[Table] | None) -> list[Table] | None:
        """Returns ``tables`` as they come to a sink, if their routes fit; ``compare`` reports the others."""
        if tables is None or self.transformation is None:
            return None
        found = []
        for table in tables:
            try:
                found += self.transformation.knowing(tables).destinations(table)
            except PgsluiceError:
                continue
        return found
