"""Where a sink writes to, as the contract's tests see it."""

from __future__ import annotations

from typing import Protocol

from pgsluice.worker.sinks.sink import Sink


class Destination(Protocol):
    def new_sink(self) -> Sink:
        """A sink that is not open, like that of a process just started. All have the same worker name and destination."""
        ...

    def delivered(self) -> list[int]:
        """The ids of all rows of the table ``public.events`` that the destination holds, in the order in which they were
        delivered, or of their ids where the destination knows no order. What was copied before its table was begun anew is not
        among them."""
        ...

    def accounts(self) -> dict[int, str]:
        """The notes of the rows of ``public.accounts`` by their ids, as who follows the destination knows them
        (``followed_accounts``)."""
        ...


class RefusingDestination(Destination, Protocol):
    def refuse(self, *events: int) -> None:
        """From now on these events, by their ids, are not taken."""
        ...
