"""What the servers' usage teaches about counting, and what not."""

from __future__ import annotations

import pytest

from agentroute.counting import MOST_TAUGHT, Counting
from agentroute.fleet import Deployment, Fleet
from agentroute.profile import Engine, Profile
from agentroute.router import Router
from agentroute.tokens import GENERIC

HI = [{"role": "user", "content": "hi there"}]


@pytest.mark.parametrize(("tokens", "teaches"), [(MOST_TAUGHT, True), (MOST_TAUGHT + 1, False), (None, False)])
def test_a_prompt_of_very_many_tokens_teaches_nothing(tokens: int | None, teaches: bool) -> None:
    counting = Counting(Router(Fleet([Deployment("one", Profile(format=1, name="p", engine=Engine(name="vllm")))])))
    counting.seen("one", HI, (), tokens)
    assert (counting.fingerprint() != GENERIC) is teaches
