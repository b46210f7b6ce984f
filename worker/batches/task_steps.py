"""A task that takes long tells the driver of its steps: that it has taken a message, or written some of them.

The driver hears of a task's work when the task has ended, and could not tell one that works from one that stands still until
then. A step says nothing but that there was one. It may get lost; and who else may publish there can make a worker look busier
than it is, and do no other harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from nats.aio.client import Client
from nats.aio.msg import Msg

from pgsluice.shared.broker.stream_error import CLIENT_ERRORS
from pgsluice.shared.errors import TransientError
from pgsluice.shared.wire.names import GroupNames
from pgsluice.worker.batches.broker_connection import BrokerConnection

TELL_INTERVAL_S = 5.0

T = TypeVar("T")


class TaskSteps:
    """Those of one task of a batch of ``worker``. One that is shorter than TELL_INTERVAL_S tells nothing."""

    def __init__(self, connection: BrokerConnection, worker: str) -> None:
        self._connection = connection
        self._subject = connection.names.steps_subject(worker)
        self._told_at = time.monotonic()

    def each_of(self, items: Iterable[T]) -> Iterator[T]:
        """``items``, as they pass: each is a step."""
        for item in items:
            self._note()
            yield item

    def _note(self) -> None:
        now = time.monotonic()
        if now - self._told_at >= TELL_INTERVAL_S:
            self._told_at = now
            with suppress(TransientError, *CLIENT_ERRORS):  # what is wrong with NATS, the next message that is read says better
                self._connection.ask(_publish, self._subject)


async def _publish(client: Client, subject: str) -> None:
    await client.publish(subject)


async def listen_to_steps(client: Client, names: GroupNames, worker: str, moved: Callable[[], None]) -> None:
    """Has ``moved`` called for each step that a task of ``worker`` tells, until ``client`` is closed."""

    async def note(_: Msg) -> None:
        moved()

    await client.subscribe(names.steps_subject(worker), cb=note)
