"""Progress reports of long tasks to the driver: a message was taken, or some were written.

The driver gets a task's answers when the task has ended, and could not distinguish a working task from a stuck one
until then. A step has no content. It may get lost; another publisher there can make a worker seem busier than it is,
and do no other harm.
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
    """The steps of one task of a batch of ``worker``. A task shorter than TELL_INTERVAL_S reports none."""

    def __init__(self, connection: BrokerConnection, worker: str) -> None:
        self._connection = connection
        self._subject = connection.names.steps_subject(worker)
        self._told_at = time.monotonic()

    def each_of(self, items: Iterable[T]) -> Iterator[T]:
        """Yields ``items``, as they pass: each is a step."""
        for item in items:
            self._note()
            yield item

    def _note(self) -> None:
        now = time.monotonic()
        if now - self._told_at >= TELL_INTERVAL_S:
            self._told_at = now
            with suppress(TransientError, *CLIENT_ERRORS):  # problems with NATS are reported better when the next message is read
                self._connection.ask(_publish, self._subject)


async def _publish(client: Client, subject: str) -> None:
    await client.publish(subject)


async def listen_to_steps(client: Client, names: GroupNames, worker: str, moved: Callable[[], None]) -> None:
    """Calls ``moved`` for each step that a task of ``worker`` reports, until ``client`` is closed."""

    async def note(_: Msg) -> None:
        moved()

    await client.subscribe(names.steps_subject(worker), cb=note)
