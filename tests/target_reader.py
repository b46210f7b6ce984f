"""A reader of a database that looks all the time, as an application at the target does."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self

import psycopg

from tests.servers import Database


class Reader(ABC):
    """Looks until its context is left. A server that goes away is looked for until it is back."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()

    @abstractmethod
    def look(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        """Looks once. A psycopg.OperationalError begins a new session."""

    def _read(self) -> None:
        while not self._stopping.wait(0.1):
            with contextlib.suppress(psycopg.OperationalError), self._database.connect() as connection:
                while not self._stopping.wait(0.01):
                    self.look(connection)
