"""Bars as SVG, for a page that anybody can open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.summary import Spread

WIDTH = 760
LABEL_WIDTH = 190
VALUE_WIDTH = 90
BAR_HEIGHT = 16
GAP = 10
TITLE_HEIGHT = 34
COLOURS = ("#4878a8", "#a8c4de")
NATIVE_COLOURS = ("#8a8a8a", "#c4c4c4")
FONT = "font-family='system-ui, sans-serif' font-size='12'"


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
    """An SVG document: a horizontal bar to each median, and a line from the least to the most."""
    most = max(bar.spread.most for group in groups for bar in group.bars) or 1.0
    per_unit = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) / most
    parts, top = [], TITLE_HEIGHT
    for group in groups:
        height = BAR_HEIGHT * len(group.bars)
        parts.append(_text(LABEL_WIDTH - 8, top + height / 2 + 4, group.label, "end"))
        colours = NATIVE_COLOURS if group.is_reference else COLOURS
        for number, bar in enumerate(group.bars):
            parts.append(_bar(bar, top + number * BAR_HEIGHT, per_unit, colours[number % len(colours)]))
        top += height + GAP
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{top}' viewBox='0 0 {WIDTH} {top}' {FONT}>\n"
        f"<rect width='{WIDTH}' height='{top}' fill='white'/>\n"
        f"<text x='8' y='20' font-weight='bold'>{escape(title)}</text>\n" + "".join(parts) + "</svg>\n"
    )


def _bar(bar: Bar, top: float, per_unit: float, colour: str) -> str:
    end, least, most = (LABEL_WIDTH + value * per_unit for value in bar.spread)
    middle = top + BAR_HEIGHT / 2
    rectangle = (
        f"<rect x='{LABEL_WIDTH}' y='{top + 1}' width='{end - LABEL_WIDTH:.1f}' height='{BAR_HEIGHT - 2}' fill='{colour}'/>\n"
    )
    line = f"<line x1='{least:.1f}' x2='{most:.1f}' y1='{middle}' y2='{middle}' stroke='black'/>\n"
    return rectangle + line + _text(max(end, most) + 6, middle + 4, bar.shown, "start")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{escape(text)}</text>\n"
