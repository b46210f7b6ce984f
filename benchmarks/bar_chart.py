"""Bars, for a page that anybody can open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.drawing import GREY, PALETTE, TITLE_HEIGHT, WIDTH, document, legend, rectangle, text
from benchmarks.summary import Spread

LABEL_WIDTH = 190
VALUE_WIDTH = 90
LEGEND_WIDTH = 130
BAR_HEIGHT = 16
GAP = 10
COLOURS = (PALETTE[0], "#a8c4de")
NATIVE_COLOURS = (GREY, "#c4c4c4")


@dataclass(frozen=True, slots=True)
class Bar:
    """``shown`` is the median as text."""

    spread: Spread
    shown: str


@dataclass(frozen=True, slots=True)
class BarGroup:
    """The bars of one contestant, one for each figure that is plotted; ``is_reference`` colours them like the others' measure."""

    label: str
    bars: Sequence[Bar]
    is_reference: bool


def draw(title: str, groups: Sequence[BarGroup]) -> str:
    """A horizontal bar to each median, and a line from the least to the most."""
    most = max((bar.spread.most for group in groups for bar in group.bars), default=0.0) or 1.0
    per_unit = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) / most
    parts: list[str] = []
    top = TITLE_HEIGHT
    for group in groups:
        height = BAR_HEIGHT * len(group.bars)
        parts.append(text(LABEL_WIDTH - 8, top + height / 2 + 4, group.label, "end"))
        colours = NATIVE_COLOURS if group.is_reference else COLOURS
        for number, bar in enumerate(group.bars):
            parts.append(_bar(bar, top + number * BAR_HEIGHT, per_unit, colours[number % len(colours)]))
        top += height + GAP
    return document(title, top, parts)


def _bar(bar: Bar, top: float, per_unit: float, colour: str) -> str:
    end, least, most = (LABEL_WIDTH + max(0.0, value) * per_unit for value in bar.spread)
    middle = top + BAR_HEIGHT / 2
    line = f"<line x1='{least:.1f}' x2='{most:.1f}' y1='{middle}' y2='{middle}' stroke='black'/>\n"
    drawn = rectangle(LABEL_WIDTH, top + 1, end - LABEL_WIDTH, BAR_HEIGHT - 2, colour)
    return drawn + line + text(max(end, most) + 6, middle + 4, bar.shown)


def draw_stacked(title: str, order: Sequence[str], bars: Mapping[str, Mapping[str, float]]) -> str:
    """A bar for each label, of parts with values, in ``order``; its end is marked with their sum."""
    names = [name for name in order if any(name in parts for parts in bars.values())]
    colours = {name: PALETTE[number % len(PALETTE)] for number, name in enumerate(names)}
    most = max((sum(parts.values()) for parts in bars.values()), default=0.0) or 1.0
    per_unit = (WIDTH - LABEL_WIDTH - VALUE_WIDTH - LEGEND_WIDTH) / most
    drawn = legend(names, colours.values(), WIDTH - LEGEND_WIDTH, TITLE_HEIGHT)
    top = TITLE_HEIGHT
    for label, parts in bars.items():
        drawn.append(text(LABEL_WIDTH - 8, top + BAR_HEIGHT / 2 + 4, label, "end"))
        left = float(LABEL_WIDTH)
        for name in names:
            width = parts.get(name, 0.0) * per_unit
            drawn.append(rectangle(left, top + 1, width, BAR_HEIGHT - 2, colours[name]))
            left += width
        drawn.append(text(left + 6, top + BAR_HEIGHT / 2 + 4, f"{sum(parts.values()):.2f}"))
        top += BAR_HEIGHT + GAP
    return document(title, max(top, TITLE_HEIGHT + 18 * len(names) + GAP), drawn)
