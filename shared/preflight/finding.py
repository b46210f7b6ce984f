"""A finding: one fact about a server, a file or this machine that hinders replication, or that operators should know.

Findings are gathered first and judged afterwards. ``pgsluice check`` shows all of it; a start raises all errors of it
in one.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pgsluice.shared.errors import PgsluiceError, TerminalError, UsageError


class Severity(enum.StrEnum):
    """ERROR: a start refuses it, or a table would not be replicated. WARNING: it works, and will cause trouble later.
    INFO: a surprising fact."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Subject(enum.StrEnum):
    """The subject of a finding: its operator has to fix it."""

    SOURCE = "source"
    TARGET = "target"
    NATS = "nats"
    SINK = "sink"
    RULES = "rules"
    PIPELINES = "pipelines"
    MACHINE = "machine"


@dataclass(frozen=True, slots=True)
class Finding:
    """``check`` names the kind of finding, the same in every version: users filter by it. ``fact`` states the problem
    and its object, ``remedy`` what an operator can do.

    ``statements`` are SQL that cures it when the administrator runs them unchanged, each without its semicolon;
    ``choices`` are SQL that would cure it too and takes something away (a slot, a session, a transaction), so an
    operator has to choose it. ``restart``: the cure takes effect when that server has started again. ``is_usage``: the
    configuration is wrong, and no server.
    """

    check: str
    severity: Severity
    subject: Subject
    fact: str
    remedy: str = ""
    statements: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    restart: bool = False
    is_usage: bool = False

    @classmethod
    def of(
        cls, error: PgsluiceError, check: str, subject: Subject, severity: Severity = Severity.ERROR, *, restart: bool = False
    ) -> Finding:
        """Returns an error of a start as a finding."""
        is_usage = isinstance(error, UsageError)
        return cls(check, severity, subject, error.fact, error.remedy, error.statements, restart=restart, is_usage=is_usage)

    @property
    def error(self) -> PgsluiceError:
        """Returns the finding as the error that a start raises."""
        return (UsageError if self.is_usage else TerminalError)(self.fact, self.remedy, statements=self.statements)


def raise_errors(findings: Iterable[Finding], where: str) -> None:
    """Raises one error that names every finding of severity ERROR; nothing happens without one. ``where`` begins the sentence
    about several, like "the source"."""
    raise_all([finding.error for finding in findings if finding.severity is Severity.ERROR], where)


def raise_all(errors: Sequence[PgsluiceError], where: str) -> None:
    """Raises the errors as one; a single one unchanged. UsageError when only the configuration is wrong."""
    distinct = list({str(error): error for error in errors}.values())
    if not distinct:
        return
    if len(distinct) == 1:
        raise distinct[0]
    is_usage = all(isinstance(error, UsageError) for error in distinct)
    listed = "".join(f"\n  - {error}" for error in distinct)
    raise (UsageError if is_usage else TerminalError)(
        f"{where}: {len(distinct)} things are wrong", f"correct each of these ('pgsluice check' shows them too):{listed}"
    )


def listed(names: Sequence[str], most: int = 10) -> str:
    """Returns the first ones, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


class Findings:
    """Gathers findings in the order in which they are found."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._found: list[Finding] = []

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found)

    def take(self, findings: Iterable[Finding]) -> None:
        self._found += findings

    @contextmanager
    def looking(self, check: str, *, restart: bool = False) -> Iterator[None]:
        """Turns a UsageError or TerminalError that ends the block into a finding, and lets the next check run. A
        TransientError passes through: the check could not be made. ``restart`` is the finding's."""
        try:
            yield
        except (UsageError, TerminalError) as error:
            self._found.append(Finding.of(error, check, self._subject, restart=restart))

    def note(self, check: str, severity: Severity, fact: str, remedy: str = "", **more: Any) -> None:
        """``more`` are further fields of the finding."""
        self._found.append(Finding(check, severity, self._subject, fact, remedy, **more))
