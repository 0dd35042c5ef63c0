"""Records: a line for every call, that can be decided on again; files that do not grow without end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from faults import FaultServer, answer, says
from fleets import profile

from agentroute.client import Client
from agentroute.decision import replay
from agentroute.errors import BackendError, FileError, NoFeasibleDeployment, UsageError
from agentroute.fleet import Deployment, Fleet
from agentroute.router import Router
from agentroute.task import Task
from agentroute.telemetry import Records

SECRET = "the secret of the prompt"
HI = [{"role": "user", "content": SECRET}]
TASK = Task(context_tokens=20, max_output_tokens=20, session_id="s", parent_session_id="p", step=3)


def router(*urls: str) -> Router:
    priced = (1.0, 1.0)
    return Router(
        Fleet(
            Deployment(
                f"d{i}",
                profile(window=1_000, kv_blocks=1_000 - i, usd_per_million=priced),
                urls=(url,),
                served_model="m",
            )
            for i, url in enumerate(urls)
        )
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_call_is_a_line_that_is_decided_on_again(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with FaultServer() as server:
        by = router(server.url)
        with Records(path) as records, Client(by, observers=[records]) as client:
            reply = client.chat(HI, task=TASK)
            with pytest.raises(NoFeasibleDeployment):
                client.chat(HI, task=Task(context_tokens=5_000))
            server.fault = says(answer(400, b'{"error":{"message":"no: ' + SECRET.encode() + b'"}}'))
            with pytest.raises(BackendError):
                client.chat(HI, task=TASK)
        assert records.dropped == 0
    answered, refused, failed = lines(path)
    assert (answered["result"], answered["deployment"], answered["route"]) == ("ok", "d0", "default")
    assert (answered["session_id"], answered["parent_session_id"], answered["step"]) == ("s", "p", 3)
    assert (answered["prompt_tokens"], answered["output_tokens"]) == (7, 3)
    assert answered["usd"] == pytest.approx(10e-6)
    again = replay(answered["decision"], by)
    assert again == reply.decision
    assert again.e2e_ms == reply.decision.e2e_ms
    assert (refused["result"], refused["deployment"], refused["usd"]) == ("infeasible", None, None)
    with pytest.raises(NoFeasibleDeployment):
        replay(refused["decision"], by)
    assert (failed["result"], failed["attempts"][0]["status"]) == ("bad_request", 400)
    assert SECRET not in path.read_text()


def test_a_full_file_is_put_aside_and_so_many_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with FaultServer() as server:
        with Records(path, max_mib=0.02, keep=2) as records, Client(router(server.url), observers=[records]) as client:
            for _ in range(40):
                client.chat(HI, task=TASK)
        assert records.dropped == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["calls.jsonl", "calls.jsonl.1", "calls.jsonl.2"]
    for file in tmp_path.iterdir():
        assert file.stat().st_size <= 0.02 * 2**20
        assert lines(file)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no disk here is always full")
def test_what_cannot_be_written_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "calls.jsonl"
    path.symlink_to("/dev/full")
    with FaultServer() as server, Records(path) as records, Client(router(server.url), observers=[records]) as client:
        assert client.chat(HI, task=TASK).text == SECRET
    assert records.dropped == 1
    assert "could not be recorded" in caplog.text


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        pytest.param("calls.json", {}, "go to a .jsonl file", id="a name"),
        pytest.param("calls.jsonl", {"max_mib": 0}, "max_mib must be a number above 0", id="a size"),
        pytest.param("calls.jsonl", {"keep": 0}, "keep must be a whole number", id="a number of files"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, name: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Records(tmp_path / name, **given)


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"calls\.jsonl: cannot be written: no such file or directory"):
        Records(tmp_path / "none" / "calls.jsonl")
