"""The way to a server: its address, proxies, certificates and keys."""

from __future__ import annotations

import asyncio
import json
import ssl
import traceback
from pathlib import Path

import pytest
import trustme
from servers import HELLO, SHORT, WHOLE, Server, answers, deployment, forwards, free_tokens, router

from agentroute.adapters import adapter
from agentroute.client import AsyncClient, Client, Reply
from agentroute.demo.embedded import MODEL_ALIAS, EmbeddedServer
from agentroute.errors import BackendError, FailureKind, UnknownNameError, UsageError
from agentroute.probe import probe
from agentroute.router import Router

pytestmark = pytest.mark.usefixtures("no_proxy")


# --- addresses, proxies, certificates


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_a_base_url_ends_in_v1_or_not(llama_split: EmbeddedServer, suffix: str) -> None:
    with Client(router(deployment(llama_split.url + suffix))) as client:
        assert client.chat(HELLO, body=SHORT).text
    assert probe(llama_split.url + suffix, adapter("llamacpp")).models == (MODEL_ALIAS,)


def test_a_server_may_stand_behind_a_path(llama_split: EmbeddedServer) -> None:
    with Server(forwards(llama_split.url, lambda target: target.removeprefix("/team/llm"))) as front:
        with Client(router(deployment(f"{front.url}/team/llm/v1", served_model=None))) as client:
            assert client.chat(HELLO, body=SHORT).text
            assert client.chat(HELLO, body=SHORT).text
        targets = [asked.target for asked in front.asked]
    chats = ["/team/llm/v1/chat/completions"] * 2
    assert targets == ["/team/llm/v1/models", "/team/llm/props", *chats], "the model's name is asked for once"


def test_a_proxy_from_the_environment_is_used(llama_split: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def path(target: str) -> str:
        return target.removeprefix("http://backend.invalid:8000")

    with Server(forwards(llama_split.url, path)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        routed = router(deployment("http://backend.invalid:8000"))
        with Client(routed) as client:
            assert client.chat(HELLO, body=SHORT).text
            with client.stream(HELLO, body=SHORT) as events:
                assert list(events)
        assert asyncio.run(_chat(routed)).text
        assert probe("http://backend.invalid:8000", adapter("openai")).models == (MODEL_ALIAS,)
        assert len(proxy.asked) == 4


def test_a_private_authority_from_the_environment_is_trusted(
    llama_split: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with Server(forwards(llama_split.url), tls=tls) as front:
        routed = router(deployment(f"https://127.0.0.1:{front.port}/v1"))
        with Client(routed) as client, pytest.raises(BackendError, match="CERTIFICATE_VERIFY_FAILED") as caught:
            client.chat(HELLO, body=SHORT)
        assert caught.value.kind is FailureKind.UNAVAILABLE
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        with Client(routed) as client:
            assert client.chat(HELLO, body=SHORT).text
        assert asyncio.run(_chat(routed)).text


@pytest.mark.parametrize(
    ("variable", "value"),
    [("SSL_CERT_FILE", "/no/such/file.pem"), ("HTTP_PROXY", "gopher://x")],
)
def test_a_wrong_setting_in_the_environment_is_one_sentence(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    wrong = "the proxy or certificate settings in the environment are wrong"
    with Client(router(deployment("http://127.0.0.1:9"))) as client, pytest.raises(UsageError, match=wrong):
        client.chat(HELLO)


async def _chat(routed: Router) -> Reply:
    async with AsyncClient(routed) as client:
        return await client.chat(HELLO, body=SHORT)


# --- keys


def test_the_key_from_the_environment_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE_KEY", " sk-123456 \n")
    refusal = answers('{"error":{"message":"no such key: sk-123456"}}', status=401)
    with Server(refusal) as server:
        routed, words = router(deployment(server.url, api_key_env="HERE_KEY")), r"no such key: \*\*\*"
        with Client(routed) as client, pytest.raises(BackendError, match=words) as caught:
            client.chat(HELLO)
        with pytest.raises(BackendError, match=words):
            probe(server.url, adapter("openai"), api_key_env="HERE_KEY")
        assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer sk-123456"] * 2
    assert "sk-123456" not in str(caught.value)


def test_without_a_variable_no_key_is_sent() -> None:
    with Server(answers(WHOLE)) as server, Client(router(deployment(server.url))) as client:
        client.chat(HELLO)
        assert "authorization" not in server.asked[0].headers


@pytest.mark.parametrize("value", [None, "", "  ", "sk-a\nb", "sk-é"])
def test_a_key_that_is_missing_or_none_names_its_variable(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HERE_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("HERE_KEY", value)
    words = "the environment variable HERE_KEY"
    routed = router(deployment("http://127.0.0.1:9", api_key_env="HERE_KEY"))
    with Client(routed) as client, pytest.raises(UsageError, match=words) as caught:
        client.chat(HELLO)
    assert "sk-" not in str(caught.value)


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    with pytest.raises(UsageError, match="must not hold a password") as caught:
        deployment("http://me:secret@127.0.0.1:8000")
    assert "secret" not in str(caught.value)


def test_a_key_that_a_server_echoes_is_nowhere_in_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE_KEY", key := "sk-" + "a1b2c3d4e5f6" * 4)
    padding = "x" * 270  # the message is cut at 300 characters, in the middle of the key
    for message in (f"bad key {key}", f"{padding} bad key {key}"):
        body = json.dumps({"error": {"message": message, "code": 401}})
        with Server(answers(body, status=401)) as server:
            routed = router(deployment(server.url, api_key_env="HERE_KEY"))
            with Client(routed) as client, pytest.raises(BackendError) as caught:
                client.chat(HELLO)
        shown = "".join(traceback.format_exception(caught.value))
        assert key[:6] not in shown
        assert "***" in str(caught.value)


# --- no way at all


def test_a_deployment_without_a_url_can_not_be_called() -> None:
    routed = router(deployment(None))
    with Client(routed) as client, pytest.raises(UsageError, match="'here' has no URL"):
        client.chat(HELLO)


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://x", "http://", "http://[", "http://x:99999", "http://x:y", "/v1"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not a"):
        probe(url, adapter("openai"))


def test_an_adapter_that_does_not_exist_is_refused_and_nothing_stays_held() -> None:
    routed = router(deployment("http://127.0.0.1:9", adapter="llamacp", pool_tokens=2048))
    with Client(routed) as client, pytest.raises(UnknownNameError, match="did you mean 'llamacpp'"):
        client.chat(HELLO)
    assert free_tokens(routed) == 2048
