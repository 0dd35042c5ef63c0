"""Sessions: what the steps before one have used up and taught; and how the fleet's models count."""

from __future__ import annotations

from typing import Any

import faults
import pytest
from faults import FaultServer
from fleets import nothing_is_held, profile
from pair import HI, one

from agentroute.client import Client, Session
from agentroute.counting import Counting
from agentroute.errors import NoFeasibleDeployment
from agentroute.fleet import Deployment, Fleet
from agentroute.router import Router
from agentroute.task import Slo, Task
from agentroute.tokens import GENERIC


def test_a_session_counts_from_the_usage_of_the_step_before(first: FaultServer) -> None:
    seen: list[Task] = []
    router = one(first)
    with Client(router) as client:
        session = Session("run-1")
        messages: list[dict[str, Any]] = [*HI]
        for _ in range(2):
            reply = client.chat(messages, session=session)
            seen.append(reply.decision.task)
            messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "and then?"}]
    assert [(task.session_id, task.step) for task in seen] == [("run-1", 1), ("run-1", 2)]
    assert [task.context_source for task in seen] == ["generic fingerprint", "usage"]
    counted = faults.USAGE["prompt_tokens"] + faults.USAGE["completion_tokens"]
    assert counted < (seen[1].expected_context_tokens or 0) < counted + 20


def test_each_step_of_a_session_has_what_the_steps_before_it_left(first: FaultServer) -> None:
    now = [100.0]
    session = Session(deadline_s=Slo(10.0, hard=False), clock=lambda: now[0])
    with Client(one(first)) as client:
        assert client.chat(HI, session=session).decision.task.deadline_s == Slo(10.0, hard=False)
        now[0] += 4.0
        assert session.left_s == 6.0
        assert client.chat(HI, session=session).decision.task.deadline_s == Slo(6.0, hard=False)
        own = Task(context_tokens=20, max_output_tokens=20, deadline_s=2.0)
        assert client.chat(HI, task=own, session=session).decision.task.deadline_s == Slo(2.0)
        now[0] += 7.5
        with pytest.raises(NoFeasibleDeployment, match=r"deadline of 10 s passed 1\.5 s ago"):
            client.chat(HI, session=session)
    assert first.asked.total() == 3


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("of", ["prompt_tokens", "completion_tokens", "cached_tokens"])
def test_counts_that_no_server_can_have_counted_are_unknown(
    first: FaultServer, monkeypatch: pytest.MonkeyPatch, of: str, streaming: bool
) -> None:
    """They lost the answer, kept the hold, and left a session whose next step asked for more than any window."""
    details = {"cached_tokens": 1} | ({of: 10**12} if of == "cached_tokens" else {})
    monkeypatch.setattr(faults, "USAGE", faults.USAGE | {of: 10**12} | {"prompt_tokens_details": details})
    router, session = one(first), Session()
    with Client(router) as client:
        for _ in range(2):
            if streaming:
                with client.stream(HI, session=session) as events:
                    list(events)
                reply = events.reply
            else:
                reply = client.chat(HI, session=session)
            assert reply is not None and reply.text == "hi there"
            assert getattr(reply.usage, of) is None
    nothing_is_held(router)


def test_usage_teaches_how_the_fleets_model_counts() -> None:
    counting = Counting(Router(Fleet([Deployment("one", profile(), served_model="m")])))
    assert counting.fingerprint() == GENERIC
    for _ in range(20):
        counting.seen("one", HI, (), 40)
    learnt = counting.fingerprint()
    assert learnt.name == "p" or learnt.name == "m"
    assert learnt.weights != GENERIC.weights


def test_two_models_teach_nothing_about_each_other() -> None:
    fleet = Fleet(
        [Deployment("one", profile("p"), served_model="m"), Deployment("two", profile("q"), served_model="n")]
    )
    counting = Counting(Router(fleet))
    counting.seen("one", HI, (), 40)
    assert counting.fingerprint() == counting.fingerprint("two") == GENERIC
    assert counting.fingerprint("one") != GENERIC
