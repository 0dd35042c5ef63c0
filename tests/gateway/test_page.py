"""The page for people, and the JSON that it shows."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from importlib.resources import files
from pathlib import Path

import pytest
from gateways import Served
from servers import Server, answers, deployment

from agentroute.catalogue import shipped
from agentroute.demo.embedded import EmbeddedServer
from agentroute.gateway.fleet import at, curve_of
from agentroute.gateway.page import FILES
from agentroute.latency.points import Measured, Measurement, Point
from agentroute.origin import Provenance
from agentroute.profile import Engine, Profile

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
STATIC = files("agentroute.gateway").joinpath("static")


@pytest.mark.parametrize("path", FILES)
def test_the_page_runs_and_asks_nothing_that_is_not_its_own(path: str) -> None:
    with Served(deployment(None), keys={"a": {}}) as served:
        answer = served.client.get(path)
        assert served.client.get("/page.py").status_code == 404
    assert answer.status_code == 200
    assert answer.headers["content-type"] == FILES[path][1]
    policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    outside = re.findall(r"https?://[^\s\"']+", answer.text)
    assert set(outside) <= {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_the_page_holds_no_script_or_style_of_its_own() -> None:
    html = STATIC.joinpath("page.html").read_text("utf-8")
    assert not re.search(r"<script(?! src=)|<style|\sstyle=|\son\w+=|javascript:", html)
    ids = set(re.findall(r'byId\("(\w+)"\)', STATIC.joinpath("page.js").read_text("utf-8")))
    assert ids <= set(re.findall(r'id="(\w+)"', html))


def test_the_script_writes_text_and_never_html() -> None:
    script = STATIC.joinpath("page.js").read_text("utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium to look with")
def test_a_browser_shows_it_as_text(tmp_path: Path) -> None:
    whole = '{"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}'
    with (
        Server(answers(whole)) as upstream,
        Served(deployment(upstream.url, name="<img src=x onerror=alert(1)>", adapter="openai")) as served,
    ):
        served.chat()
        served.ended()
        look = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--enable-logging=stderr"]
        look += ["--virtual-time-budget=3000", "--dump-dom", f"http://127.0.0.1:{served.port}/"]
        done = subprocess.run([str(CHROMIUM), *look], capture_output=True, text=True, timeout=120)
    assert "Content Security Policy" not in done.stderr
    assert "Uncaught" not in done.stderr
    assert "<h3>&lt;img src=x onerror=alert(1)&gt;</h3>" in done.stdout
    assert "<img" not in done.stdout
    assert re.search(r"<td>no SLO to keep; best by fit[^<]*</td>", done.stdout)
    assert re.search(r'<td class="up">ok</td>', done.stdout)


def test_the_fleet_is_told_as_it_is_now(llama_one: EmbeddedServer) -> None:
    with Served(deployment(llama_one.url, pool_tokens=2048)) as served:
        served.chat()
        served.ended()
        until = time.monotonic() + 10.0
        while True:  # until a reading was taken after the chat
            told = served.get("/v1/agentroute/fleet").json()
            (here,) = told["deployments"]
            if here["endpoints"][0]["up"] and not here["endpoints"][0]["running"]:
                break
            assert time.monotonic() < until
            time.sleep(0.05)
    assert here["name"] == "here"
    assert here["kv_blocks"] == {"free": 2048, "blocks": 2048}
    (endpoint,) = here["endpoints"]
    assert (endpoint["url"], endpoint["breaker"]) == (llama_one.url, "closed")
    assert (endpoint["running"], endpoint["waiting"]) == (0, 0)
    assert here["now"] == {"concurrency": 0, "tpot_ms": None}
    (decision,) = told["decisions"]
    assert (decision["deployment"], decision["outcome"], decision["output_tokens"]) == ("here", "ok", 6)
    assert "best by fit" in decision["reason"]
    assert decision["took_ms"] > 0
    assert told["queued"] == 0


def test_a_server_that_fails_is_shown_with_its_breaker_open() -> None:
    failing = answers("{}", status=500)
    with Server(failing) as upstream, Served(deployment(upstream.url, adapter="openai")) as served:
        for _ in range(3):
            assert served.chat().status_code >= 500
        told = served.get("/v1/agentroute/fleet").json()
        assert served.get("/ready").status_code == 503
    assert told["deployments"][0]["endpoints"][0]["breaker"] == "open"
    assert {one["outcome"] for one in told["decisions"]} <= {"unavailable", "engine_dead"}


def test_nothing_that_a_caller_wrote_is_kept() -> None:
    whole = '{"choices": [{"index": 0, "message": {"role": "assistant", "content": "plugh"}, "finish_reason": "stop"}]}'
    with Server(answers(whole)) as upstream, Served(deployment(upstream.url, adapter="openai")) as served:
        served.chat(messages=[{"role": "user", "content": "xyzzy"}])
        served.ended()
        told = served.get("/v1/agentroute/fleet").text
    assert "here" in told
    assert "xyzzy" not in told and "plugh" not in told


def profile(*points: tuple[int, int, float]) -> Profile:
    """A profile with TPOT at so many in flight, by prompt length."""
    made = tuple(Point(isl=i, osl=100, concurrency=n, tpot_ms=Measured(mean=tpot)) for i, n, tpot in points)
    source = Provenance(origin="measured", source="here")
    blocks = (Measurement(provenance=source, points=made),) if made else ()
    return Profile(format=1, name="p", engine=Engine(name="vllm"), measurements=blocks)


def test_a_curve_is_of_the_one_size_that_was_measured_most() -> None:
    curve = curve_of(profile((1_000, 16, 30.0), (1_000, 1, 10.0), (8_000, 4, 99.0)))
    assert curve == {
        "isl": 1_000,
        "osl": 100,
        "points": [{"concurrency": 1, "tpot_ms": 10.0}, {"concurrency": 16, "tpot_ms": 30.0}],
    }
    assert curve_of(profile()) is None


@pytest.mark.parametrize(("n", "tpot_ms"), [(0, None), (1, 10.0), (6, 20.0), (11, 30.0), (12, None)])
def test_where_it_stands_is_on_the_line_between_two_points(n: int, tpot_ms: float | None) -> None:
    curve = curve_of(profile((1_000, 1, 10.0), (1_000, 11, 30.0)))
    assert curve is not None
    assert at(curve, n) == tpot_ms


def test_every_shipped_deployment_has_a_curve_to_show() -> None:
    for name in shipped().profile_names:
        curve = curve_of(shipped().profile(name))
        assert curve is not None, name
        assert len({point["concurrency"] for point in curve["points"]}) == len(curve["points"]) >= 1
