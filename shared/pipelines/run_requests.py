"""Requests for a pipeline's runs: one record, in the state bucket of the pipeline's group.

Users and schedules request runs; an executor (``console.executor``) carries the requests out, one after the other. A
request has an id: the key that a client gave, or the time of the tick. One id is one run, however often it is asked
for.

    request     set by                                             then
    requested   a client                                           waits for an executor
    taken       the executor that starts its run                   ``RunRecord.request`` names it: an executor that comes after
                                                                   one which died finds its outcome there
    done        an executor, when the run has ended                ``run`` is the run, whose own state is its outcome
    refused     an executor, for what no run was begun for         ``reason`` is why

Two more facts are in the record. A run reads both between messages; neither erases the other:

    paused           the current run ends after its last message, as ``paused``, and none is begun. ``resume`` lifts it, and so
                     does a user who runs the pipeline; a cancel does not
    cancelled_run    that run, by its number, ends as ``cancelled``, and is not taken up again. Nothing lifts it: a process
                     that may take up a run checks first (``with_cancelled``)

Each write is compared with what was read, so when two clients write at the same moment, both apply.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pgsluice.shared.broker.bucket import Bucket
from pgsluice.shared.broker.record import TimeText
from pgsluice.shared.broker.wishes import WishKey
from pgsluice.shared.errors import UsageError
from pgsluice.shared.pipelines.run_records import PIPELINE_KEY, RunState, load_pipeline

MOST_REQUESTS = 50
MOST_NOTES = 50


class RunWish(enum.StrEnum):
    """The wish for a single run."""

    RUN = "run"
    PAUSE = "pause"
    CANCEL = "cancel"


class AskedBy(enum.StrEnum):
    PERSON = "person"
    SCHEDULE = "schedule"


class RequestState(enum.StrEnum):
    REQUESTED = "requested"
    TAKEN = "taken"
    DONE = "done"
    REFUSED = "refused"

    @property
    def is_open(self) -> bool:
        return self in (RequestState.REQUESTED, RequestState.TAKEN)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """``run`` is 0 as long as none is known to be the request's."""

    id: str
    full: bool
    by: AskedBy
    requested_at: TimeText
    state: RequestState = RequestState.REQUESTED
    run: int = 0
    reason: str = ""


class TickOutcome(enum.StrEnum):
    """Why a scheduled tick started no run."""

    MISSED = "missed"
    """No process executed the pipeline then."""
    SKIPPED = "skipped"
    """A run was active, or is paused."""


@dataclass(frozen=True, slots=True)
class TickNote:
    """``count`` ticks, of which ``at`` is the last one."""

    at: TimeText
    outcome: TickOutcome
    count: int = 1
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ticks:
    """``schedule`` is its text, which holds since ``since``. ``last`` is the tick up to which all are accounted for, ``next`` the
    one that comes. ``missed`` and ``skipped`` count all of them, ``notes`` are the newest."""

    schedule: str = ""
    since: TimeText = ""
    last: TimeText = ""
    next: TimeText = ""
    missed: int = 0
    skipped: int = 0
    notes: tuple[TickNote, ...] = ()

    def with_note(self, note: TickNote) -> Ticks:
        missed = self.missed + (note.count if note.outcome is TickOutcome.MISSED else 0)
        skipped = self.skipped + (note.count if note.outcome is TickOutcome.SKIPPED else 0)
        return replace(self, missed=missed, skipped=skipped, notes=(*self.notes, note)[-MOST_NOTES:])


@dataclass(frozen=True, slots=True)
class RunRequests:
    """``requests`` are the newest, the oldest first. ``wish`` and ``wish_run`` are the one field that versions before
    ``paused`` wrote, and still read: a pause, or else the cancel."""

    wish: RunWish = RunWish.RUN
    wish_run: int = 0
    requests: tuple[RunRequest, ...] = ()
    ticks: Ticks = Ticks()
    paused: bool = False
    cancelled_run: int = 0

    def __post_init__(self) -> None:
        paused = self.paused or self.wish is RunWish.PAUSE
        cancelled = max(self.cancelled_run, self.wish_run if self.wish is RunWish.CANCEL else 0)
        wish = RunWish.PAUSE if paused else RunWish.CANCEL if cancelled else RunWish.RUN
        facts = {
            "paused": paused,
            "cancelled_run": cancelled,
            "wish": wish,
            "wish_run": cancelled if wish is RunWish.CANCEL else 0,
        }
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    @property
    def open(self) -> tuple[RunRequest, ...]:
        return tuple(each for each in self.requests if each.state.is_open)

    def find(self, request_id: str) -> RunRequest | None:
        return next((each for each in self.requests if each.id == request_id), None)

    def with_request(self, request: RunRequest) -> RunRequests:
        """Returns the requests with ``request`` replacing the one of its id, or as the newest; the oldest closed ones
        are removed first."""
        if self.find(request.id) is not None:
            return replace(self, requests=tuple(request if each.id == request.id else each for each in self.requests))
        kept = (*self.requests, request)
        surplus = len(kept) - MOST_REQUESTS
        closed = [each for each in kept if not each.state.is_open][: max(0, surplus)]
        return replace(self, requests=tuple(each for each in kept if each not in closed))

    def wishes(self, run: int) -> RunWish:
        """Returns the wish for the run of that number."""
        if run == self.cancelled_run:
            return RunWish.CANCEL
        return RunWish.PAUSE if self.paused else RunWish.RUN

    def resumed(self) -> RunRequests:
        """Lifts the pause; what is cancelled stays so."""
        return replace(self, paused=False, wish=RunWish.RUN)


RUN_REQUESTS = WishKey("run_requests", RunRequests())


async def ask_for_run(bucket: Bucket, request_id: str, *, full: bool, by: AskedBy = AskedBy.PERSON) -> RunRequest:
    """Returns the request's current state: one that was made under this id before is not made again. The bucket must
    exist. Raises UsageError when that one asked for something else."""
    made = _new_request(request_id, full=full, by=by)
    entry = await RUN_REQUESTS.change(bucket, lambda known: known if known.find(request_id) else known.with_request(made))
    request = entry.value.find(request_id)
    assert request is not None
    if request.full != full:
        raise UsageError(
            f"request '{request_id}' asked for {'a full' if request.full else 'an ordinary'} run before",
            "use a separate key for each request",
        )
    return request


async def pause(bucket: Bucket) -> None:
    """Pauses the pipeline: a current run ends at its next message, and none begins before ``resume``."""
    await RUN_REQUESTS.change(bucket, lambda known: replace(known, paused=True))


async def resume(bucket: Bucket) -> None:
    """Resumes the pipeline: its executor continues, with a paused run first."""
    record = await load_pipeline(bucket)
    left = None if record is None else record.unfinished

    def resumed(known: RunRequests) -> RunRequests:
        known = known.resumed()
        if left is None or left.state is not RunState.PAUSED or known.wishes(left.number) is RunWish.CANCEL or known.open:
            return known
        request_id = f"resumed run {left.number}, attempt {left.attempt + 1}"
        return known if known.find(request_id) else known.with_request(_new_request(request_id, full=False, by=AskedBy.PERSON))

    await RUN_REQUESTS.change(bucket, resumed)


async def lift_pause(bucket: Bucket) -> None:
    """Lifts the pause as ``resume`` does, but without queueing a run: a user runs the pipeline now."""
    await RUN_REQUESTS.change(bucket, RunRequests.resumed)


async def cancel(bucket: Bucket) -> int:
    """Cancels the current or unfinished run; returns its number. It ends at once when no process reads for it, or at
    its next message. Waiting requests continue. Raises UsageError when there is no such run."""
    record = await load_pipeline(bucket)
    left = None if record is None else record.unfinished
    if left is None:
        raise UsageError("no run is in progress, and none is unfinished", "'pgsluice runs' shows the result of the newest")
    number = left.number
    await RUN_REQUESTS.change(bucket, lambda known: replace(known, cancelled_run=max(known.cancelled_run, number)))
    if left.state is not RunState.READING:
        await end_cancelled(bucket)
    return number


async def end_cancelled(bucket: Bucket) -> None:
    """Ends an unfinished run as ``cancelled`` when a user cancelled it; for a process that keeps others from reading.
    Its ranges stay in the record, and the next run ends them in the stream."""
    number = (await RUN_REQUESTS.load(bucket)).cancelled_run
    record = await load_pipeline(bucket)
    if record is not None:
        await bucket.change(PIPELINE_KEY, record, lambda known: known.with_cancelled(number))


def _new_request(request_id: str, *, full: bool, by: AskedBy) -> RunRequest:
    return RunRequest(request_id, full, by, datetime.now(UTC).isoformat())
