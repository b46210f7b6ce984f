"""A group's processes: their states, their desired states, and the logs of processes that run here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from pgsluice.console.processes.log_file import LogFile
from pgsluice.console.server.access.principal import Role
from pgsluice.console.server.api.group_api import bucket_of, found_bucket, view_of
from pgsluice.console.server.endpoint_table import PREFIX, Answer, Call, Endpoint, Rows
from pgsluice.console.server.problem import Problem, ProblemKind
from pgsluice.console.units.orders import UnitVerb, write_order
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.ledger import Ledger
from pgsluice.shared.broker.unit_records import Desired
from pgsluice.shared.units.found_units import known_units, read_units
from pgsluice.shared.units.unit_states import UnitFacts, UnitState, unit_state

MOST_LOG_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class UnitView:
    """``desired`` is what the unit is to do, since ``revision``; ``acknowledged`` the revision that its process obeys."""

    state: UnitState
    desired: Desired
    revision: int
    acknowledged: int


@dataclass(frozen=True, slots=True)
class UnitList:
    """The replicator, then the workers by name."""

    units: tuple[UnitView, ...]


@dataclass(frozen=True, slots=True)
class DesiredRequest:
    """``units`` are ``replicator`` and ``worker.<name>``; none for all workers. A unit pauses or stops on its own,
    soon; ``reason`` is shown with the state. A pause lifts no stop. A unit that should run is neither paused nor
    stopped any more; ``instead_of`` lifts one of both alone."""

    state: Desired
    units: tuple[str, ...] = ()
    reason: str = ""
    instead_of: Desired | None = None


@dataclass(frozen=True, slots=True)
class LogQuery:
    """``after`` is the number of bytes that are known already; -1 for the end of the log alone."""

    unit: str
    after: int = -1


@dataclass(frozen=True, slots=True)
class LogPart:
    """``next_after`` leads on from here."""

    lines: tuple[str, ...]
    next_after: int


async def list_units(call: Call) -> Answer:
    """Lists units; for a group that was never started, the units that its document names."""
    bucket, named = await found_bucket(call), call.parts.looks.units_named(call.path["group"])
    if bucket is None:
        return Answer(UnitList(tuple(_unit(UnitFacts(unit)) for unit in named)))
    return Answer(await _units(bucket, await known_units(bucket, named)))


async def set_desired(call: Call) -> Answer:
    request: DesiredRequest = call.body
    bucket = await bucket_of(call)
    known = await known_units(bucket, call.parts.looks.units_named(call.path["group"]))
    units = request.units or tuple(unit for unit in known if unit.startswith("worker."))
    unknown = sorted(set(units) - set(known))
    if unknown or not units:
        named = f"there is no unit '{unknown[0]}'" if unknown else "the group has no worker"
        raise Problem(ProblemKind.MALFORMED, named, f"there are {', '.join(known)}", "units")
    verbs = _verbs(request)
    revisions = [(await write_order(bucket, unit, verbs, call.who.name, request.reason)).revision for unit in units]
    target = f"{call.path['group']} {', '.join(units)}: {request.state.value}"
    location = f"{PREFIX}/groups/{call.path['group']}/units"
    return Answer(await _units(bucket, list(units)), location=location, target=target, revision=max(revisions))


def _verbs(request: DesiredRequest) -> tuple[UnitVerb, ...]:
    match request.state:
        case Desired.PAUSED:
            return (UnitVerb.PAUSE,)
        case Desired.STOPPED:
            return (UnitVerb.STOP,)
        case Desired.RUNNING:
            lifted = {Desired.PAUSED: (UnitVerb.RESUME,), Desired.STOPPED: (UnitVerb.START,)}
            return (UnitVerb.RESUME, UnitVerb.START) if request.instead_of is None else lifted.get(request.instead_of, ())
        case unreachable:
            assert_never(unreachable)


async def show_log(call: Call) -> Answer:
    view, runner = await view_of(call), call.parts.runner
    if runner is None:
        raise Problem(
            ProblemKind.NOT_FOUND, "this server runs no processes", "ask the machine or the orchestrator that runs them"
        )
    bucket, named = await found_bucket(call), call.parts.looks.units_named(view.group)
    known = named if bucket is None else await known_units(bucket, named)
    if call.query.unit not in known:
        raise Problem(ProblemKind.NOT_FOUND, f"there is no unit '{call.query.unit}'", f"there are {', '.join(known)}", "unit")
    return Answer(_read(runner.log_of(view.group, call.query.unit), call.query.after))


def _read(log: LogFile, after: int) -> LogPart:
    """Reads whole lines. A log that was put aside meanwhile begins again."""
    size = log.size()
    start = max(0, size - MOST_LOG_BYTES) if after < 0 or after > size else after
    content = log.read(start, MOST_LOG_BYTES)
    whole = content.rpartition(b"\n")[0]
    lines = whole.decode(errors="replace").split("\n") if whole else []
    if after < 0 and start > 0:
        lines = lines[1:]
    return LogPart(tuple(lines), start + len(whole) + (1 if whole else 0))


async def _units(bucket: StateBucket, units: list[str]) -> UnitList:
    facts = await read_units(bucket, units, await Ledger(bucket).load_snapshot())
    return UnitList(tuple(map(_unit, facts)))


def _unit(facts: UnitFacts) -> UnitView:
    acknowledged = 0 if facts.process is None else facts.process.acknowledged
    return UnitView(unit_state(facts), facts.desired.state, facts.revision, acknowledged)


ENDPOINTS = (
    Endpoint(
        "GET", "/groups/{group}/units", "Processes and their states", Role.VIEWER, list_units, answer=UnitList, rows=Rows.STAY
    ),
    Endpoint(
        "PUT",
        "/groups/{group}/desired",
        "Set the desired state of processes: run, pause or stop",
        Role.OPERATOR,
        set_desired,
        answer=UnitList,
        status=202,
        body=DesiredRequest,
        rows=Rows.STAY,
    ),
    Endpoint(
        "GET",
        "/groups/{group}/logs",
        "The log of a process that this server runs",
        Role.OPERATOR,
        show_log,
        answer=LogPart,
        query=LogQuery,
        rows=Rows.STAY,
    ),
)
