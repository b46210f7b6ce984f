"""What every chart is made of, as SVG."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

WIDTH = 760
TITLE_HEIGHT = 34
PALETTE = ("#4878a8", "#d9822b", "#5a9e6f", "#b5484f", "#8467a8", "#8c6d4f", "#cf7fb0", "#4fa8a8", "#a8a23a")
GREY = "#8a8a8a"

_FONT = "font-family='system-ui, sans-serif' font-size='12'"


def document(title: str, height: float, parts: Iterable[str]) -> str:
    """An SVG document, WIDTH wide, with its title in the first TITLE_HEIGHT."""
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}' {_FONT}>\n"
        f"<rect width='{WIDTH}' height='{height}' fill='white'/>\n"
        f"<text x='8' y='20' font-weight='bold'>{escape(title)}</text>\n" + "".join(parts) + "</svg>\n"
    )


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{escape(words)}</text>\n"


def rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' fill='{colour}'/>\n"


def legend(names: Iterable[str], colours: Iterable[str], x: float, y: float) -> list[str]:
    """A column of colours with their names."""
    parts = []
    for number, (name, colour) in enumerate(zip(names, colours, strict=False)):
        top = y + 18 * number
        parts += [rectangle(x, top, 10, 10, colour), text(x + 15, top + 9, name)]
    return parts
