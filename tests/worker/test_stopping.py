"""A stop that is asked for by a signal, whatever the main thread does just then."""

from __future__ import annotations

import subprocess
import sys

INTERRUPTED_WAITS = """
import signal
from pgsluice.shared.process.pulse import Pulse
from pgsluice.worker.stopping import StopRequested, WorkerStopping


class AtOnce:
    waiting_for = ""

    def pause_after(self, error):
        return 0.0


for turn in range(300):
    stopping = WorkerStopping(Pulse())
    signal.signal(signal.SIGALRM, lambda *_: stopping.request())
    signal.setitimer(signal.ITIMER_REAL, 1e-6 + turn % 97 * 1e-6)
    try:
        stopping.wait_for(lambda: None, AtOnce())
    except StopRequested:
        continue
print("each ended")
"""


def test_a_signal_between_any_two_instructions_of_a_wait_ends_it() -> None:
    """An event's lock may be held by the very thread that a handler interrupts."""
    waits = subprocess.run([sys.executable, "-c", INTERRUPTED_WAITS], capture_output=True, text=True, timeout=60, check=False)
    assert (waits.stdout, waits.stderr) == ("each ended\n", "")
