"""The destination of a sink, for the contract's tests."""

from __future__ import annotations

from typing import Protocol

from pgsluice.worker.sinks.sink import Sink


class Destination(Protocol):
    def new_sink(self) -> Sink:
        """Returns a sink that is not open, like a process's that has just started. All have the same worker name and
        destination."""
        ...

    def delivered(self) -> list[int]:
        """Returns the ids of all rows of the table ``public.events`` that the destination holds, sorted as delivered,
        or by id if the destination keeps no sequence. Rows copied before their table was begun again are not among
        them."""
        ...

    def accounts(self) -> dict[int, str]:
        """Returns the notes of the rows of ``public.accounts`` by their ids, as who follows the destination knows them
        (``followed_accounts``)."""
        ...


class RefusingDestination(Destination, Protocol):
    def refuse(self, *events: int) -> None:
        """Makes the destination refuse these events, by their ids, from now on."""
        ...
