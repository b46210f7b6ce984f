"""What is asked of a pipeline's runs: one record, in the state bucket of the pipeline's group.

People, and schedules, ask for runs; whoever executes the pipeline (``console.executor``) carries the requests out, one after the
other. A request has an id: the key that a person's program gave, or the time of the tick. One id is one run, however often it is
asked for.

    request     set by                                             then
    requested   whoever asks                                       waits for an executor
    taken       the executor that starts its run                   ``RunRecord.request`` names it: an executor that comes after
                                                                   one which died finds there what became of it
    done        an executor, when the run has ended                ``run`` is the run, whose own state says how it ended
    refused     an executor, for what no run was begun for         ``reason`` says why

Beside them stands a *wish* for the run in hand, which it looks at between messages:

    run       nothing else is wished
    pause     it ends after its last message, as ``paused``; none is begun before somebody wishes ``run``
    cancel    that run, by its number, ends as ``cancelled``, and is not taken up again

Each write is compared with what was read, so two who ask at the same moment both count.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pgsluice.shared.broker.bucket import Bucket
from pgsluice.shared.broker.record import TimeText
from pgsluice.shared.errors import UsageError
from pgsluice.shared.pipelines.run_records import PIPELINE_KEY, PipelineRecord, RunState, load_pipeline

REQUESTS_KEY = "run_requests"
MOST_REQUESTS = 50
MOST_NOTES = 50


class Wish(enum.StrEnum):
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
    """Of ticks that begin no run."""

    MISSED = "missed"
    """Nobody executed the pipeline then."""
    SKIPPED = "skipped"
    """A run was in hand, or is paused."""


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
    """``wish_run`` is the run that is to be cancelled. ``requests`` are the newest, the oldest first."""

    wish: Wish = Wish.RUN
    wish_run: int = 0
    requests: tuple[RunRequest, ...] = ()
    ticks: Ticks = Ticks()

    @property
    def open(self) -> tuple[RunRequest, ...]:
        return tuple(each for each in self.requests if each.state.is_open)

    def find(self, request_id: str) -> RunRequest | None:
        return next((each for each in self.requests if each.id == request_id), None)

    def with_request(self, request: RunRequest) -> RunRequests:
        """In the place of what is known of it, or as the newest; the oldest that are closed go first."""
        if self.find(request.id) is not None:
            return replace(self, requests=tuple(request if each.id == request.id else each for each in self.requests))
        kept = (*self.requests, request)
        surplus = len(kept) - MOST_REQUESTS
        closed = [each for each in kept if not each.state.is_open][: max(0, surplus)]
        return replace(self, requests=tuple(each for each in kept if each not in closed))

    def wishes(self, run: int) -> Wish:
        """What is wished of the run of that number."""
        return Wish.RUN if self.wish is Wish.CANCEL and self.wish_run != run else self.wish


async def load_requests(bucket: Bucket) -> RunRequests:
    """Raises TerminalError when the record is not of this version's form."""
    entry = await bucket.read(REQUESTS_KEY, RunRequests)
    return RunRequests() if entry is None else entry.value


async def change_requests(bucket: Bucket, change: Callable[[RunRequests], RunRequests]) -> RunRequests:
    """What is written. ``change`` may be called several times."""
    return await bucket.change(REQUESTS_KEY, RunRequests, lambda known: change(RunRequests() if known is None else known))


async def ask_for_run(bucket: Bucket, request_id: str, *, full: bool, by: AskedBy = AskedBy.PERSON) -> RunRequest:
    """The request as it stands: one that was made under this id before is not made again. The bucket must be there. Raises
    UsageError when that one asked for something else."""
    made = RunRequest(request_id, full, by, datetime.now(UTC).isoformat())
    requests = await change_requests(bucket, lambda known: known if known.find(request_id) else known.with_request(made))
    request = requests.find(request_id)
    assert request is not None
    if request.full != full:
        raise UsageError(
            f"request '{request_id}' asked for {'a full' if request.full else 'an ordinary'} run before",
            "give each request a key of its own",
        )
    return request


async def pause(bucket: Bucket) -> None:
    """A run in hand ends at its next message, and none is begun before ``resume``."""
    await change_requests(bucket, lambda known: replace(known, wish=Wish.PAUSE, wish_run=0))


async def resume(bucket: Bucket) -> None:
    """Whoever executes the pipeline goes on: with a run that was paused, first of all."""
    record = await load_pipeline(bucket)
    left = None if record is None else record.left
    if left is not None and left.state is RunState.PAUSED and not (await load_requests(bucket)).open:
        await ask_for_run(bucket, f"resumed run {left.number}, attempt {left.attempt + 1}", full=False)
    await end_pause(bucket)


async def end_pause(bucket: Bucket) -> None:
    """The same without anything that is asked of an executor."""
    await change_requests(bucket, lambda known: replace(known, wish=Wish.RUN, wish_run=0))


async def cancel(bucket: Bucket) -> int:
    """The number of the run that ends as ``cancelled``: at once when nobody reads for it, or at its next message. Requests that
    wait go on. Raises UsageError when no run is in hand or left."""
    record = await load_pipeline(bucket)
    left = None if record is None else record.left
    if left is None:
        raise UsageError("no run is in hand, and none is left of one", "'pgsluice runs' shows what became of the newest")
    number = left.number
    await change_requests(bucket, lambda known: replace(known, wish=Wish.CANCEL, wish_run=number))
    if left.state is not RunState.READING:
        await note_cancelled(bucket, number)
    return number


async def note_cancelled(bucket: Bucket, number: int) -> None:
    """For a run that nobody reads for; nothing happens when it went on or ended meanwhile. Its ranges stay in the record, and
    the next run ends them in the stream."""

    def changed(known: PipelineRecord | None) -> PipelineRecord:
        assert known is not None
        left = known.left
        if left is None or left.number != number:
            return known
        return known.with_run(left.ended(RunState.CANCELLED, left.last_sequence, left.reason))

    await bucket.change(PIPELINE_KEY, PipelineRecord, changed)
