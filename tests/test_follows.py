"""A router that goes by another fleet, and what stands around it: clients and watchers follow."""

from __future__ import annotations

import json

import pytest
from servers import Server, answers, deployment, router, until

from agentroute import AsyncWatcher, Client, Router, Watcher
from agentroute.adapters.endpoints import EMBEDDINGS
from agentroute.client import AsyncClient
from agentroute.counting import Counting
from agentroute.errors import BackendError, FailureKind
from agentroute.fleet import Deployment, Fleet
from agentroute.lacks import Lacks
from agentroute.profile import Engine, Profile
from agentroute.tokens import GENERIC

HI = [{"role": "user", "content": "hi there"}]
WHOLE = json.dumps(
    {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}
)
BUSY = "llamacpp:requests_processing {}\nllamacpp:requests_deferred 2\n"


def goes_by(one: Router, *deployments: Deployment) -> None:
    """Another fleet from now on."""
    one.go_by(Router(Fleet(deployments)).rules)


def serving(name: str, model: str) -> Deployment:
    """A deployment of a model of which no tokenizer is known."""
    return Deployment(name, Profile(format=1, name=model, engine=Engine(name="vllm")))


# ---- how models count


def test_a_new_models_usage_teaches_too_and_what_was_learnt_stays() -> None:
    routed = router(serving("one", "p"))
    counting = Counting(routed)
    counting.seen("one", HI, (), 40)
    learnt = counting.fingerprint("one")
    assert learnt != GENERIC
    goes_by(routed, serving("two", "q"), serving("one", "p"))
    assert counting.fingerprint("one") == learnt
    counting.seen("two", HI, (), 40)
    assert counting.fingerprint("two") not in (GENERIC, learnt)
    assert counting.fingerprint() == GENERIC  # there are two models now
    goes_by(routed, serving("one", "p"))
    assert counting.fingerprint() == learnt


# ---- who lacks an endpoint


def test_a_new_deployment_that_lacks_an_endpoint_is_known() -> None:
    has, lacks = (
        deployment("http://x", name="a", adapter="vllm"),
        deployment("http://y", name="b", adapter="transformers"),
    )
    routed = router(has)
    known = Lacks(routed)
    assert not known.of(EMBEDDINGS)
    goes_by(routed, has, lacks)
    assert known.of(EMBEDDINGS) == {"b"}
    goes_by(routed, lacks)
    assert not known.of(EMBEDDINGS)  # all that there are lack it: their own word is better


def test_what_a_server_said_is_not_said_of_another_one_under_its_name() -> None:
    one, two = (deployment(f"http://{host}", name="a") for host in ("x", "y"))
    other = deployment("http://z", name="b")
    routed = router(one, other)
    known = Lacks(routed)
    known.failed(EMBEDDINGS, "a", BackendError(FailureKind.NOT_FOUND, "Not Found", status=404))
    assert known.of(EMBEDDINGS) == {"a"}
    goes_by(routed, two, other)
    assert not known.of(EMBEDDINGS)
    goes_by(routed, other, one)
    assert known.of(EMBEDDINGS) == {"a"}


# ---- whom a client asks, and for what


def test_a_second_server_may_be_asked_at_once_as_soon_as_there_is_one() -> None:
    one, two = deployment("http://x", name="a"), deployment("http://y", name="b")
    routed = router(one)
    means = AsyncClient(routed)._means
    seen = [means.replicated]
    for fleet in ((one, two), (two,)):
        goes_by(routed, *fleet)
        seen.append(means.replicated)
    assert seen == [False, True, False]


def test_another_server_under_the_same_name_is_asked_for_its_own_model() -> None:
    def behaves(model: str) -> Server:
        listed = answers(json.dumps({"object": "list", "data": [{"id": model}]}))
        return Server(lambda at, asked: (listed if asked.method == "GET" else answers(WHOLE))(at, asked))

    with behaves("p") as first, behaves("q") as second:
        at = [deployment(server.url, adapter="openai", served_model=None) for server in (first, second)]
        routed = router(at[0])
        with Client(routed) as client:
            client.chat(HI)
            goes_by(routed, at[1])
            client.chat(HI)
        sent = [json.loads(a.body)["model"] for server in (first, second) for a in server.asked if a.method == "POST"]
    assert sent == ["p", "q"]


# ---- whom a watcher reads


def test_a_watcher_reads_who_came_leaves_who_went_and_remembers_who_stayed() -> None:
    with (
        Server(answers(BUSY.format(1), content_type="text/plain")) as one,
        Server(answers(BUSY.format(2), content_type="text/plain")) as two,
        Server(answers(BUSY.format(3), content_type="text/plain")) as three,
    ):
        a, b, c = (deployment(server.url, name=name) for server, name in ((one, "a"), (two, "b"), (three, "c")))
        routed = router(a, b)
        with Watcher(routed, interval_s=0.05) as watcher:
            until(lambda: [v.load.running for v in watcher.vitals.values()] == [1, 2])
            pulse = next(w.pulse for w in watcher._watcher._watched.values() if w.url == two.url)
            goes_by(routed, b, c)
            until(lambda: watcher.vitals.get(("c", three.url)) is not None)
            until(lambda: watcher.vitals["c", three.url].load.running == 3)
            assert set(watcher.vitals) == {("b", two.url), ("c", three.url)}
            assert pulse is next(w.pulse for w in watcher._watcher._watched.values() if w.url == two.url)
            asked = len(one.asked)
            until(lambda: len(three.asked) > 10)
            assert len(one.asked) <= asked + 1  # that was under way


def test_a_look_is_at_the_fleet_of_this_moment() -> None:
    with Server(answers(BUSY.format(4), content_type="text/plain")) as server:
        routed = router(deployment("http://127.0.0.1:9"))
        watcher = Watcher(routed)
        goes_by(routed, deployment(server.url, name="new"))
        watcher.look()
        assert [(key, vital.load.running) for key, vital in watcher.vitals.items()] == [(("new", server.url), 4)]


def test_a_fleet_that_cannot_be_watched_is_said_and_the_one_before_is_read_on(caplog: pytest.LogCaptureFixture) -> None:
    routed = router(deployment("http://127.0.0.1:9"))
    watcher = AsyncWatcher(routed)
    goes_by(routed, deployment("http://127.0.0.1:9", adapter="nothing"))
    watcher._renew()
    watcher._renew()
    assert list(watcher.vitals) == [("here", "http://127.0.0.1:9")]
    assert ["there is no adapter 'nothing'" in record.getMessage() for record in caplog.records] == [True]
