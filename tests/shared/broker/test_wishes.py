"""No wish is lost, whatever people order at the same time, whichever process dies at which request, and whatever clocks say."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgsluice.console.executor import run_executor
from pgsluice.console.executor.run_executor import RunExecutor
from pgsluice.console.processes.child_process import Command
from pgsluice.console.units import orders
from pgsluice.console.units.orders import UnitVerb, write_order
from pgsluice.console.units.table_pauses import TablePause, write_pause
from pgsluice.replicator.pipelines.wish_watch import WishWatch
from pgsluice.shared.broker import table_orders
from pgsluice.shared.broker.bucket import StateBucket
from pgsluice.shared.broker.connection import connected
from pgsluice.shared.broker.process_report import ProcessReport
from pgsluice.shared.broker.published_tables import store_tables
from pgsluice.shared.broker.table_orders import ORDERS, OrderVerb, TableOrders, TableOutcome, give_order, note_done, note_taken
from pgsluice.shared.broker.table_selection import SELECTION, TableSelection
from pgsluice.shared.broker.unit_records import REPLICATOR_UNIT, Desired, DesiredRecord, desired_key
from pgsluice.shared.definitions.definition_decisions import ACCEPTED, AcceptedRecord, accept
from pgsluice.shared.pipelines import run_records, run_requests
from pgsluice.shared.pipelines.run_records import (
    PipelineRecord,
    RunRecord,
    RunState,
    load_pipeline,
    store_pipeline,
)
from pgsluice.shared.pipelines.run_requests import (
    RUN_REQUESTS,
    RequestState,
    RunRequest,
    RunRequests,
    ask_for_run,
    cancel,
    end_cancelled,
    lift_pause,
    pause,
    resume,
)
from pgsluice.shared.pipelines.run_schedule import RunSchedule
from pgsluice.shared.process.pulse import Pulse
from pgsluice.shared.units.desired_state import DesiredState
from pgsluice.shared.units.paused_tables import PAUSED_TABLES, PausedTables
from pgsluice.shared.wire.names import GroupNames
from pgsluice.shared.wire.position import LSN, Position
from pgsluice.testing.changes_builder import table
from tests.servers import NatsServer
from tests.shared.broker.turns import Actor, Facts, History, Known, SharedBucket, SkewedTime, play, skewed_now

UNIT = REPLICATOR_UNIT
TABLE = table("orders", "id bigint")
EVERY_HOUR = RunSchedule(every_s=3600.0)
ANY_ORDER = {"open": 0, "requested": 0, "taken": 1, "done": 2, "refused": 2}
"""A state never goes back to a lower one."""

Play = Callable[..., Coroutine[Any, Any, None]]


@dataclass
class World:
    """What is outside of the bucket: who holds the source's lock and the executor's lease, and what people were told."""

    is_source_locked: bool = False
    is_leased: bool = False
    given: set[int] = field(default_factory=set)
    """Orders about tables whose numbers were told."""
    asked: set[str] = field(default_factory=set)
    accepted: set[str] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    """Runs that are cancelled, or will be."""


@dataclass
class Told:
    """What a unit's process was told."""

    rests: bool = False
    is_to_end: bool = False

    def request(self) -> None:
        self.is_to_end = True

    def pause(self, *, is_wanted: bool) -> None:
        self.rests = is_wanted


def known(key: str) -> Known | None:
    return {
        desired_key(UNIT): Known(DesiredRecord, desired_facts),
        PAUSED_TABLES.key: Known(PausedTables, lambda record: {f"table {oid}": True for oid in record.oids}),
        ORDERS.key: Known(TableOrders, lambda record: {f"order {each.number}": order_state(each) for each in record.orders}),
        SELECTION.key: Known(TableSelection, selection_facts),
        ACCEPTED.key: Known(AcceptedRecord, lambda record: {f"accepted {each.position}": True for each in record.acceptances}),
        RUN_REQUESTS.key: Known(RunRequests, run_facts),
    }.get(key)


def desired_facts(record: DesiredRecord) -> Facts:
    is_paused = record.state is Desired.PAUSED or record.paused_when_started
    return {"paused": is_paused or None, "stopped": (record.state is Desired.STOPPED) or None}


def order_state(order: Any) -> str:
    return "done" if order.done_at else "open"


def selection_facts(record: TableSelection) -> Facts:
    return dict.fromkeys(record.added, "added") | dict.fromkeys(record.removed, "removed")


def run_facts(record: RunRequests) -> Facts:
    requests: dict[str, object] = {f"request {each.id}": each.state.value for each in record.requests}
    return requests | {"runs paused": record.paused or None, "cancelled run": record.cancelled_run or None}


def sets(name: str, value: object) -> Callable[[str, object, object], bool]:
    """May have that fact be that value, and no other fact be another."""
    return lambda fact, before, after: fact == name and after == value


def goes_on(*prefixes: str) -> Callable[[str, object, object], bool]:
    """May bring facts of that kind forward."""

    def allows(fact: str, before: object, after: object) -> bool:
        return fact.startswith(prefixes) and ANY_ORDER[str(after)] >= ANY_ORDER.get(str(before), 0)

    return allows


def grows(fact: str, before: object, after: object) -> bool:
    return fact == "cancelled run" and int(str(after)) > int(str(before or 0))


def never(fact: str, before: object, after: object) -> bool:
    return False


def either(*some: Callable[[str, object, object], bool]) -> Callable[[str, object, object], bool]:
    return lambda fact, before, after: any(allows(fact, before, after) for allows in some)


async def order_unit(verb: UnitVerb, world: World, actor: Actor, bucket: StateBucket) -> None:
    await write_order(bucket, UNIT, (verb,), actor.name, "")


async def order_table(is_wanted: bool, world: World, actor: Actor, bucket: StateBucket) -> None:
    await write_pause(bucket, TablePause(("orders",), is_wanted), actor.name)


async def give(request: str, world: World, actor: Actor, bucket: StateBucket) -> None:
    world.given.add(await give_order(bucket, OrderVerb.RECOPY, ("orders",), request=request))


async def select(verb: str, world: World, actor: Actor, bucket: StateBucket) -> None:
    await SELECTION.change(bucket, lambda found: getattr(found, verb)("public.orders"))


async def decide(world: World, actor: Actor, bucket: StateBucket) -> None:
    position = Position(LSN(int(actor.name.rpartition(" ")[2]) + 1), 1)
    await accept(bucket, [position], "", skewed_now())
    world.accepted.add(f"accepted {position}")


async def pause_runs(world: World, actor: Actor, bucket: StateBucket) -> None:
    await pause(bucket)


async def resume_runs(world: World, actor: Actor, bucket: StateBucket) -> None:
    await resume(bucket)


async def cancel_run(world: World, actor: Actor, bucket: StateBucket) -> None:
    world.cancelled.add(await cancel(bucket))


async def ask(world: World, actor: Actor, bucket: StateBucket) -> None:
    request = await ask_for_run(bucket, actor.name, full=False)
    world.asked.add(request.id)


async def run_by_hand(world: World, actor: Actor, bucket: StateBucket) -> None:
    await run(world, actor, bucket, "")


async def execute(world: World, actor: Actor, bucket: StateBucket, looks: int = 3) -> None:
    """Whoever has the lease, and its runs."""
    if world.is_leased:
        return
    world.is_leased = True
    try:
        await _execute(world, actor, bucket, looks)
    finally:
        world.is_leased = False


async def _execute(world: World, actor: Actor, bucket: StateBucket, looks: int) -> None:
    taken = list[RunRequest]()

    def command(request: RunRequest) -> Command:
        taken.append(request)
        raise OSError("the run is played here")

    executor = RunExecutor("ratings", bucket, command)
    for _ in range(looks):
        try:
            await executor.look(EVERY_HOUR)
        except OSError:
            await run(world, actor, bucket, taken[-1].id)


async def run(world: World, actor: Actor, bucket: StateBucket, request: str) -> None:
    """The steps of ``pipeline_run`` between source and stream: what it reads of wishes, and writes of itself."""
    if world.is_source_locked:
        return
    world.is_source_locked = True
    try:
        await end_cancelled(bucket)
        if not request:
            await lift_pause(bucket)
        record = await load_pipeline(bucket) or PipelineRecord("ratings", "print", "pipeline-1")
        record = record.with_cancelled((await RUN_REQUESTS.load(bucket)).cancelled_run)
        left = record.unfinished
        if left is not None:
            made = replace(left, state=RunState.READING, attempt=left.attempt + 1, request=request)
        else:
            number = record.newest.number + 1 if record.newest else 1
            made = RunRecord(number, RunState.READING, False, skewed_now(), request=request)
        await store_pipeline(bucket, record.with_run(made))
        watch = WishWatch(bucket, made.number)
        for _ in range(2):
            if await watch.is_to_end():
                break
            publish(actor, made.number)
        await watch.look_last()
        if watch.ends_as is None:
            assert actor.seen[RUN_REQUESTS.key].get("cancelled run") != made.number
            await store_pipeline(bucket, record.finished(made, 0))
        else:
            await store_pipeline(bucket, record.with_run(made.ended(watch.ends_as, 0)))
    finally:
        world.is_source_locked = False


def publish(actor: Actor, run: int) -> None:
    """By what the bucket held when the run looked, not by what the run made of it."""
    wishes = actor.seen[RUN_REQUESTS.key]
    assert not wishes.get("runs paused"), "a run published in a pause"
    assert wishes.get("cancelled run") != run, "a cancelled run published"


async def carry_out(world: World, actor: Actor, bucket: StateBucket) -> None:
    """The replicator; one that lost its slot unawares may be at it too."""
    for order in (await ORDERS.load(bucket)).open:
        if await note_taken(bucket, order):
            await note_done(bucket, order, (TableOutcome("public.orders", False, f"by {actor.name}"),))


async def live(world: World, actor: Actor, bucket: StateBucket) -> None:
    """A unit's process, which obeys."""
    told, report = Told(), ProcessReport(UNIT, Pulse(), lambda: bucket)
    desired = DesiredState(UNIT, lambda: bucket, told, report)
    for _ in range(3):
        await desired.look()
        desired.apply()
        wished = actor.seen[desired_key(UNIT)]
        assert told.is_to_end == bool(wished.get("stopped"))
        if told.is_to_end:
            return
        assert told.rests == bool(wished.get("paused"))


PEOPLE: Mapping[str, tuple[Play, Callable[[str, object, object], bool]]] = {
    "pause": (partial(order_unit, UnitVerb.PAUSE), sets("paused", True)),
    "resume": (partial(order_unit, UnitVerb.RESUME), sets("paused", None)),
    "stop": (partial(order_unit, UnitVerb.STOP), sets("stopped", True)),
    "start": (partial(order_unit, UnitVerb.START), sets("stopped", None)),
    "pause table": (partial(order_table, True), sets(f"table {TABLE.oid}", True)),
    "resume table": (partial(order_table, False), sets(f"table {TABLE.oid}", None)),
    "give order": (partial(give, ""), goes_on("order")),
    "give order again": (partial(give, "key-1"), goes_on("order")),
    "add table": (partial(select, "add"), sets("public.orders", "added")),
    "remove table": (partial(select, "remove"), sets("public.orders", "removed")),
    "accept": (decide, lambda fact, before, after: fact.startswith("accepted") and before is None),
    "pause runs": (pause_runs, sets("runs paused", True)),
    "resume runs": (resume_runs, either(sets("runs paused", None), goes_on("request"))),
    "cancel run": (cancel_run, grows),
    "ask": (ask, goes_on("request")),
}
PROCESSES: Mapping[str, tuple[Play, Callable[[str, object, object], bool]]] = {
    "run by hand": (run_by_hand, sets("runs paused", None)),
    "executor": (execute, goes_on("request")),
    "replicator": (carry_out, goes_on("order")),
    "unit": (live, never),
}
EVERYBODY = {**PEOPLE, **PROCESSES}
ABOUT = (
    ("pause", "resume", "stop", "start", "pause table", "resume table", "unit"),
    ("give order", "give order again", "replicator", "add table", "remove table", "accept"),
    ("pause runs", "resume runs", "cancel run", "ask", "run by hand", "executor"),
)
"""Who writes the same records."""
SKEWS = (timedelta(days=-3), timedelta(), timedelta(days=3))
OLDER: Sequence[Mapping[str, Mapping[str, object]]] = (
    {},
    {RUN_REQUESTS.key: {"wish": "pause"}, desired_key(UNIT): {"state": "paused"}},
    {RUN_REQUESTS.key: {"wish": "cancel", "wish_run": 1}, desired_key(UNIT): {"state": "stopped"}},
)
"""What versions with other fields may have left."""
Before = tuple[Mapping[str, Mapping[str, object]], RunState | None]
"""Records, and how a run was left."""
LEFT = RunRecord(1, RunState.READING, False, "2026-01-01T00:00:00+00:00")


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each actor has its own."""
    for module in (run_executor, run_requests, orders):
        monkeypatch.setattr(module, "datetime", SkewedTime)
    for module in (table_orders, run_records):
        monkeypatch.setattr(module, "now", skewed_now)


@pytest.mark.usefixtures("clocks")
@pytest.mark.parametrize("about", ABOUT, ids=("units", "tables", "runs"))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cast=st.lists(st.integers(0, 99), min_size=3, max_size=8),
    skews=st.lists(st.sampled_from(SKEWS), min_size=8, max_size=8),
    choices=st.lists(st.integers(-1, 14), min_size=20, max_size=80),
    before=st.tuples(st.sampled_from(OLDER), st.sampled_from([None, *filter(lambda state: state.is_unfinished, RunState)])),
)
def test_nobody_takes_back_what_another_one_wished(
    nats_server: NatsServer, about: Sequence[str], cast: list[int], skews: list[timedelta], choices: list[int], before: Before
) -> None:
    casts = [(about[each % len(about)], skew) for each, skew in zip(cast, skews, strict=False)]
    asyncio.run(_play(nats_server, casts, choices, before))


async def _play(nats: NatsServer, casts: list[tuple[str, timedelta]], choices: list[int], before: Before) -> None:
    older, left = before
    names = GroupNames(f"w{uuid.uuid4().hex[:12]}")
    async with connected(nats.settings(), "test") as client:
        plain = StateBucket(client, names)
        await plain.make(1)
        try:
            await store_tables(plain, [TABLE], "UTF8")
            history = History(known)
            for key, record in older.items():
                await plain.put(key, record)
                history.begin(key, orjson.dumps(record))
            if left is not None:
                await store_pipeline(plain, PipelineRecord("ratings", "print", "pipeline-1").with_run(replace(LEFT, state=left)))
            world, actors = World(), list[Actor]()
            for number, (name, skew) in enumerate(casts):
                plays, allows = EVERYBODY[name]
                actor = Actor(f"{name} {number}", allows, skew)
                actor.start(plays(world, actor, SharedBucket(client, names, actor, history)))
                actors.append(actor)
            await play(actors, choices)
            await _settle(world, history, plain, partial(SharedBucket, client, names))
        finally:
            await plain.destroy()


async def _settle(world: World, history: History, plain: StateBucket, bucket: Callable[..., StateBucket]) -> None:
    """What survives, or is started again, obeys all that was told to be wished."""
    for name, more in (("executor", {"looks": 12}), ("replicator", {}), ("unit", {})):
        plays, allows = PROCESSES[name]
        actor = Actor(f"surviving {name}", allows, is_mortal=False)
        actor.start(plays(world, actor, bucket(actor, history), **more))
        await play([actor], ())
    assert all(history.current(ORDERS.key)[f"order {number}"] == "done" for number in world.given)
    assert world.accepted <= history.current(ACCEPTED.key).keys()
    wishes, record = history.current(RUN_REQUESTS.key), await load_pipeline(plain)
    for request in world.asked:
        assert wishes.get("runs paused") or wishes[f"request {request}"] == RequestState.DONE
    states = {each.number: each.state for each in (record.runs if record else ())}
    assert all(not states[number].is_unfinished for number in world.cancelled), states
