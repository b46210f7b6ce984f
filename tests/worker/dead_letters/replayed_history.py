"""A random history of one table whose target refuses some rows now and then, whose dead letters people replay in any portion, and
whose processes die between any two steps at the broker.

All parts are real but Spark, the replicator and the processes: the broker, the target, its sink, the filter, the registry, the
replay and what people's commands call. The source is a dictionary.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any

from pgsluice.console.dead import LetterSelection, ask_for_replay
from pgsluice.rules.transformation import UNTRANSFORMED
from pgsluice.shared.broker.dead_letter_stream import DeadLetterStream
from pgsluice.shared.errors import TransientError
from pgsluice.shared.rows.changes import MessageChanges
from pgsluice.shared.wire.names import GroupNames, replay_name
from pgsluice.shared.wire.table import ReplicaIdentity, Table, Value
from pgsluice.testing.batch import STREAM_CREATED, write_partition
from pgsluice.testing.changes_builder import AnyChange, Change, delete, insert, table, transaction, truncate, update
from pgsluice.worker.batches.ownership import NEVER_COPIED
from pgsluice.worker.dead_letters.filter import DeadLetterFilter, DiscardingWriter
from pgsluice.worker.dead_letters.registry import DeadLetterRegistry
from pgsluice.worker.dead_letters.rejection import RejectedChanges, Rejection, WriteAgain
from pgsluice.worker.dead_letters.replay import Replay
from pgsluice.worker.dead_letters.task_report import TaskReport
from pgsluice.worker.event_loop import EventLoopThread
from pgsluice.worker.sinks.postgres.sink import PostgresSink
from pgsluice.worker.sinks.sink import NOTHING_APPLIED, Applied, PartitionWriter, Receipt
from tests.worker.encoded_changes import body_of, decoded
from tests.worker.sinks.postgres.conftest import Target

KEYED = table("public.prices", "id bigint", "title text", "price integer")
KEYLESS = table("public.prices", "id bigint", "title text", "price integer", key=(), identity=ReplicaIdentity.FULL)
CHEAP, DEAR = b"10", b"5000"
ATTEMPTS = 10
LAST_ROUNDS = 50
EVERY = LetterSelection("", (), every=True)

Row = tuple[Value, ...]


class Killed(BaseException):
    """Of a process that dies now."""


class MortalJetStream:
    """That of a process to which ``end`` happens before its call number ``after``, which counts from 0."""

    def __init__(self, jetstream: Any, after: int, end: Callable[[], object]) -> None:
        self._jetstream = jetstream
        self._left = after
        self._end = end

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._jetstream, name)
        return self._counted(found) if name in ("publish", "delete_msg") else found

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*arguments: Any, **more: Any) -> Any:
            if not self._left:
                await asyncio.to_thread(self._end)
            self._left -= 1
            return await call(*arguments, **more)

        return counted


def _told(change: AnyChange) -> str:
    return f"{chr(change.operation)} {change.old} {change.new}" if isinstance(change, Change) else "T"


def _die() -> None:
    raise Killed


class ReplayedHistory:
    """One history, of ``source``'s table; ``names`` are of a group that has its streams. The target's table is made anew."""

    def __init__(
        self, choices: random.Random, loop: EventLoopThread, client: Any, names: GroupNames, target: Target, source: Table
    ) -> None:
        self.choices = choices
        self.steps: list[str] = []
        self._loop, self._client, self._names = loop, client, names
        self._target, self._table = target, source
        self._rows: dict[int, Row] = {}
        self._stream: list[bytes] = []
        self._applied: Applied = NOTHING_APPLIED
        self._is_refusing = False
        target.execute("DROP TABLE IF EXISTS prices")
        key = "PRIMARY KEY" if source.key else ""
        target.execute(f"CREATE TABLE prices (id bigint {key}, title text, price integer)")
        self._start()

    def walk(self, steps: int) -> None:
        """Takes so many steps, then lets everything be applied."""
        self._refuse()
        for _ in range(steps):
            self.choices.choice([self._change, self._change, self._apply, self._ask, self._ask, self._replay, self._refuse])()
        if self._is_refusing:
            self._refuse()
        self._note("end")
        for _ in range(LAST_ROUNDS):
            self._apply_once()
            if self._letters():
                self._loop.run(ask_for_replay(DeadLetterStream(self._client, self._names), EVERY))
                self._replay_once()
            elif self._applied.sequence == len(self._stream):
                return
        raise AssertionError("the letters do not come to an end:\n" + "\n".join(self.steps))

    def source(self) -> list[tuple[str | None, ...]]:
        texts = [tuple(value.decode() if isinstance(value, bytes) else None for value in row) for row in self._rows.values()]
        return sorted(texts, key=repr)

    def target(self) -> list[tuple[str | None, ...]]:
        return self._target.table("public", "prices")

    def _note(self, step: str) -> None:
        self.steps.append(step)

    def _start(self) -> None:
        """A process that takes over from the one before."""
        self._registry = DeadLetterRegistry(self._loop, self._client, self._names, "w", 100_000)
        self._sink = self._new_sink(self._names.group)
        self._applied = self._sink.open()
        self._registry.load()
        self._replays = Replay(self._registry, UNTRANSFORMED, lambda: self._new_sink(replay_name(self._names.group)))

    def _new_sink(self, name: str) -> PostgresSink:
        return self._target.new_sink(name)

    def _change(self) -> None:
        changes = [change for _ in range(self.choices.randint(1, 3)) if (change := self._random_change()) is not None]
        if changes:
            self._note(f"change {len(self._stream) + 1}: {[_told(each) for each in changes]}")
            self._stream.append(body_of(transaction(1000 * (len(self._stream) + 1), *changes)))

    def _random_change(self) -> AnyChange | None:
        choices, row = self.choices, self.choices.randint(1, 3)
        old = self._rows.get(row)
        price = choices.choice([CHEAP, CHEAP, DEAR])
        title = b"%d" % choices.randint(0, 99)
        if old is None:
            self._rows[row] = b"%d" % row, title, price
            return insert(self._table, *self._rows[row])
        match choices.choice(
            ["title", "title", "price", "price", "key", "delete", "truncate" if choices.random() < 0.2 else "title"]
        ):
            case "title":
                self._rows[row] = old[0], title, old[2]
                return update(self._table, *self._rows[row], old=None if self._table.key else old)
            case "price":
                self._rows[row] = old[0], old[1], price
                return update(self._table, *self._rows[row], old=None if self._table.key else old)
            case "key":
                free = [each for each in (1, 2, 3, 4) if each not in self._rows]
                if not free:
                    return None
                del self._rows[row]
                self._rows[free[0]] = b"%d" % free[0], old[1], old[2]
                return update(self._table, *self._rows[free[0]], old=old)
            case "delete":
                del self._rows[row]
                return delete(self._table, *old)
            case _:
                self._rows.clear()
                return truncate(self._table)

    def _refuse(self) -> None:
        self._is_refusing = not self._is_refusing
        self._note("refuse" if self._is_refusing else "accept")
        statement = "ADD CONSTRAINT cheap CHECK (price < 1000) NOT VALID" if self._is_refusing else "DROP CONSTRAINT cheap"
        self._target.execute(f"ALTER TABLE prices {statement}")

    def _ask(self) -> None:
        """A command that people interrupt, or that the worker does not wait for the end of."""
        letters = self._letters()
        if not letters:
            return
        chosen = self.choices.sample(letters, self.choices.randint(1, len(letters)))
        selection = LetterSelection("w", tuple(chosen), every=False)
        stream = DeadLetterStream(self._client, self._names)
        after, end = self.choices.randint(0, 6), self.choices.choice([_die, self._replay_once, self._replay_once])
        stream._jetstream = MortalJetStream(stream._jetstream, after, end)  # type: ignore[assignment]
        self._note(f"ask for {chosen}, {end.__name__} before step {after}")
        with contextlib.suppress(Killed):
            self._loop.run(ask_for_replay(stream, selection))

    def _apply(self) -> None:
        self._mortal(self._apply_once, "apply")

    def _replay(self) -> None:
        self._mortal(self._replay_once, "replay")

    def _mortal(self, work: Callable[[], None], name: str) -> None:
        stream = self._registry.stream
        jetstream = stream._jetstream
        after = self.choices.choice([1000, *range(8)])
        self._note(f"{name}, killed before step {after}")
        stream._jetstream = MortalJetStream(jetstream, after, _die)  # type: ignore[assignment]
        try:
            work()
        except Killed:
            self._sink.close()
            self._start()
        finally:
            stream._jetstream = jetstream

    def _replay_once(self) -> None:
        self._replays.run(self._applied)

    def _letters(self) -> list[str]:
        letters = self._loop.run(DeadLetterStream(self._client, self._names).letters("w"))
        return [str(stored.letter.position) for stored in letters]

    def _apply_once(self) -> None:
        """As ``BatchLoop`` does."""
        first = self._applied.sequence + 1
        bodies = self._stream[first - 1 :][: self.choices.randint(1, 4)]
        messages = [(decoded(sequence, body), body) for sequence, body in enumerate(bodies, first)]
        rejections: Sequence[Rejection] = ()
        for _ in range(ATTEMPTS if messages else 0):
            try:
                if rejections:
                    self._take_out(messages, rejections)
                    rejections = ()
                receipts, report = self._written(self._sink.writer(), messages)
                self._registry.take([report])
                self._registry.remove_truncated()
                self._applied = self._sink.commit(receipts, STREAM_CREATED)
                self._registry.settle()
                return
            except RejectedChanges as rejected:
                rejections = rejected.rejections
                self._sink.rejected()
            except (WriteAgain, TransientError):
                pass

    def _take_out(self, messages: Sequence[tuple[MessageChanges, bytes]], rejections: Sequence[Rejection]) -> None:
        self._registry.reject(rejections)
        _, report = self._written(DiscardingWriter(), messages)
        with contextlib.suppress(RejectedChanges, WriteAgain):
            self._registry.take([report])
        self._registry.check_found()

    def _written(
        self, writer: PartitionWriter, messages: Sequence[tuple[MessageChanges, bytes]]
    ) -> tuple[list[Receipt], TaskReport]:
        passage = DeadLetterFilter(self._registry.exclusions(NEVER_COPIED), "w")
        left = [passage.remainder(message, body) for message, body in messages]
        rejections: Sequence[Rejection] = ()
        receipts: list[Receipt] = []
        try:
            receipts = write_partition(writer, left)
        except RejectedChanges as rejected:
            rejections = rejected.rejections
        return receipts, TaskReport(tuple(passage.take_letters()), tuple(rejections), tuple(passage.take_truncated()))
