"""Any log: whose it is, what is refused, and that nothing breaks the reader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.catalogue import shipped
from agentroute.cli.profiles_from import profile_of_log
from agentroute.errors import UsageError
from agentroute.profile import EngineName
from agentroute.startup.devices import ACCELERATORS
from agentroute.startup.log import ENGINES, read

DATA = Path(__file__).parents[1] / "data" / "startup"
LOGS = sorted(DATA.glob("*.log"))
LINES = [log.read_text().split("\n") for log in LOGS]


@pytest.mark.parametrize("log", LOGS, ids=lambda log: str(log.stem))
def test_the_engine_is_known_by_its_lines(log: Path) -> None:
    assert read(log.read_text()).engine == log.stem.split("-")[0]


@pytest.mark.parametrize("name", ENGINES)
def test_the_line_that_is_asked_for_would_be_understood(name: EngineName) -> None:
    assert list(read(ENGINES[name].EXAMPLE).facts())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no start-up line of an engine that is understood; there should be one such as vllm: 'GPU KV"),
        ("GET / 200 OK\n", "holds no start-up line"),
        (
            "# GPU blocks: 9\nllama_context: n_ctx = 9",
            "start-up lines of vllm and llamacpp; give the log of one server",
        ),
        ("see vllm serve and its manual\n", "speaks of vllm, but holds nothing of its start"),
    ],
)
def test_what_is_no_start_up_log_is_refused_in_one_sentence(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(text)
    assert says in str(refused.value) and "\n" not in str(refused.value)


def test_of_several_starts_the_last_counts() -> None:
    log = (DATA / "vllm-0.32.0-tp2.log").read_text()
    again = log.replace("1,536 tokens", "3,072 tokens").replace("'max_num_seqs': 4", "'max_num_seqs': 8")
    started = read(log + again)
    assert started.kv_tokens and started.kv_tokens.value == 3072
    assert started.max_num_seqs and started.max_num_seqs.value == 8
    assert "the log holds 2 starts" in started.remarks[0]


def test_every_device_is_an_accelerator_that_ships() -> None:
    assert set(ACCELERATORS.values()) <= set(shipped().accelerator_names)


SECRET = "sk-not-a-real-key"


@pytest.mark.parametrize(
    "text",
    [
        f"vllm serve --api-key {SECRET} org/m --max-model-len 9",
        f"vllm serve org/m --api-key={SECRET} --hf-token {SECRET} --max-model-len 9",
        f"vllm serve s3://user:{SECRET}@host/m?key={SECRET} --max-model-len 9",
        f"non-default args: {{'api_key': '{SECRET}', 'hf_token': '{SECRET}', 'max_model_len': 9}}",
        f"args: Namespace(api_key=['{SECRET}'], model='m', max_model_len=9)\n# GPU blocks: 7",
        f"server_args=ServerArgs(model_path='m', api_key='{SECRET}', admin_api_key='{SECRET}', tp_size=8)",
        f"python -m sglang.launch_server --api-key {SECRET} --model-path m --tp 8",
        f"llama-server --api-key {SECRET} -m m.gguf -c 9 -np 1",
        f"trtllm-serve m --tp_size 8 --hf_token {SECRET}",
        f"HF_TOKEN={SECRET} trtllm-serve --hf_token {SECRET} m --tp_size 8",
    ],
)
def test_a_key_in_the_log_is_never_repeated(text: str) -> None:
    started = read(text)
    profile = profile_of_log(started, Path("server.log"), None)
    assert SECRET not in profile.model_dump_json()
    assert SECRET not in repr(started.remarks) + repr(started.pool_notes)


numbers = st.integers(0, 10**12).map(str) | st.sampled_from(["0", "1", "-1", "None", "auto", "9" * 400, "²", "٣"])


@st.composite
def mangled(draw: st.DrawFn) -> str:
    """A few lines of one engine, with other numbers, cut short, in any order, with anything between them."""
    theirs = draw(st.sampled_from(LINES))
    lines = draw(st.lists(st.sampled_from(theirs) | st.text(max_size=40), max_size=12))
    out = []
    for line in lines:
        line = re.sub(r"\d+", lambda _: draw(numbers), line[:3000], count=draw(st.integers(0, 4)))
        out.append(line[: draw(st.integers(0, len(line)))] if draw(st.booleans()) else line)
    return "\n".join(out)


@given(mangled() | st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        started = read(text)
    except UsageError:
        return
    profile = profile_of_log(started, Path("server.log"), None)
    assert profile.engine.name == started.engine
    for _, found in started.facts():
        assert 1 <= found.line <= text.count("\n") + 1
