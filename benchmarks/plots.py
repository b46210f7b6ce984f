"""The plots of a scenario, as the scenario wants them (``benchmarks.measurement.Scenario``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from benchmarks import bar_chart, line_chart
from benchmarks.bar_chart import Bar, BarGroup
from benchmarks.line_chart import Line
from benchmarks.measurement import NATIVE, Run
from benchmarks.results import Measured
from benchmarks.summary import PARTS_OF_PIPELINE, by_contestant, costs, figures, per_change_us, shown

BEFORE = ", before"


def plots(each: Measured) -> dict[str, str]:
    """SVG documents by the names of their files, without ending."""
    name, scenario = each.scenario.name, each.scenario
    if any(run.samples for run in each.runs):
        drawn = {f"{name}_{figure}": _over_time(each, figure) for figure in scenario.plotted}
    elif scenario.over:
        drawn = {name: _over_figure(each)}
    else:
        drawn = {name: _bars(each)}
    if scenario.plotted[0].endswith("per_s"):  # at a given rate a change costs what else there is to do at that rate
        stacked = {group[0].contestant + mark: _stack(group) for group, mark in _groups(each)}
        drawn[f"{name}_cpu"] = bar_chart.draw_stacked(f"{name}: CPU µs a change", PARTS_OF_PIPELINE, stacked)
    return drawn


def _groups(each: Measured) -> Iterator[tuple[list[Run], str]]:
    """The repetitions of each contestant, each after those of before, which are marked."""
    before = {group[0].contestant: group for group in by_contestant(each.before)}
    for group in by_contestant(each.runs):
        if group[0].contestant in before:
            yield before[group[0].contestant], BEFORE
        yield group, ""


def _bars(each: Measured) -> str:
    groups = []
    for group, mark in _groups(each):
        found = figures(group)
        bars = [Bar(found[name], shown(name, found[name].median)) for name in each.scenario.plotted if name in found]
        contestant = group[0].contestant
        if bars:
            groups.append(BarGroup(contestant + mark, bars, contestant.startswith(NATIVE) or bool(mark)))
    return bar_chart.draw(f"{each.scenario.title}: {', '.join(each.scenario.plotted)}", groups)


def _stack(repetitions: Sequence[Run]) -> dict[str, float]:
    """CPU µs a change, by part."""
    usages = costs(repetitions)
    return {part: per_change_us(usages[part], repetitions[0].changes) for part in PARTS_OF_PIPELINE if part in usages}


def _over_figure(each: Measured) -> str:
    lines: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for group, mark in _groups(each):
        found = figures(group)
        for name in each.scenario.plotted:
            if name in found:
                label = f"{group[0].contestant.partition(',')[0]}, {name}"
                lines[label, mark].append((found[each.scenario.over].median, found[name].median))
    drawn = [Line(label, sorted(points), bool(mark)) for (label, mark), points in lines.items()]
    return line_chart.draw(each.scenario.title, each.scenario.over, drawn, is_logarithmic=True)


def _over_time(each: Measured, figure: str) -> str:
    """Of the last repetition."""
    lines = []
    for runs, mark in ((each.before, BEFORE), (each.runs, "")):
        samples = [run.samples for run in runs if run.samples][-1:]
        for columns in samples:
            names = dict.fromkeys(name for sample in columns for name in sample if name.endswith(figure))
            for name in names:
                points = [(sample["at_s"] / 60, sample[name]) for sample in columns if name in sample]
                lines.append(Line(name.removesuffix(f" {figure}"), points, bool(mark)))
    return line_chart.draw(f"{each.scenario.title}: {figure}", "minutes", lines)
