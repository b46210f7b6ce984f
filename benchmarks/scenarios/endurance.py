"""Hours of load: does memory grow, and does the worker keep up?

Each transaction inserts a row, updates an older one and deletes a much older one, at a steady rate, so the table stops growing.
Every SAMPLE_INTERVAL_S the memory of every process is read (resident, and with shared pages shared out; by role, with the number
of its processes), and the lag: the age of the newest row at the target. The samples are in the JSON file. Growth is the slope of
the line that fits the samples best, after the first ten minutes (of a shorter run: after the first third).
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from benchmarks import data
from benchmarks.data import EVENTS, WARM_UP, TargetWatch
from benchmarks.group import DEADLINE_S, Group, stop
from benchmarks.measurement import Options, Run, Scenario
from benchmarks.process_memory import RoleMemory, by_role
from benchmarks.processes import REPLICATOR, WORKER, ProcessWatch
from benchmarks.servers import Servers
from benchmarks.steady_load import INSERT, SteadyWriter, percentiles, steady_source
from tests.servers import Database, PgsluiceProcess

NAME = "endurance"
GROUP = "group"
NATS = "nats"
SECONDS = 3600.0
TRANSACTIONS_PER_S = 500
SAMPLE_INTERVAL_S = 10.0
SAMPLES_AT_LEAST = 9
WARM_UP_S = 600.0
WARM_UP_SHARE = 1 / 3

_SCRIPT = f"""
BEGIN;
{INSERT} RETURNING id \\gset
UPDATE {EVENTS} SET amount = amount + 1, note = md5(note) WHERE id = :id - 1000;
DELETE FROM {EVENTS} WHERE id = :id - 100000;
END;
"""
_APPLIED = "SELECT changes FROM pgsluice.applied"


def measure(options: Options) -> Iterator[Run]:
    rate = options.commits_per_s[0] if options.commits_per_s else TRANSACTIONS_PER_S
    for repetition in options.repetitions:
        with steady_source() as (servers, source):
            yield from _endure(servers, source, repetition, rate, options.seconds or SECONDS)


def _endure(servers: Servers, source: Database, repetition: int, rate: int, seconds: float) -> Iterator[Run]:
    target = servers.target.create_database("target")
    data.create_tables(target)
    group = Group(NAME, servers, source, target)
    group.publish_until()  # makes what a worker needs
    with group.replicator() as replicator, group.worker() as worker, TargetWatch(target) as seen:
        processes = (replicator, worker)
        replicator.wait_for_log("replicating")
        roots = {REPLICATOR: replicator.pid, WORKER: worker.pid}
        with SteadyWriter(source, rate, _SCRIPT):
            seen.wait_for_first_row(EVENTS, processes)
            with ProcessWatch(servers.roots() | roots) as watch:
                samples = _samples(seen, roots | {NATS: servers.nats.pid}, processes, seconds)
        data.insert(source, WARM_UP, 1)
        seen.wait_for_row(WARM_UP, 1, processes, DEADLINE_S)
        stop(replicator, worker)
    data.require_equal(source, target, EVENTS, WARM_UP)
    [(changes,)] = target.execute(_APPLIED)
    lags = percentiles(sorted(each["lag_s"] for each in samples), "_lag_s")
    yield Run(NAME, GROUP, repetition, growth(samples, GROUP) | lags, changes, watch.usage(), samples)
    for role in sorted({name.removesuffix(" pss_mb") for each in samples for name in each if name.endswith(" pss_mb")} - {GROUP}):
        yield Run(NAME, role, repetition, growth(samples, role), 0)


def _samples(
    seen: TargetWatch, roots: Mapping[str, int], processes: tuple[PgsluiceProcess, ...], seconds: float
) -> list[dict[str, float]]:
    interval_s = min(SAMPLE_INTERVAL_S, seconds / SAMPLES_AT_LEAST)
    began_at = time.monotonic()
    samples: list[dict[str, float]] = []
    while len(samples) * interval_s <= seconds:
        time.sleep(max(0.0, began_at + len(samples) * interval_s - time.monotonic()))
        data.ended(processes)
        sample = {"at_s": time.monotonic() - began_at, "lag_s": seen.lag_s(EVENTS)} | memory(roots)
        samples.append(sample)
        print(
            f"  {sample['at_s']:,.0f} s: lag {sample['lag_s']:.2f} s, group {sample[f'{GROUP} pss_mb']:,.1f} MB", file=sys.stderr
        )
    return samples


def memory(roots: Mapping[str, int]) -> dict[str, float]:
    """Of each role, and of all processes but the server's."""
    memories = by_role(roots)
    memories[GROUP] = [each for role, found in memories.items() if role != NATS for each in found]
    figures: dict[str, float] = {}
    for role, found in memories.items():
        together = RoleMemory.of(found)
        figures |= {f"{role} processes": together.processes, f"{role} rss_mb": together.rss_bytes / 1e6}
        figures[f"{role} pss_mb"] = together.pss_bytes / 1e6
    return figures


def growth(samples: Sequence[Mapping[str, float]], role: str) -> dict[str, float]:
    """Of one role. A sample without it counts as 0: all its processes were gone."""
    last_s = samples[-1]["at_s"]
    since_s = min(WARM_UP_S, WARM_UP_SHARE * last_s)
    fitted = [each for each in samples if each["at_s"] >= since_s]
    hours = [each["at_s"] / 3600 for each in fitted]
    figures: dict[str, float] = {}
    for kind in ("pss_mb", "rss_mb"):
        sizes = [each.get(f"{role} {kind}", 0.0) for each in fitted]
        figures |= {f"{kind}_per_h": statistics.linear_regression(hours, sizes).slope, f"first_{kind}": sizes[0]}
        figures |= {f"last_{kind}": sizes[-1]}
    return figures


SCENARIO = Scenario(
    name=NAME,
    title="memory and lag of a group over an hour of load",
    goals=(),
    plotted=("pss_mb", "lag_s"),
    measure=measure,
    is_long=True,
)
