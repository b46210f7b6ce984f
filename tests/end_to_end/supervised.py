"""A process of the program under a supervisor, as systemd or Kubernetes would run it: started again whenever it ended."""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType
from typing import Self

from tests.servers import PgsluiceProcess

NEEDS_A_PERSON = frozenset({2, 70})
POLL_S = 0.05
PAUSE_S = 0.3


class Supervised:
    """Starts ``process`` again after any end but one that needs a person; ``ends`` counts exit codes (negative: signals).
    ``stopped_by`` is what ended it for good, an exit code or an error of the supervisor itself; None while there was none."""

    def __init__(self, process: PgsluiceProcess) -> None:
        self.process = process
        self.ends: Counter[int] = Counter()
        self.stopped_by: int | Exception | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self.process.start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()
        self.process.close()

    def _run(self) -> None:
        try:
            self._supervise()
        except Exception as error:  # noqa: BLE001  the test that waits for the process is to know
            self.stopped_by = error

    def _supervise(self) -> None:
        while not self._stopping.wait(POLL_S):
            if self.process.is_running:
                continue
            code = self.process.wait()
            self.ends[code] += 1
            if code in NEEDS_A_PERSON:
                self.stopped_by = code
                return
            if not self._stopping.wait(PAUSE_S):
                self.process.start()
