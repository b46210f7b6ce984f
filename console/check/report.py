"""The outcome of a check, for readers and for programs.

``CheckReport`` is the output of ``--json``; its fields and the names of checks keep their meaning, new ones may be
added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from pgsluice.shared.preflight.finding import Finding, Severity, Subject

FORMAT = 1
ERRORS_FOUND = 1

_HEADINGS = {
    Subject.MACHINE: "This machine",
    Subject.NATS: "NATS",
    Subject.SOURCE: "The source",
    Subject.TARGET: "The target",
    Subject.SINK: "The sink",
    Subject.RULES: "Rules and routes",
    Subject.PIPELINES: "SQL pipelines",
}
_ORDER = (Severity.ERROR, Severity.WARNING, Severity.INFO)


@dataclass(frozen=True, slots=True)
class FindingContent:
    """``statements`` cure it unchanged, ``choices`` are statements among which an operator has to choose; ``restart``:
    the server has to be started again afterwards. ``configuration``: pgsluice's own configuration is wrong."""

    check: str
    severity: Severity
    subject: Subject
    fact: str
    remedy: str
    statements: tuple[str, ...]
    choices: tuple[str, ...]
    restart: bool
    configuration: bool


@dataclass(frozen=True, slots=True)
class ReportContent:
    """``counts`` are those of errors, warnings and infos."""

    format: int
    group: str
    looked_at: tuple[Subject, ...]
    counts: Mapping[str, int]
    findings: tuple[FindingContent, ...]


@dataclass(frozen=True, slots=True)
class CheckReport:
    """``looked_at`` are the checked subjects; ``places`` are host, port and database of source and target."""

    group: str
    looked_at: tuple[Subject, ...]
    places: dict[Subject, str]
    findings: tuple[Finding, ...]

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    @property
    def exit_code(self) -> int:
        return ERRORS_FOUND if self.count(Severity.ERROR) else 0

    def of(self, subject: Subject) -> list[Finding]:
        """Returns the findings of the subject, the worst first."""
        found = [finding for finding in self.findings if finding.subject is subject]
        return sorted(found, key=lambda finding: _ORDER.index(finding.severity))

    def encode(self) -> bytes:
        """Encodes as JSON."""
        return orjson.dumps(self.content(), option=orjson.OPT_INDENT_2) + b"\n"

    def content(self) -> ReportContent:
        """Returns the report for programs: by subject, the worst first."""
        counts = {f"{severity}s" if severity is not Severity.INFO else "infos": self.count(severity) for severity in _ORDER}
        findings = tuple(_content(finding) for subject in _HEADINGS for finding in self.of(subject))
        return ReportContent(FORMAT, self.group, self.looked_at, counts, findings)

    def lines(self) -> Iterator[str]:
        """Yields the report's lines for readers."""
        for subject, heading in _HEADINGS.items():
            if subject not in self.looked_at and not self.of(subject):
                continue
            place = self.places.get(subject, "")
            yield f"{heading}{f' ({place})' if place else ''}"
            if all(finding.severity is Severity.INFO for finding in self.of(subject)):
                yield "  ok       nothing is wrong"
            for finding in self.of(subject):
                yield from _told(finding)
            yield ""
        yield _summary([self.count(severity) for severity in _ORDER])


def _told(finding: Finding) -> Iterator[str]:
    yield f"  {finding.severity.value:<8} {finding.fact}"
    for number, line in enumerate(finding.remedy.splitlines()):
        yield f"           {'->' if number == 0 else '  '} {line}"


def _summary(counts: Sequence[int]) -> str:
    errors, warnings, infos = counts
    return f"{_plural(errors, 'error')}, {_plural(warnings, 'warning')}, {infos} for information"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _content(finding: Finding) -> FindingContent:
    return FindingContent(
        check=finding.check,
        severity=finding.severity,
        subject=finding.subject,
        fact=finding.fact,
        remedy=finding.remedy,
        statements=finding.statements,
        choices=finding.choices,
        restart=finding.restart,
        configuration=finding.is_usage,
    )
