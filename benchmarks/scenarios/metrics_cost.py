"""Metrics: what do they cost a group that drains a backlog?

A pair in each repetition: the same backlog with and without ``metrics-listen``, in turns, so that neither is always the first.
With them tasks count changes by table, and each process is scraped every SCRAPE_INTERVAL_S, as by Prometheus, from the moment
when it may be: then what has to be looked up is looked up. The figure is the median of the ratios of five pairs
(``--repeat 5``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace

from benchmarks.backlog import RATE, REPLICATOR_ALONE, WORKER_ALONE, Backlog
from benchmarks.measurement import Options, Run, Scenario, at_least
from benchmarks.scenarios.backlog import workload
from benchmarks.servers import start_servers
from tests.endpoints import address_of, ask
from tests.servers import PgsluiceProcess

NAME = "metrics_cost"
ROWS = 5_000_000
"""Of fewer a moment at the start or at the end is a hundredth."""
SCRAPE_INTERVAL_S = 15.0
SCRAPE_TIMEOUT_S = 10.0
OFF_RATIO = "metrics_off_ratio"
"""The rate as a share of the rate without metrics, in the same repetition."""

KEYS: dict[bool, dict[str, object]] = {False: {}, True: {"metrics-listen": "127.0.0.1:0"}}


def measure(options: Options) -> Iterator[Run]:
    with start_servers() as servers:
        backlog = Backlog(servers, NAME, workload(options.rows or ROWS))
        groups = {
            (repetition, shown): backlog.group(f"metrics_{'on' if shown else 'off'}_{repetition}", **KEYS[shown])
            for repetition in options.repetitions
            for shown in KEYS
        }
        backlog.write()
        for repetition in options.repetitions:
            runs: dict[bool, tuple[Run, Run]] = {}
            for shown in (False, True) if repetition % 2 else (True, False):
                beside = scraping if shown else nullcontext
                runs[shown] = backlog.drain_one_by_one(groups[repetition, shown], repetition, beside=beside)
            yield from _compared(runs)


@contextmanager
def scraping(process: PgsluiceProcess) -> Iterator[None]:
    ending = threading.Event()

    def scrape() -> None:
        address = address_of(process)
        while True:
            with suppress(OSError):  # it is suspended, or ends
                ask(address, "/metrics", timeout_s=SCRAPE_TIMEOUT_S)
            if ending.wait(SCRAPE_INTERVAL_S):
                return

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(SCRAPE_TIMEOUT_S)


def _compared(runs: dict[bool, tuple[Run, Run]]) -> Iterator[Run]:
    for off, on in zip(runs[False], runs[True], strict=True):
        on.figures[OFF_RATIO] = on.figures[RATE] / off.figures[RATE]
        yield replace(off, contestant=f"{off.contestant}, metrics off")
        yield replace(on, contestant=f"{on.contestant}, metrics on")


SCENARIO = Scenario(
    name=NAME,
    title="a backlog with and without metrics",
    goals=(
        at_least(f"{REPLICATOR_ALONE}, metrics on", OFF_RATIO, 0.99),
        at_least(f"{WORKER_ALONE}, metrics on", OFF_RATIO, 0.99),
    ),
    plotted=(RATE,),
    measure=measure,
)
