"""What a test does beside itself."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class BackgroundThread(ABC):
    """Works from ``start`` until ``stop``, which raises what went wrong."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        if self._errors:
            raise self._errors[0]

    def _guarded(self) -> None:
        try:
            self._work(self._stopping)
        except BaseException as error:  # noqa: BLE001  raised by stop
            self._errors.append(error)

    @abstractmethod
    def _work(self, stopping: threading.Event) -> None:
        """Returns soon after ``stopping`` is set."""
