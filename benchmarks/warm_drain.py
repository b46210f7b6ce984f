"""A warm worker of some sink, and a backlog that it drains."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from benchmarks import data
from benchmarks.data import EVENTS, WARM_UP
from benchmarks.group import Group, stop
from benchmarks.processes import WORKER, ProcessWatch, Usage, suspended
from benchmarks.servers import Servers


def drained(
    servers: Servers, group: Group, sink: str, rows: tuple[int, int], more: Mapping[str, int], wait: Callable[[int], None]
) -> tuple[float, dict[str, Usage]]:
    """How long the worker takes for a backlog of inserts that is in the group's stream, in transactions of 1,000 rows, and what
    that costs.

    ``rows`` are those of the warm-up and of the backlog. The worker is suspended until the stream holds the backlog. ``wait``
    returns when the sink holds so many rows in all, ``more`` are further processes that are watched.
    """
    warm_up, backlog = rows
    data.create_tables(group.source)
    group.publish_until()
    data.insert_in_parts(group.source, WARM_UP, warm_up)
    group.publish_until()
    with group.command("worker", sink) as worker:
        wait(warm_up)
        with suspended(worker.pid):
            data.insert_in_parts(group.source, EVENTS, backlog)
            group.publish_until()
            servers.settle()
            watch = ProcessWatch(servers.roots() | {WORKER: worker.pid} | dict(more)).start()
            began_at = time.monotonic()
        wait(warm_up + backlog)
        elapsed_s = time.monotonic() - began_at
        watch.stop()
        stop(worker)
    return elapsed_s, watch.usage()
