"""``pgsluice check`` of a group with a document, by this server: what hinders it, and what cures that."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from pgsluice.console.check.check import examine
from pgsluice.console.check.check_settings import CheckSettings, parts_of
from pgsluice.console.check.report import ReportContent
from pgsluice.console.check.script import scripts
from pgsluice.console.check.selection import select
from pgsluice.console.documents.document_settings import load_document, names_nats
from pgsluice.console.server.access.principal import Role
from pgsluice.console.server.endpoint_table import Answer, Call, Endpoint, Rows
from pgsluice.console.server.problem import Problem, ProblemKind

CHECKING_S = 60.0


@dataclass(frozen=True, slots=True)
class CheckView:
    """``script`` is the SQL that cures, as ``pgsluice check --sql`` writes it."""

    report: ReportContent
    script: str


async def check(call: Call) -> Answer:
    group = call.path["group"]
    stored = await call.parts.documents.find(group)
    if stored is None:
        raise Problem(
            ProblemKind.NOT_FOUND,
            f"group '{group}' has no document, so its servers are not known here",
            "'pgsluice apply -f pgsluice.yaml', or run 'pgsluice check' where its processes run",
        )
    parts = parts_of(load_document(stored.document, call.parts.bounds, CheckSettings))
    if not names_nats(stored.document):
        parts = replace(parts, nats=call.parts.settings.nats)
    selection = select(parts, frozenset(), "")
    try:
        async with asyncio.timeout(CHECKING_S):
            report = await asyncio.get_running_loop().run_in_executor(call.parts.checks, examine, parts, selection)
    except TimeoutError:
        raise Problem(
            ProblemKind.UNAVAILABLE, f"the check took more than {CHECKING_S:g} s", "a server may not answer: try again"
        ) from None
    return Answer(CheckView(report.content(), "\n".join(scripts(report))), target=group)


ENDPOINTS = (
    Endpoint(
        "POST",
        "/groups/{group}/check",
        "Check a group: problems and fixes; changes nothing",
        Role.OPERATOR,
        check,
        answer=CheckView,
        rows=Rows.STAY,
    ),
)
