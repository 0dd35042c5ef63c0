"""Charts in characters."""

from __future__ import annotations

import pytest

from agentroute.cli.chart import Line, chart, letter


def line(*y: float, band: float = 1.0, points: tuple[tuple[float, float], ...] = ()) -> Line:
    x = tuple(float(2**i) for i in range(len(y)))
    return Line(x, y, tuple(v / band for v in y), tuple(v * band for v in y), points)


def drawn(*lines: Line, width: int = 20, height: int = 5) -> list[str]:
    return chart(lines, title="T", label=lambda value: f"{value:.0f}", width=width, height=height)


def test_a_power_law_is_a_straight_line() -> None:
    assert drawn(line(1.0, 2.0, 4.0, 8.0, 16.0), width=22) == [
        "T",
        "16 |              aaa",
        " 8 |           aaa",
        "   |      aaaaa",
        " 2 |   aaa",
        " 1 |aaa",
        "   +-----------------",
        "    1   2   4   8   16",
    ]


def test_a_measured_point_stands_in_its_place_in_upper_case() -> None:
    rows = drawn(line(1.0, 2.0, 4.0, points=((2.0, 2.0), (4.0, 1.0))))
    assert rows[3].index("A") == rows[1].index("|") + 1 + 8
    assert rows[5].index("A") == rows[1].index("|") + 1 + 16
    assert sum(row.count("A") for row in rows) == 2


def test_a_band_is_dotted_around_the_mean_and_never_over_it() -> None:
    rows = drawn(line(1.0, 4.0, 16.0, band=2.0), width=21)
    assert any("." in row for row in rows)
    assert sum(row.count("a") for row in rows) == 17


def test_later_lines_go_over_earlier_ones_and_every_line_has_its_letter() -> None:
    rows = drawn(line(1.0, 2.0, 4.0), line(4.0, 4.0, 4.0))
    assert rows[1].count("b") == 17
    assert (letter(0), letter(1)) == ("a", "b")


@pytest.mark.parametrize("width", [30, 40, 80, 200])
@pytest.mark.parametrize("most", [16.0, 1_024.0, 30_000.0])
def test_no_row_is_wider_than_asked_and_the_widest_is_nearly_so(width: int, most: float) -> None:
    rows = drawn(Line((1.0, most), (1.0, 4_000.0), (1.0, 4_000.0), (1.0, 4_000.0)), width=width)
    assert width - len(f"{most:,.0f}") < max(map(len, rows)) <= width


@pytest.mark.parametrize("one", [line(5.0), line(5.0, 5.0, 5.0), Line((3.0,), (5.0,), (4.0,), (6.0,), ((3.0, 5.0),))])
def test_a_single_value_needs_no_axis_of_its_own(one: Line) -> None:
    rows = drawn(one)
    assert sum(row.count("a") + row.count("A") for row in rows[:-1]) >= 1


def test_colour_belongs_to_a_line_and_to_no_space() -> None:
    rows = chart([line(1.0, 2.0)], title="T", label=str, width=8, height=3, paint=lambda text, i: f"<{i}{text}>")
    assert "<0a>" in "".join(rows)
    assert "< " not in "".join(rows)
