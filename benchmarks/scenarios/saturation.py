"""Small commits at rising rates: up to which one is a row visible within a second of its commit, 99 times of 100?

The rates rise until that is over, or until pgbench, which shares the machine, commits less than it should
(``benchmarks.steady_load`` says how a rate is measured). What ended it is the figure of the contestant's *limit*:
``p99_over_1s_commits_per_s``, between the last rate within a second and the first beyond, or ``generator_commits_per_s``, what
pgbench achieved. ``sustained_commits_per_s`` is the highest rate that was kept within a second.

Commits do not wait for the disk, so that they cost a third and the machine is left to who replicates them; the source writes its
WAL every 10 ms instead, which is in all latencies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.measurement import Options, Run, Scenario
from benchmarks.steady_load import CONTESTANTS, steady_load, steady_source

NAME = "saturation"
COMMITS_PER_S = (100, 1_000, 2_500, 5_000, 7_500, 10_000, 15_000, 20_000, 30_000, 40_000)
SECONDS = 10.0
LONGEST_MS = 1000.0
KEPT_UP = 0.95
"""The share of a rate below which pgbench has not kept up."""

SOURCE_SETTINGS = {"synchronous_commit": "off", "wal_writer_delay": "10ms"}


def measure(options: Options) -> Iterator[Run]:
    rates = options.commits_per_s or COMMITS_PER_S
    with steady_source(SOURCE_SETTINGS) as (servers, source):
        for repetition in options.repetitions:
            for contestant in CONTESTANTS:
                measured: list[dict[str, float]] = []
                with steady_load(contestant, servers, source, repetition) as load:
                    for rate in rates:
                        run = load.measure(NAME, repetition, rate, options.seconds or SECONDS)
                        yield run
                        measured.append(run.figures | {"rate": rate})
                        if _is_saturated(measured[-1]):
                            break
                yield Run(NAME, f"{contestant}, limit", repetition, limit(measured), 0)


def limit(measured: Sequence[dict[str, float]]) -> dict[str, float]:
    """The figures of a contestant whose ``measured`` rates rise; the last may be the one that is too much."""
    within = [each for each in measured if each["p99_ms"] <= LONGEST_MS]
    last = measured[-1]
    found = {"sustained_commits_per_s": max((each["commits_per_s"] for each in within), default=0.0)}
    if last["p99_ms"] > LONGEST_MS:
        before = within[-1] if within else {"commits_per_s": 0.0, "p99_ms": 0.0}
        share = (LONGEST_MS - before["p99_ms"]) / (last["p99_ms"] - before["p99_ms"])
        found["p99_over_1s_commits_per_s"] = before["commits_per_s"] + share * (last["commits_per_s"] - before["commits_per_s"])
    if last["commits_per_s"] < KEPT_UP * last["rate"]:
        found["generator_commits_per_s"] = last["commits_per_s"]
    return found


def _is_saturated(figures: dict[str, float]) -> bool:
    return figures["p99_ms"] > LONGEST_MS or figures["commits_per_s"] < KEPT_UP * figures["rate"]


SCENARIO = Scenario(
    name=NAME,
    title="commits of one row at rising rates, until 1 in 100 is visible after more than a second",
    goals=(),
    plotted=("p50_ms", "p99_ms"),
    measure=measure,
    over="commits_per_s",
)
