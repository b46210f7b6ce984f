"""The end of things: a worker that is forgotten, a group that is dropped. Both want the name again."""

from __future__ import annotations

from dataclasses import dataclass

from pgsluice.console.documents.document_settings import source_of
from pgsluice.console.drop import drop, publishing_worker
from pgsluice.console.forget import forget_worker
from pgsluice.console.server.access.principal import Role
from pgsluice.console.server.api.group_api import view_of
from pgsluice.console.server.endpoint_table import Answer, Call, Endpoint, Rows
from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.shared.config.settings import DropSettings


@dataclass(frozen=True, slots=True)
class DropRequest:
    """``name`` is the group's, again. ``nats_only``: what the group has at its source stays there."""

    name: str
    nats_only: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ForgetRequest:
    """``name`` is the worker's, again. ``dead_letters``: they are removed too."""

    name: str
    dead_letters: bool = False
    reason: str = ""


async def drop_group(call: Call) -> Answer:
    """Drops the group. The document stays, so that the group can be begun again; delete it first where a runner would
    start it again."""
    view, request = await view_of(call), call.body
    _check_name(request.name, view.group)
    settings = call.parts.settings
    source = await source_of(call.parts.documents, view.group, call.parts.bounds)
    if source is None and not request.nats_only and await publishing_worker(settings.nats, view.group) is None:
        raise Problem(
            ProblemKind.CONFLICT,
            "how the group's source is reached is not known here, so slot and publication would stay",
            "apply its document first, run 'pgsluice drop' elsewhere, or set nats_only",
        )
    await drop(DropSettings(view.group, settings.log, settings.nats, None if request.nats_only else source))
    return Answer(target=view.group)


async def forget(call: Call) -> Answer:
    view, request = await view_of(call), call.body
    worker = call.path["worker"]
    _check_name(request.name, worker)
    await forget_worker(call.parts.client, view.group, worker, dead_letters=request.dead_letters)
    return Answer(target=f"{view.group} worker {worker}")


def _check_name(given: str, name: str) -> None:
    if given != name:
        raise Problem(ProblemKind.MALFORMED, f"name is not '{name}'", "write the name of the group to remove", "name")


ENDPOINTS = (
    Endpoint(
        "POST",
        "/groups/{group}/drop",
        "Remove everything that a group made at its source and in NATS; targets stay",
        Role.ADMIN,
        drop_group,
        status=204,
        body=DropRequest,
        rows=Rows.STAY,
    ),
    Endpoint(
        "POST",
        "/groups/{group}/workers/{worker}/forget",
        "Forget a worker that does not come back, so that messages are no longer kept for it",
        Role.ADMIN,
        forget,
        status=204,
        body=ForgetRequest,
        rows=Rows.STAY,
    ),
)
