"""``agentroute measure``: a running server's curve, into a profile."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from console import agentroute

from agentroute.adapters.base import Discovery
from agentroute.cli.measure import fraction, grid_of, lengths, span, with_points
from agentroute.demo.embedded import EmbeddedServer
from agentroute.errors import UsageError
from agentroute.latency.points import Measured, Measurement, Point
from agentroute.origin import Provenance
from agentroute.profile import Engine, KvPool, Profile

SMALL = ("--isl", "40", "--osl", "4", "--concurrency", "1", "--noise", "50%")


def block(*loads: tuple[int, int, int], ms: float = 10.0) -> Measurement:
    points = tuple(Point(isl=i, osl=o, concurrency=n, ttft_ms=Measured(mean=ms)) for i, o, n in loads)
    return Measurement(provenance=Provenance(origin="measured", source="a test"), points=points)


def test_a_server_becomes_a_profile_with_a_curve(
    llama_one: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.toml"
    ran = agentroute("measure", llama_one.url, *SMALL, "--accelerator", "h100_sxm", "--name", "here", "-o", str(file))
    assert ran.code == 0, ran.err
    assert "isl 40, osl 4, 1 at once: TTFT" in ran.err and "round 3" in ran.err
    assert f"wrote {file}" in ran.err
    profile = Profile.load(file)
    assert (profile.name, profile.accelerator, profile.engine.name) == ("here", "h100_sxm", "llamacpp")
    (point,) = profile.points
    assert (point.osl, point.concurrency) == (4, 1) and abs(point.isl - 40) <= 1
    (measured,) = profile.measurements
    assert measured.provenance.source == f"agentroute measure of {llama_one.url}"
    assert measured.provenance.tool == "agentroute measure 0.1.0" and measured.provenance.date is not None
    assert agentroute("profiles", "validate", str(file)).code == 0

    # Into the same file: the load is measured anew and replaces the old point.
    ran = agentroute("measure", llama_one.url, *SMALL, "--into", str(file), "--json")
    assert ran.code == 0, ran.err
    assert ran.json["command"] == "measure" and len(ran.json["measured"]) == 1
    assert "the new points take the place of 1 point of the same loads" in ran.json["notes"]
    assert (ran.json["stopped"], ran.json["missing"]) == (None, [])
    again = Profile.load(file)
    assert again.accelerator == "h100_sxm" and len(again.points) == 1
    assert again.points[0].ttft_ms != point.ttft_ms

    refused = agentroute("measure", llama_one.url, *SMALL, "-o", str(file))
    assert refused.code == 2 and "is there already" in refused.err


def test_ctrl_c_writes_what_there_is_and_says_what_is_missing(llama_one: EmbeddedServer, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    command = [sys.executable, "-m", "agentroute.cli", "measure", llama_one.url, "--isl", "40,120", "--osl", "4"]
    process = subprocess.Popen(
        [*command, "--concurrency", "1", "--output", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if "round 1" in line:
            process.send_signal(signal.SIGINT)
            break
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 130, rest
    assert "ended early: it was interrupted; what was measured is kept" in rest
    assert "not measured: 120+4 x 1" in rest
    assert "Traceback" not in rest
    assert [point.concurrency for point in Profile.load(file).points] == [1]


@pytest.mark.parametrize("after", ["", "measuring isl"])
def test_ctrl_c_before_the_first_load_is_done_says_that_nothing_was_measured(
    llama_one: EmbeddedServer, tmp_path: Path, after: str
) -> None:
    """While the server is asked what it is (one that never answers), and while the first load is measured."""
    file = tmp_path / "mine.toml"
    with ExitStack() as kept:
        silent = kept.enter_context(socket.create_server(("127.0.0.1", 0)))
        url = llama_one.url if after else f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "agentroute.cli", "measure", url, "--isl", "120", "--osl", "64", "-o", str(file)],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        if after:
            assert after in process.stderr.readline() + process.stderr.readline()
        else:
            kept.enter_context(silent.accept()[0])
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "nothing was measured: it was interrupted before the first load was done\n"
    assert not file.exists()


def test_a_cap_on_tokens_is_kept_and_what_is_left_out_for_it_is_said(llama_one: EmbeddedServer, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    capped = ("measure", llama_one.url, *SMALL[:4], "--concurrency", "1-4", "--output", str(file), "--max-tokens")
    refused = agentroute(*capped, "100")
    assert refused.code == 2
    found = re.search(r"--max-tokens must be at least (\d+) for the warm-up and the first load", refused.err)
    assert found is not None
    assert "measuring" not in refused.err and not file.exists()
    ran = agentroute(*capped, found[1], "--json")
    assert ran.code == 0, ran.err
    assert 0 < ran.json["tokens"] <= int(found[1])
    assert ran.json["stopped"].startswith("the budget is spent: ") and "may take" in ran.json["stopped"]
    assert ran.json["missing"][0] == "not measured: 40+4 x 2, 40+4 x 4"
    assert f"ended early: {ran.json['stopped']}; what was measured is kept\n  not measured: 40+4 x 2" in ran.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--isl", "0"), "--isl must be numbers of tokens of at least 1, such as 512,2048, got '0'"),
        (("--osl", "1"), "--osl must be numbers of tokens of at least 2"),
        (("--osl", "many"), "--osl must be numbers"),
        (("--concurrency", "4-2"), "--concurrency must be numbers of requests such as 1-16, got '4-2'"),
        (("--noise", "5"), "--noise must be a share above 0% and below 100%, such as 5%"),
        (("--noise", "0%"), "--noise must be a share"),
        (("--budget", "ten"), "--budget must be a duration"),
        (("--accelerator", "h100"), "there is no accelerator 'h100'"),
        (("--name", "not a name!"), "--name must begin with a letter or digit"),
        (
            ("--output", "mine.json"),
            "a profile is written as TOML; give --output a file that ends in .toml, not mine.json",
        ),
        (("--adapter", "zz"), "there is no adapter 'zz'; known: dynamo, llamacpp, openai, sglang, sglang_router, "),
        (("--into", "there.toml", "--tp", "2"), "--into adds points to a profile"),
    ],
)
def test_a_wrong_option_is_one_sentence_before_anything_is_asked(options: tuple[str, ...], said: str) -> None:
    ran = agentroute("measure", "http://127.0.0.1:9", *options)
    assert ran.code == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_a_server_that_is_not_there_is_a_failure() -> None:
    ran = agentroute("measure", "http://127.0.0.1:9")
    assert ran.code == 1 and "127.0.0.1:9" in ran.err


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (lambda text: lengths(text, "--isl"), "2048, 512,512", (512, 2048)),
        (span, "1-16", (1, 16)),
        (span, "8", (8, 8)),
        (fraction, "2.5%", 0.025),
    ],
)
def test_options_are_read(parse: Callable[[str], object], text: str, value: object) -> None:
    assert parse(text) == value


def test_the_loads_follow_what_the_server_holds() -> None:
    said = Discovery(models=("m",), engine="vllm", max_model_len=4_096, max_num_seqs=256, engines=2)
    grid = grid_of(said, None, (64,), None)
    assert (grid.isls[0], grid.isls[-1]) == (128, 3_830) and len(grid.isls) == 3
    assert (grid.least_n, grid.most_n, grid.slots) == (1, 64, 512)
    small = Discovery(models=("m",), engine="llamacpp", max_model_len=512, max_num_seqs=4)
    assert grid_of(small, None, (64,), None).isls == (106, 212, 425)
    assert grid_of(small, None, (64,), None).most_n == 4
    silent = grid_of(Discovery(models=("m",), engine="other"), None, (64,), None)
    assert (silent.isls, silent.most_n, silent.slots) == ((128, 512, 2_048), 16, None)
    pool = KvPool(tokens=1_024, block_tokens=16)
    held = Discovery(models=("m",), engine="vllm", max_model_len=512, kv_pool=pool)
    assert grid_of(held, None, (64,), None).pool_tokens == 1_024
    with pytest.raises(UsageError, match="the server's window is 512"):
        grid_of(small, (500,), (64,), None)


def test_new_points_take_the_place_of_old_ones_of_their_loads() -> None:
    old = block((40, 8, 1), (40, 8, 2)), block((80, 8, 1))
    profile = Profile(format=1, name="m", engine=Engine(name="vllm"), measurements=old)
    whole, replaced = with_points(profile, block((40, 8, 2), (80, 8, 1), (80, 8, 2), ms=20.0))
    assert replaced == 2
    assert [[point.load for point in kept.points] for kept in whole.measurements] == [
        [(40, 8, 1)],
        [(40, 8, 2), (80, 8, 1), (80, 8, 2)],
    ]
    assert Profile.model_validate(whole.model_dump()) == whole


@pytest.mark.parametrize("place", ["nowhere/mine.toml", "file/mine.toml", "folder"])
def test_a_place_that_cannot_be_written_to_is_said_before_anything_is_measured(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    ran = agentroute("measure", "http://127.0.0.1:9", "--force", "-o", str(tmp_path / place))
    assert ran.code == 2
    assert "cannot be written to; give another --output" in ran.err
