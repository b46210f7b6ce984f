"""A process that has one batch of events applied, and dies at a call that it makes to Kafka's library, as if killed there.

    python -m tests.worker.sinks.kafka.dying_worker BOOTSTRAP GROUP LAST CALL NUMBER before|after|delivered

``delivered``: before the call, when the broker holds all that was produced. It ends with 0 when there is nothing left up to the
message LAST, or when the call does not come.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pgsluice.testing.batch import apply
from pgsluice.testing.tried_batches import batch
from pgsluice.worker.sinks.kafka.sink import KafkaSink
from tests.worker.sinks.kafka.cluster import kafka_settings_of
from tests.worker.sinks.settings import worker_settings

BATCH_MESSAGES = 3


def die_at(name: str, number: int, when: str) -> None:
    """At the call ``number`` (from 1) of that name."""
    event_of_death, left = ("c_return" if when == "after" else "c_call"), number

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        if event == event_of_death and getattr(argument, "__name__", "") == name:
            left -= 1
            if left == 0:
                if when == "delivered":
                    argument.__self__.flush(60)
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def main(bootstrap: str, group: str, last: int, name: str, number: int, when: str) -> None:
    sink = KafkaSink(worker_settings(group), kafka_settings_of(bootstrap, group))
    die_at(name, number, when)
    applied = sink.open()
    first = applied.sequence + 1
    if first <= last:
        messages = range(first, min(first + BATCH_MESSAGES, last + 1))
        apply(sink, batch(*([n] for n in messages)))
    sink.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]), sys.argv[6])
