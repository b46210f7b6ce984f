"""Small commits at steady rates: how long after a commit is its row visible at the target?

``benchmarks.steady_load`` says how that is measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.measurement import Options, Run, Scenario, at_most
from benchmarks.steady_load import CONTESTANTS, PGSLUICE, steady_load, steady_source

NAME = "latency"
COMMITS_PER_S = (100, 1_000, 5_000)
SECONDS = 20.0


def measure(options: Options) -> Iterator[Run]:
    with steady_source() as (servers, source):
        for repetition in options.repetitions:
            for contestant in CONTESTANTS:
                with steady_load(contestant, servers, source, repetition) as load:
                    for rate in options.commits_per_s or COMMITS_PER_S:
                        yield load.measure(NAME, repetition, rate, options.seconds or SECONDS)


SCENARIO = Scenario(
    name=NAME,
    title="commits of one row at a steady rate, from the commit to its row being visible",
    goals=tuple(
        at_most(f"{PGSLUICE}, {rate}/s", figure, limit)
        for rate, *limits in (("100", 60, 130), ("1,000", 80, 200), ("5,000", 150, 400))
        for figure, limit in zip(("p50_ms", "p99_ms"), limits, strict=True)
    ),
    plotted=("p50_ms", "p99_ms"),
    measure=measure,
)
