"""A process that has one batch of transactions applied, and dies at a call that it makes to Kafka's library, as if killed there.

    python -m tests.worker.sinks.kafka.dying_worker SETTINGS LAST CALL NUMBER before|after|delivered

SETTINGS is what ``run`` gives. ``delivered``: before the call, when the broker holds all that was produced. It ends with 0 when
there is nothing left up to the message LAST, or when the call does not come.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

from pgsluice.testing.batch import apply
from pgsluice.worker.sinks.kafka.sink import KafkaSink
from tests.worker.sinks.kafka.cluster import KafkaDestination, kafka_settings_of
from tests.worker.sinks.kafka.committed_history import transactions
from tests.worker.sinks.settings import worker_settings

BATCH_MESSAGES = 3


def run(destination: KafkaDestination, last: int, *death: str | int) -> int:
    """Returns how the process ended. ``death`` is CALL, NUMBER and when."""
    settings = json.dumps([destination.broker.bootstrap, destination.group, destination.changed])
    program = [sys.executable, "-m", "tests.worker.sinks.kafka.dying_worker"]
    return subprocess.run([*program, settings, *map(str, (last, *death))], timeout=300).returncode


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


def main(settings: str, last: int, name: str, number: int, when: str) -> None:
    bootstrap, group, changed = json.loads(settings)
    sink = KafkaSink(worker_settings(group), kafka_settings_of(bootstrap, group, **changed))
    die_at(name, number, when)
    applied = sink.open()
    first = applied.sequence + 1
    if first <= last:
        apply(sink, transactions(range(first, min(first + BATCH_MESSAGES, last + 1))))
    sink.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
