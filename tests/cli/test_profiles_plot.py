"""``agentroute profiles plot``: a chart in the terminal, or a picture where matplotlib is."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from console import agentroute
from typer.testing import CliRunner

from agentroute.catalogue import shipped
from agentroute.cli.app import app
from agentroute.cli.profiles_plot import series

NAME = "minimax-m2.5/vllm-h200-tp8"
DRAWS = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib, the extra 'plot', is not installed"
)


def test_a_line_for_each_prompt_length_passes_through_its_points_within_its_band() -> None:
    drawn = series(shipped().deployment(shipped().profile(NAME)))
    assert [(one.isl, one.osl, len(one.points)) for one in drawn] == [(1_024, 1_024, 6), (8_192, 1_024, 6)]
    for one in drawn:
        ttft = dict(zip(one.loads, one.ttft_ms, strict=True))
        for point in one.points:
            assert ttft[point.concurrency].mean == pytest.approx(point.mean_ttft_ms())
        assert all(time.low < time.mean < time.high for time in (*one.ttft_ms, *one.tpot_ms))
        assert len(one.loads) > len(one.points)


def test_the_answer_length_can_be_chosen() -> None:
    drawn = series(shipped().deployment(shipped().profile(NAME)), osl=8_192)
    assert [(one.isl, one.osl, len(one.points)) for one in drawn] == [(1_024, 8_192, 6), (8_192, 8_192, 0)]


def test_the_terminal_shows_both_times_and_every_measured_load() -> None:
    ran = agentroute("profiles", "plot", NAME)
    assert ran.code == 0
    head, ttft, tpot = ran.out.split("\n\n")
    assert "a  1,024 tokens in, 1,024 out (6 measured)" in head
    assert "b  8,192 tokens in, 1,024 out (6 measured)" in head
    assert (ttft.count("A"), ttft.count("B")) == (6, 6)
    # Where two are in one place, the later line's stands.
    assert tpot.count("B") == 6
    assert "ms |" in tpot


@pytest.mark.parametrize(("columns", "widest"), [(60, 60), (100, 100), (400, 120)])
def test_the_chart_is_as_wide_as_the_terminal_within_what_can_be_read(columns: int, widest: int) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in {"COLUMNS", "LINES"}}
    command = [sys.executable, "-m", "agentroute.cli", "profiles", "plot", NAME]
    with subprocess.Popen(command, stdout=theirs, env=environment | {"NO_COLOR": "1", "TERM": "xterm"}) as process:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # the end of a terminal, on Linux
            while part := os.read(ours, 65_536):
                said += part
        os.close(ours)
    assert process.returncode == 0
    assert widest - 3 <= max(map(len, said.decode().splitlines())) <= widest


def test_without_a_terminal_the_chart_is_80_wide() -> None:
    assert 77 <= max(map(len, agentroute("profiles", "plot", NAME).out.splitlines())) <= 80


def test_the_chart_is_plain_text_and_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    first = agentroute("profiles", "plot", NAME).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert agentroute("profiles", "plot", NAME).out == first
    assert first.isascii()
    assert "\x1b" not in first


def test_lines_are_coloured_in_a_terminal_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = CliRunner().invoke(app, ["profiles", "plot", NAME], color=True).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    plain = CliRunner().invoke(app, ["profiles", "plot", NAME], color=True).stdout
    assert "\x1b[36ma" in coloured
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain


def test_json_holds_what_is_drawn() -> None:
    data = agentroute("profiles", "plot", NAME, "--json").json
    assert data["profile"] == NAME
    (short, long) = data["series"]
    assert (short["isl"], long["isl"]) == (1_024, 8_192)
    assert [point["concurrency"] for point in short["measured"]] == [4, 8, 16, 32, 64, 128]
    assert short["predicted"][0]["ttft_ms"]["low"] < short["predicted"][0]["ttft_ms"]["mean"]
    read_off = {at["concurrency"] for at in short["predicted"] if at["ttft_ms"]["interpolated"]}
    assert read_off == {at["concurrency"] for at in short["predicted"]} - {4, 8, 16, 32, 64, 128}


def test_a_profile_without_points_is_drawn_from_its_roofline_or_refused(tmp_path: Path) -> None:
    derived = tmp_path / "derived.toml"
    derived.write_text(
        'format = 1\nname = "mine"\nmodel = "llama-3.1-8b"\naccelerator = "h100_sxm"\n\n[engine]\nname = "vllm"\n'
        '\n[precision]\nweights = "bf16"\nkv = "bf16"\n\n[sharding]\ntp = 1\n'
    )
    assert "(none measured)" in agentroute("profiles", "plot", str(derived)).out
    bare = tmp_path / "bare.toml"
    bare.write_text('format = 1\nname = "mine"\n\n[engine]\nname = "vllm"\n')
    ran = agentroute("profiles", "plot", str(bare))
    assert ran.code == 2
    assert "nothing can be predicted for 'mine'" in ran.err


def test_an_ending_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    ran = agentroute("profiles", "plot", NAME, "--output", str(tmp_path / "one.gif"))
    assert ran.code == 2
    assert "--output must end in .png or .svg" in ran.err


@DRAWS
@pytest.mark.parametrize(("ending", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_a_picture_is_written_and_is_the_same_every_time(tmp_path: Path, ending: str, begins: bytes) -> None:
    path = tmp_path / f"one.{ending}"
    pictures = []
    for _ in range(2):
        ran = agentroute("profiles", "plot", NAME, "--output", str(path))
        assert (ran.code, ran.out) == (0, "")
        pictures.append(path.read_bytes())
    assert pictures[0].startswith(begins)
    assert len(pictures[0]) > 5_000
    assert pictures[0] == pictures[1]


def test_without_matplotlib_the_chart_is_text_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "agentroute.cli.picture", raising=False)
    path = tmp_path / "one.png"
    ran = agentroute("profiles", "plot", NAME, "--output", str(path))
    assert ran.code == 2
    assert "pip install 'agentroute[plot]'" in ran.err
    assert ran.out == agentroute("profiles", "plot", NAME).out
    assert not path.exists()
