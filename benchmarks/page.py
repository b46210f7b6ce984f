"""``python -m benchmarks.page FILE.json …``: the page ``docs/benchmarks.md`` with its plots, from what ``benchmarks.run`` wrote.

With ``--before FILE.json`` it compares: figures and costs of earlier runs stand beside the others, in tables and plots.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import backlog
from benchmarks.measurement import NATIVE
from benchmarks.plots import plots
from benchmarks.results import Measured, load
from benchmarks.summary import by_contestant, compared, costs, figures, judge, shown, shown_costs, shown_goal

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
in the same repetition: over 1 pgsluice is faster. *CPU* is spent within the measured time; memory is the peak. The parts of the
pipeline are summed up as *together*. *benchmark* is the program that looks for the rows, and *elsewhere* is the rest of the
machine: where it is large, other work was using the machine.

`python -m benchmarks.page FILE.json …` makes this page from the files alone.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description="Write the page of results and its plots.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what benchmarks.run --json wrote")
    parser.add_argument("--before", nargs="+", type=Path, default=[], metavar="FILE", help="earlier results to compare with")
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help=f"where the page goes (default {DIRECTORY})")
    arguments = parser.parse_args()
    measured = load(arguments.files, arguments.before)
    directory = arguments.directory / PLOTS
    directory.mkdir(parents=True, exist_ok=True)
    for each in measured:
        for name, svg in plots(each).items():
            (directory / f"{name}.svg").write_text(svg)
    (arguments.directory / PAGE).write_text(page(measured))


def page(measured: Sequence[Measured]) -> str:
    documents = {id(each.document): each.document for each in measured}.values()
    sections = [
        _INTRODUCTION,
        "\n".join(_overview(measured)),
        "\n".join(_weak_points(measured)),
        "\n".join(_comparison(measured)),
        "\n".join(_circumstances(list(documents))),
        f"## How a backlog is measured\n\n{_quoted(backlog.__doc__ or '')}",
        *("\n".join(_section(each)) for each in measured),
    ]
    return "\n\n".join(section.strip() for section in sections if section) + "\n"


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


def _comparison(measured: Sequence[Measured]) -> Iterator[str]:
    """Nothing without earlier results."""
    if not any(each.before for each in measured):
        return
    yield "## Before and after"
    yield ""
    yield "Of the scenarios that were measured before, too. Costs are CPU µs a change, of all that it passes together."
    yield ""
    yield "| scenario | contestant | figure | before | after | after / before |"
    yield "|---|---|---|--:|--:|--:|"
    for each in measured:
        before = {group[0].contestant: group for group in by_contestant(each.before)}
        for group in by_contestant(each.runs):
            contestant = group[0].contestant
            values, earlier = compared(group), compared(before.get(contestant, []))
            for name in [each for each in values if each in earlier]:
                old, new = earlier[name], values[name]
                share = f"{new / old:.2f}" if old else ""
                yield _row(each.scenario.name, contestant, name, shown(name, old), shown(name, new), share)


def _section(each: Measured) -> Iterator[str]:
    name = each.scenario.name
    yield f"## {name}: {each.scenario.title}"
    yield ""
    yield _quoted(each.scenario.about)
    yield ""
    for plot in plots(each):
        yield f"![{plot}]({PLOTS}/{plot}.svg)"
        yield ""
    yield from _figures_table(each)
    if any(run.usage for run in each.runs):
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
            yield _row(group[0].contestant, part, *shown_costs(usage, group[0].changes))
    yield ""
    yield "</details>"


def _quoted(text: str) -> str:
    """As it is."""
    return f"```\n{text.strip()}\n```"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
