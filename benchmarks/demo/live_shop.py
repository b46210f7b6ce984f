"""The shop, replicated for as long as somebody looks, with the page of ``pgsluice server`` beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from benchmarks.demo import shop
from benchmarks.demo.shop_group import GROUP, DemoError, configuration, log_end, servers, wait_for_slot
from pgsluice.shared.wire.names import GroupNames
from tests.console.server.served import Served
from tests.servers import Database, PgsluiceProcess

WRITERS = 2
TRANSACTIONS_PER_S = 30.0
"""Of each writer: some 400 changes a second together, which a laptop does not hear."""


@dataclass(frozen=True, slots=True)
class LiveShop:
    """``processes`` are the replicator and the worker."""

    source: Database
    target: Database
    served: Served
    processes: tuple[PgsluiceProcess, PgsluiceProcess]

    def check(self) -> None:
        """Raises DemoError when a process has ended."""
        for process in (*self.processes, self.served.process):
            if not process.is_running:
                raise DemoError(f"a pgsluice process ended with exit code {process.wait()}:\n{log_end(process)}")


@contextlib.contextmanager
def live_shop() -> Iterator[LiveShop]:
    """Open while the context lasts, and known to the server by its document, so that its checks reach the databases."""
    with contextlib.ExitStack() as stack:
        source, target, nats = stack.enter_context(servers())
        shop.create_tables(source)
        shop.fill(source)
        keys = configuration(source, target, nats)
        directory = Path(stack.enter_context(TemporaryDirectory()))
        served = stack.enter_context(Served(nats.url, directory))
        with served.client() as client:
            answer = client.put(f"/groups/{GROUP}/document", json={"yaml": yaml.safe_dump(keys)})
            if answer.status_code != 201:
                raise DemoError(f"the server refused the group's document: {answer.text}")
        replicator = stack.enter_context(PgsluiceProcess("replicator", config=keys))
        wait_for_slot(source, GroupNames(GROUP).slot, replicator)
        worker = stack.enter_context(PgsluiceProcess("worker", "postgres", config=keys))
        writers = [shop.Writer(source, TRANSACTIONS_PER_S) for _ in range(WRITERS)]
        for writer in writers:
            writer.start()
            stack.callback(writer.stop)
        yield LiveShop(source, target, served, (replicator, worker))
