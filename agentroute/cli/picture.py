"""The chart of a profile as a picture; needs matplotlib, the extra ``plot``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from agentroute.cli.chart import Line

RESOLUTION = 150
"""Dots per inch of a PNG."""


def draw(path: Path, title: str, names: Sequence[str], panels: Mapping[str, Sequence[Line]]) -> None:
    """Write ``panels``, the lines of each under its title, to ``path``, whose ending says what it becomes.

    ``names`` are those of the lines, the same in every panel. The same numbers give the same file.
    """
    with rc_context({"svg.hashsalt": title, "font.size": 9.0}):
        figure = Figure(figsize=(11.0, 4.6), layout="constrained")
        figure.suptitle(title)
        for place, (label, lines) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(1, len(panels), place)
            for i, (name, line) in enumerate(zip(names, lines, strict=True)):
                colour = f"C{i % 10}"
                axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
                axes.plot(line.x, line.mean, color=colour, label=name)
                axes.plot([x for x, _ in line.points], [y for _, y in line.points], "o", color=colour, markersize=4)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
            axes.yaxis.set_major_formatter(LogFormatter())
            axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
            axes.set_xlabel("requests in flight")
            axes.set_ylabel(label)
            axes.grid(True, which="major", alpha=0.3)
            axes.legend(fontsize=7)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {"Software": None}
        figure.savefig(path, dpi=RESOLUTION, metadata=metadata)
