"""``python -m benchmarks.page FILE.json …``: the page ``docs/benchmarks.md`` with its plots, from what ``benchmarks.run`` wrote.

Of a scenario that is in several files the last one counts.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks import backlog
from benchmarks.bar_chart import Bar, BarGroup, draw
from benchmarks.measurement import NATIVE, Run, Scenario
from benchmarks.processes import Usage
from benchmarks.scenarios import SCENARIOS
from benchmarks.summary import by_contestant, costs, figures, judge, shown, shown_goal

DIRECTORY = Path(__file__).resolve().parents[1] / "docs"
PAGE = "benchmarks.md"
PLOTS = "benchmarks"

_INTRODUCTION = """\
# Benchmarks

Every number here was measured by a command that is shown below, on servers that it starts itself, and can be measured again on
any machine. Source, target, NATS, replicator and worker share that machine's cores. Native logical replication runs in turn with
pgsluice, on the same servers and the same data. Each run ends with a comparison of source and target by checksum, and one that
differs fails everything.

Values are medians over the repetitions, with the least and the most. A *ratio* is the share of what native replication achieved
in the same repetition: over 1 pgsluice is faster. *CPU* is spent within the measured time; memory is the peak. Beside the parts
of the pipeline there are *benchmark*, what looks for the rows, and *elsewhere*, the rest of the machine: where it is large,
somebody else was using the machine.

This page is made by `python -m benchmarks.page FILE.json …`; what it says comes from the files alone.
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One scenario, with its runs and the document they come from."""

    scenario: Scenario
    runs: list[Run]
    document: dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description="Write the page of results and its plots.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what benchmarks.run --json wrote")
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help=f"where the page goes (default {DIRECTORY})")
    arguments = parser.parse_args()
    measured = load(arguments.files)
    plots = arguments.directory / PLOTS
    plots.mkdir(parents=True, exist_ok=True)
    for each in measured:
        (plots / f"{each.scenario.name}.svg").write_text(plot(each))
    (arguments.directory / PAGE).write_text(page(measured))


def load(files: Sequence[Path]) -> list[Measured]:
    """In the order of the scenarios."""
    found: dict[str, Measured] = {}
    for path in files:
        document = orjson.loads(path.read_bytes())
        runs = [_run(each) for each in document["runs"]]
        for name in {run.scenario for run in runs}:
            found[name] = Measured(SCENARIOS[name], [run for run in runs if run.scenario == name], document)
    return [found[name] for name in SCENARIOS if name in found]


def _run(each: dict[str, Any]) -> Run:
    usage = {part: Usage(**costs) for part, costs in each["usage"].items()}
    return Run(**{**each, "usage": usage})


def page(measured: Sequence[Measured]) -> str:
    documents = {id(each.document): each.document for each in measured}.values()
    sections = [
        _INTRODUCTION,
        "\n".join(_overview(measured)),
        "\n".join(_weak_points(measured)),
        "\n".join(_circumstances(list(documents))),
        f"## How a backlog is measured\n\n{_quoted(backlog.__doc__ or '')}",
        *("\n".join(_section(each)) for each in measured),
    ]
    return "\n\n".join(section.strip() for section in sections) + "\n"


def _circumstances(documents: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What was measured on the same machine, with the same versions, is told together."""
    yield "## How and where it was measured"
    for place, runs in itertools.groupby(sorted(documents, key=_place), key=_place):
        yield ""
        yield place
        yield ""
        yield "| ended at | command | commit | load average of the last minute |"
        yield "|---|---|---|--:|"
        for each in runs:
            command = " ".join(["python -m benchmarks.run", *each["command"][1:]])
            load = f"{each['machine']['load_average_at_end'][0]:.2f}"
            yield _row(each["at"], f"`{command}`", f"`{each['commit'] or 'unknown'}`", load)


def _place(document: dict[str, Any]) -> str:
    machine = document["machine"]
    memory = f"{machine['memory_bytes'] / 2**30:.0f} GiB"
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    system = f"- Machine: {machine['cores']} cores ({machine['processor']}), {memory}, {machine['system']}"
    return f"{system}\n- Versions: {versions}"


def _overview(measured: Sequence[Measured]) -> Iterator[str]:
    yield "## Goals"
    yield ""
    yield "They are for the scenarios' own sizes (no `--rows`) on a machine of two cores that does nothing else."
    yield ""
    yield "| scenario | contestant | figure | median | goal | |"
    yield "|---|---|---|--:|--:|---|"
    for each in measured:
        for group in by_contestant(each.runs):
            for name, spread in figures(group).items():
                judgement = judge(each.scenario, group[0].contestant, name, spread.median)
                if judgement is not None:
                    cells = (each.scenario.name, group[0].contestant, name, shown(name, spread.median))
                    yield _row(*cells, shown_goal(judgement.goal), "met" if judgement.is_met else "**missed**")


def _weak_points(measured: Sequence[Measured]) -> Iterator[str]:
    """Wherever native replication was faster."""
    yield "## Where native replication is faster"
    yield ""
    slower = [
        f"- {each.scenario.name}, {group[0].contestant}: {spread.median:.2f} of native's rate"
        for each in measured
        for group in by_contestant(each.runs)
        if (spread := figures(group).get("ratio")) is not None and spread.median < 1
    ]
    later = [line for each in measured for line in _slower_latencies(each)]
    yield from slower + later or ["Nowhere."]


def _slower_latencies(each: Measured) -> Iterator[str]:
    """Of contestants whose native counterpart was measured under the same label."""
    medians = {group[0].contestant: figures(group) for group in by_contestant(each.runs)}
    for contestant, found in medians.items():
        _, comma, label = contestant.partition(",")
        native = medians.get(NATIVE + comma + label, {})
        if "p50_ms" in native and found["p50_ms"].median > native["p50_ms"].median:
            figure = f"p50 {found['p50_ms'].median:,.0f} ms, native's {native['p50_ms'].median:,.0f} ms"
            yield f"- {each.scenario.name}, {contestant}: {figure}"


def _section(each: Measured) -> Iterator[str]:
    name = each.scenario.name
    yield f"## {name}: {each.scenario.title}"
    yield ""
    yield _quoted(each.scenario.about)
    yield ""
    yield f"![{name}]({PLOTS}/{name}.svg)"
    yield ""
    yield from _figures_table(each)
    yield ""
    yield from _costs_table(each)


def _figures_table(each: Measured) -> Iterator[str]:
    groups = by_contestant(each.runs)
    names = list(dict.fromkeys(name for group in groups for name in group[0].figures))
    yield _row("contestant", *names)
    yield "|---" + "|--:" * len(names) + "|"
    for group in groups:
        found = figures(group)
        cells = []
        for name in names:
            spread = found.get(name)
            value = "" if spread is None else shown(name, spread.median)
            if spread is not None and len(group) > 1:
                value += f" ({shown(name, spread.least)} to {shown(name, spread.most)})"
            cells.append(value)
        yield _row(group[0].contestant, *cells)


def _costs_table(each: Measured) -> Iterator[str]:
    yield "<details><summary>CPU and memory of each part</summary>"
    yield ""
    yield "| contestant | part | CPU s | CPU µs/change | MB, largest process | MB, all processes |"
    yield "|---|---|--:|--:|--:|--:|"
    for group in by_contestant(each.runs):
        for part, usage in costs(group).items():
            cpu = (f"{usage.cpu_s:.2f}", f"{1e6 * usage.cpu_s / group[0].changes:.2f}")
            memory = (f"{usage.largest_bytes / 1e6:,.0f}", f"{usage.together_bytes / 1e6:,.0f}")
            yield _row(group[0].contestant, part, *cpu, *memory)
    yield ""
    yield "</details>"


def plot(each: Measured) -> str:
    groups = []
    for group in by_contestant(each.runs):
        found = figures(group)
        bars = [Bar(found[name], shown(name, found[name].median)) for name in each.scenario.plotted]
        contestant = group[0].contestant
        groups.append(BarGroup(contestant, bars, contestant.startswith(NATIVE)))
    return draw(f"{each.scenario.title}: {', '.join(each.scenario.plotted)}", groups)


def _quoted(text: str) -> str:
    """As it is."""
    return f"```\n{text.strip()}\n```"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
