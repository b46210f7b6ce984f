"""The cures as SQL: a script for each server, one statement a line, to be run unchanged by an administrator of that database.

Destructive statements are comments: an operator has to choose them. ALTER SYSTEM cannot be in a transaction, so a
script is run statement by statement, as psql does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pgsluice.console.check.report import CheckReport
from pgsluice.shared.preflight.finding import Finding, Subject
from pgsluice.shared.preflight.provider import RELOAD

_SERVERS = (Subject.SOURCE, Subject.TARGET)


def scripts(report: CheckReport) -> Iterator[str]:
    """Yields the lines of the scripts; none for a server that needs nothing."""
    for subject in _SERVERS:
        curable = [finding for finding in report.of(subject) if finding.statements or finding.choices]
        if curable:
            yield from _script(subject, report.places.get(subject, ""), curable)


def _script(subject: Subject, place: str, findings: Sequence[Finding]) -> Iterator[str]:
    yield f"-- {subject}: {place}"
    told = {RELOAD}
    for finding in findings:
        statements = [statement for statement in finding.statements if statement not in told]
        if statements or finding.choices:
            yield _comment(f"{finding.severity}: {finding.fact}")
        for statement in statements:
            told.add(statement)
            yield f"{_one_line(statement)};"
        for choice in finding.choices:
            yield _comment(f"or: {choice};")
    if any(RELOAD in finding.statements for finding in findings):  # once, when all settings are made
        yield f"{RELOAD};"
    if any(finding.restart and finding.statements for finding in findings):
        yield f"-- then restart the server of the {subject}"


def _comment(text: str) -> str:
    return f"-- {_one_line(text)}"


def _one_line(text: str) -> str:
    """Joins lines, so that no text after a comment's sign begins a new line."""
    return text.replace("\r", " ").replace("\n", " ")
