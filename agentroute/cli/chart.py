"""A chart in characters: both axes logarithmic, plain ASCII, the same text for the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LEAST = 16
"""The fewest characters that a line is drawn over."""

EDGE = " |"

Cell = tuple[str, int | None]
"""A character, and the number of the line that it belongs to."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: its band from ``low`` to ``high`` around ``mean`` over ``x``, and the points that were measured."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    points: tuple[tuple[float, float], ...] = ()


def letter(i: int) -> str:
    """What line number ``i`` is drawn with: ``a``, and ``A`` where it was measured."""
    return chr(ord("a") + i % 26)


def chart(
    lines: Sequence[Line],
    *,
    title: str,
    label: Callable[[float], str],
    width: int,
    height: int = 15,
    paint: Callable[[str, int], str] = lambda text, i: text,
) -> list[str]:
    """The rows of a chart that is no wider than ``width`` characters, as long as that leaves it ``LEAST`` to draw in.

    ``label`` writes a value of y; ``paint`` colours line ``i``.
    """
    xs = [x for line in lines for x in (*line.x, *(x for x, _ in line.points))]
    ys = [y for line in lines for y in (*line.mean, *(y for _, y in line.points))]
    up = _Axis.over(ys, height)
    marks = {up.place(y): label(y) for y in up.ticks(4)}
    margin = max(len(text) for text in marks.values())
    # The last mark below the axis goes beyond it by all but its first digit.
    inner = max(LEAST, width - margin - len(EDGE) - len(f"{max(xs):,.0f}") + 1)
    across = _Axis.over(xs, inner)
    cells: list[list[Cell]] = [[(" ", None)] * inner for _ in range(height)]
    for i, line in enumerate(lines):
        _shade(cells, i, line, across, up)
    for i, line in enumerate(lines):
        _stroke(cells, i, line, across, up)
    for i, line in enumerate(lines):
        for x, y in line.points:
            cells[up.place(y)][across.place(x)] = letter(i).upper(), i
    rows = [title]
    for row in reversed(range(height)):
        drawn = "".join(paint(text, i) if i is not None else text for text, i in cells[row])
        rows.append(f"{marks.get(row, ''):>{margin}}{EDGE}{drawn}".rstrip())
    rows.append(" " * margin + " +" + "-" * inner)
    rows.append(" " * (margin + len(EDGE)) + _foot(across))
    return rows


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis of ``cells`` places."""

    least: float
    most: float
    cells: int

    @classmethod
    def over(cls, values: Sequence[float], cells: int) -> _Axis:
        least, most = math.log(min(values)), math.log(max(values))
        # A single value stands in the middle of an axis that spans a factor of two.
        return cls(least, most, cells) if most > least else cls(least - 0.35, least + 0.35, cells)

    def place(self, value: float) -> int:
        share = (math.log(value) - self.least) / (self.most - self.least)
        return min(self.cells - 1, max(0, round(share * (self.cells - 1))))

    def value(self, place: int) -> float:
        return math.exp(self.least + (self.most - self.least) * place / (self.cells - 1))

    def ticks(self, count: int) -> list[float]:
        return [self.value(round(i * (self.cells - 1) / (count - 1))) for i in range(count)]


def _shade(cells: list[list[Cell]], i: int, line: Line, across: _Axis, up: _Axis) -> None:
    for column, low, high in _columns(line, across):
        for row in range(up.place(low), up.place(high) + 1):
            if cells[row][column][0] == " ":
                cells[row][column] = ".", i


def _stroke(cells: list[list[Cell]], i: int, line: Line, across: _Axis, up: _Axis) -> None:
    mean = Line(line.x, line.mean, line.mean, line.mean)
    for column, value, _ in _columns(mean, across):
        cells[up.place(value)][column] = letter(i), i


def _columns(line: Line, across: _Axis) -> list[tuple[int, float, float]]:
    """The band in each column from the first x to the last, straight in the logarithms between two x."""
    if not line.x:
        return []
    first, last = across.place(line.x[0]), across.place(line.x[-1])
    found = []
    for column in range(first, last + 1):
        x = min(max(across.value(column), line.x[0]), line.x[-1])
        found.append((column, _at(line.x, line.low, x), _at(line.x, line.high, x)))
    return found


def _at(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    for (x0, y0), (x1, y1) in zip(zip(xs, ys, strict=True), zip(xs[1:], ys[1:], strict=True), strict=False):
        if x <= x1:
            share = math.log(x / x0) / math.log(x1 / x0)
            return math.exp(math.log(y0) + (math.log(y1) - math.log(y0)) * share)
    return ys[-1]


def _foot(across: _Axis) -> str:
    """Powers of two below the axis, as many as fit, and the ends where those are none."""
    least, most = math.exp(across.least), math.exp(across.most)
    low, high = math.ceil(math.log2(least) - 1e-9), math.floor(math.log2(most) + 1e-9)
    marks = [2.0**k for k in range(low, high + 1)] or [math.sqrt(least * most)]
    text = ""
    for mark in marks:
        place = across.place(mark)
        if place >= len(text) + (1 if text else 0):
            text = text.ljust(place) + f"{mark:,.0f}"
    return text
