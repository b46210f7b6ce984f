"""Lines, for figures that depend on a number: a rate, or the time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, takewhile

from benchmarks.drawing import PALETTE, TITLE_HEIGHT, WIDTH, document, legend, text

HEIGHT = 320
LEFT, RIGHT, BOTTOM = 60, 190, 40
LEGEND_X = WIDTH - RIGHT + 15
STEPS = (1, 2, 5)
TICKS_AT_MOST = 8


@dataclass(frozen=True, slots=True)
class Line:
    """``points`` are (x, y), by x. A dashed line is what the line of the same label was before."""

    label: str
    points: Sequence[tuple[float, float]]
    is_dashed: bool = False


def draw(title: str, x_label: str, lines: Sequence[Line], *, is_logarithmic: bool = False) -> str:
    """Both axes are alike: logarithmic, of positive values only, or from 0."""
    xs = [x for line in lines for x, _ in line.points if x > 0 or not is_logarithmic]
    ys = [y for line in lines for _, y in line.points if y > 0 or not is_logarithmic]
    across, up = _scale(xs, LEFT, WIDTH - RIGHT, is_logarithmic), _scale(ys, HEIGHT - BOTTOM, TITLE_HEIGHT, is_logarithmic)
    parts = [text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, x_label, "middle")]
    for value in _ticks(xs, is_logarithmic):
        parts += [_rule(across(value), HEIGHT - BOTTOM, across(value), TITLE_HEIGHT)]
        parts += [text(across(value), HEIGHT - BOTTOM + 16, f"{value:,g}", "middle")]
    for value in _ticks(ys, is_logarithmic):
        parts += [_rule(LEFT, up(value), WIDTH - RIGHT, up(value)), text(LEFT - 6, up(value) + 4, f"{value:,g}", "end")]
    labels = dict.fromkeys(line.label for line in lines)
    colours = {label: PALETTE[number % len(PALETTE)] for number, label in enumerate(labels)}
    for line in lines:
        places = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line.points if (x > 0 and y > 0) or not is_logarithmic)
        dashes = " stroke-dasharray='5 4'" if line.is_dashed else ""
        parts.append(f"<polyline points='{places}' fill='none' stroke='{colours[line.label]}' stroke-width='2'{dashes}/>\n")
    parts += legend(labels, colours.values(), LEGEND_X, TITLE_HEIGHT)
    if any(line.is_dashed for line in lines):
        parts.append(text(LEGEND_X, TITLE_HEIGHT + 18 * len(labels) + 9, "dashed: before"))
    return document(title, HEIGHT, parts)


def _scale(values: Sequence[float], begin: float, end: float, is_logarithmic: bool) -> Callable[[float], float]:
    """From values to places between ``begin`` and ``end``."""
    most = max(values, default=1.0) or 1.0
    if not is_logarithmic:
        return lambda value: begin + (end - begin) * value / most
    least = math.log(min(values, default=1.0) / 1.2)
    span = math.log(most * 1.2) - least
    return lambda value: begin + (end - begin) * (math.log(value) - least) / span


def _ticks(values: Sequence[float], is_logarithmic: bool) -> list[float]:
    """Round values within the range."""
    least, most = min(values, default=1.0), max(values, default=1.0) or 1.0
    if is_logarithmic:
        decades = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
        return [step * 10.0**decade for decade in decades for step in STEPS if least <= step * 10.0**decade <= most]
    steps = (step * 10.0**decade for decade in count(math.floor(math.log10(most)) - 1) for step in STEPS)
    step = next(step for step in steps if most / step <= TICKS_AT_MOST)
    return list(takewhile(lambda value: value <= most, (step * number for number in count())))


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f"<line x1='{x1:.1f}' x2='{x2:.1f}' y1='{y1:.1f}' y2='{y2:.1f}' stroke='#dddddd'/>\n"
