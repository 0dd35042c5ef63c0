"""``agentroute profiles from-log`` and ``from-server``."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import servers
from console import agentroute

from agentroute.cli.init import model_id
from agentroute.cli.profiles_from import MAX_BYTES
from agentroute.config import Config
from agentroute.demo.embedded import EmbeddedServer
from agentroute.profile import Profile
from agentroute.shape.sharding import Sharding

DATA = Path(__file__).parents[1] / "data" / "startup"
LOGS = sorted(DATA.glob("*.log"))
SERVERS = DATA.parent / "servers"
SECRET = "sk-not-a-real-key"
VLLM, SGLANG = "vllm-0.32.0-tp2", "sglang-0.5.23-attention-dp4"
DEVELOPMENT = "/server_info?config_format=json"


def recorded(name: str, **changed: Any) -> servers.Server:
    """A server that answers as the recorded one did; a route that it does not have is a 404."""
    routes: Mapping[str, Any] = json.loads((SERVERS / f"{name}.json").read_text()) | changed

    def behave(connection: socket.socket, asked: servers.Asked) -> None:
        if (found := routes.get(asked.target)) is None:
            return servers.answers('{"detail":"Not Found"}', status=404)(connection, asked)
        lines = isinstance(found, list)
        servers.answers("\n".join(found) if lines else json.dumps(found))(connection, asked)

    return servers.Server(behave)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: str(log.stem))
def test_a_log_becomes_a_profile_that_validates(log: Path, tmp_path: Path) -> None:
    ran = agentroute("profiles", "from-log", str(log))
    assert ran.code == 0, ran.err
    file = tmp_path / "mine.toml"
    file.write_text(ran.out)
    assert agentroute("profiles", "validate", str(file)).code == 0
    profile = Profile.load(file)
    assert profile.limits and profile.limits.provenance.origin == "reported"
    assert log.name in profile.limits.provenance.source
    assert profile.limits.provenance.engine_version == profile.engine.version
    assert profile.provenance and profile.provenance.source == profile.limits.provenance.source
    assert profile.provenance.origin == "reported"


def test_the_profile_holds_what_the_log_says_and_stderr_says_where(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    log = str(DATA / "vllm-0.32.0-dp2-ep.log")
    ran = agentroute("profiles", "from-log", log, "--name", "mine", "--output", str(file))
    assert (ran.code, ran.out) == (0, ""), ran.err
    profile = Profile.load(file)
    assert (profile.name, profile.engine.name, profile.engine.version) == ("mine", "vllm", "0.32.0")
    assert profile.sharding == Sharding(attention_dp=2, ep=2)
    assert profile.pool and (profile.pool.blocks, profile.pool.block_tokens) == (11, 128)
    assert (profile.accelerator, profile.model, profile.points) == (None, None, ())
    for words in ("attention_dp = 2", "kv_tokens = 1536", "unknown: device", "write the one it is into `model`"):
        assert words in ran.err


def test_a_shipped_model_and_accelerator_are_referred_to(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "Initializing a V1 LLM engine (v0.19.1) with config: model='openai/gpt-oss-120b', tensor_parallel_size=2\n"
        "Using configuration from E=128,N=1440,device_name=NVIDIA_H100_80GB_HBM3.json for MoE layer.\n"
    )
    profile = agentroute("profiles", "from-log", str(log), "--json").json["profile"]
    assert (profile["model"], profile["accelerator"]) == ("gpt-oss-120b", "h100_sxm")
    assert profile["sharding"]["tp"] == 2


def test_json_says_what_was_read_from_which_line_and_what_was_not() -> None:
    answer = agentroute("profiles", "from-log", str(DATA / "llamacpp-split.log"), "--json").json
    assert answer["command"] == "profiles from-log"
    assert answer["profile"]["limits"]["kv_pool"]["tokens"] == 2048
    assert {"name": "max_num_seqs", "value": 4, "line": 94} in answer["read"]
    assert "version" in answer["unknown"]
    assert any("split this memory" in note for note in answer["notes"])


def test_a_block_that_the_log_does_not_name_is_said_to_be_a_default(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("GPU KV cache size: 389,888 tokens\n")
    profile = agentroute("profiles", "from-log", str(log), "--json").json["profile"]
    assert profile["limits"]["kv_pool"]["block_tokens"] == 16
    assert "16 tokens is the engine's default" in profile["limits"]["kv_pool"]["provenance"]["notes"]
    assert "sharding" not in profile


def test_a_command_line_is_read_from_standard_input() -> None:
    ran = agentroute("profiles", "from-log", "-", stdin=f"vllm serve org/m --api-key {SECRET} -tp 4\n")
    assert ran.code == 0, ran.err
    assert "tp = 4" in ran.out and 'name = "m"' in ran.out
    assert SECRET not in ran.out + ran.err


def test_a_command_line_alone_says_where_the_split_comes_from(tmp_path: Path) -> None:
    file, mine = tmp_path / "start.sh", tmp_path / "mine.toml"
    file.write_text("vllm serve org/m -tp 4\n")
    ran = agentroute("profiles", "from-log", str(file), "--output", str(mine))
    assert ran.code == 0, ran.err
    profile = Profile.load(mine)
    assert profile.limits is None and profile.provenance
    assert (profile.provenance.origin, profile.provenance.source) == ("reported", "command line of vllm (start.sh)")
    assert mine.read_text().startswith("# From the command line of vllm (start.sh).\n")
    assert "sharding: tp4, reported, command line of vllm (start.sh)" in agentroute("profiles", "show", str(mine)).out


def test_where_the_split_is_unknown_the_engine_has_a_source_all_the_same(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    agentroute("profiles", "from-log", str(DATA / "llamacpp-split.log"), "--output", str(mine))
    sources = agentroute("profiles", "show", str(mine), "--json").json["sources"]
    assert "engine: llamacpp, reported, start-up log of llamacpp (llamacpp-split.log)" in sources
    assert not any(source.startswith("sharding") for source in sources)


MEASURED = """\
Initializing a V1 LLM engine (v0.19.1) with config: model='meta-llama/Llama-3.1-8B-Instruct', dtype=torch.bfloat16, \
max_seq_len=131072, tensor_parallel_size={tp}, quantization=None, kv_cache_dtype=auto
Model loading took 14.99 GiB
Available KV cache memory: 52.13 GiB
{more}
"""


def test_memory_that_was_read_stands_in_the_notes(tmp_path: Path) -> None:
    log, mine = tmp_path / "server.log", tmp_path / "mine.toml"
    log.write_text(MEASURED.format(tp=1, more="GPU KV cache size: 427,040 tokens"))
    assert agentroute("profiles", "from-log", str(log), "-o", str(mine)).code == 0
    profile = Profile.load(mine)
    assert profile.provenance and profile.provenance.notes == "14.99 GiB of weights on one accelerator"
    pool = profile.limits and profile.limits.kv_pool
    assert pool and pool.provenance and pool.provenance.notes
    assert pool.provenance.notes.startswith("52.13 GiB of KV memory on one accelerator; ")
    out = agentroute("profiles", "show", str(mine)).out
    assert "note: 14.99 GiB of weights" in out and "note: 52.13 GiB of KV memory" in out
    log.write_text(MEASURED.format(tp=1, more=""))
    provenance = agentroute("profiles", "from-log", str(log), "--json").json["profile"]["provenance"]
    assert provenance["notes"].endswith("; 52.13 GiB of KV memory on one accelerator")


def test_with_the_accelerator_a_log_answers_what_the_deployment_holds(tmp_path: Path) -> None:
    log, mine = tmp_path / "server.log", tmp_path / "mine.toml"
    log.write_text(MEASURED.format(tp=1, more="GPU KV cache size: 427,040 tokens"))
    command = ("profiles", "from-log", str(log), "--output", str(mine), "--accelerator", "h100_sxm")
    ran = agentroute(*command, "--accelerator-count", "1")
    assert ran.code == 0 and "written down" not in ran.err, ran.err
    profile = Profile.load(mine)
    assert (profile.model, profile.accelerator, profile.accelerators) == ("llama-3.1-8b", "h100_sxm", 1)
    assert profile.provenance and profile.provenance.notes
    assert "given by hand: --accelerator h100_sxm, --accelerator-count 1" in profile.provenance.notes
    shown = agentroute("profiles", "show", str(mine))
    assert "weights, each" in shown.out
    rows = agentroute("profiles", "show", str(mine), "--json").json["outlook"]
    assert rows and all(row["n_max"] and row["ttft_alone_ms"] for row in rows)


def test_what_is_given_comes_before_what_the_log_says_and_is_said(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(MEASURED.format(tp=2, more="found at /x/E=40,N=512,device_name=NVIDIA_L40S.json"))
    ran = agentroute(
        "profiles", "from-log", str(log), "--json", "--accelerator", "h100_sxm", "--accelerator-count", "4"
    )
    profile = ran.json["profile"]
    assert (profile["accelerator"], profile["accelerator_count"]) == ("h100_sxm", 4)
    assert "sharding" not in profile
    for words in (
        "--accelerator h100_sxm is written down, though the log says l40s",
        "--accelerator-count 4 is written down, though the log says tp2, which takes 2; the sharding stays unknown",
    ):
        assert words in ran.err
    wrong = agentroute("profiles", "from-log", str(log), "--accelerator", "h100")
    assert wrong.code == 2 and "there is no accelerator 'h100'" in wrong.err


@pytest.mark.parametrize(
    ("command", "count", "sharding"),
    [("vllm serve org/m --max-num-seqs 4", "1", Sharding()), ("vllm serve org/m --max-num-seqs 4", "2", None)],
)
def test_one_accelerator_is_not_split_and_of_several_the_split_stays_unknown(
    command: str, count: str, sharding: Sharding | None, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.toml"
    ran = agentroute("profiles", "from-log", "-", "--accelerator-count", count, "-o", str(mine), stdin=f"{command}\n")
    assert ran.code == 0, ran.err
    assert Profile.load(mine).sharding == sharding


def test_a_name_cannot_move_the_terminal(tmp_path: Path) -> None:
    log, out = tmp_path / "a\a\x1b[2Jb.log", tmp_path / "c\x9bd.toml"
    log.write_text("vllm serve org/m -tp 4\n")
    said = ""
    for command in ((str(log),), (str(log), "-o", str(out)), (str(log), "-o", str(out)), (str(tmp_path / "\a.log"),)):
        ran = agentroute("profiles", "from-log", *command)
        said += ran.out + ran.err
    empty = tmp_path / "\anone.log"
    empty.write_text("GET /\n")
    said += agentroute("profiles", "from-log", str(empty)).err
    said += agentroute("profiles", "from-log", str(log), "-o", str(tmp_path / "none\a" / "x.toml")).err
    assert "a\\x07\\x1b[2Jb.log" in said and "c\\x9bd.toml is there already" in said and "cannot be written" in said
    assert all(one.isprintable() or one == "\n" for one in said + out.read_text())
    assert Profile.load(out).sharding == Sharding(tp=4)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"GET / 200 OK\n", "holds no start-up line of an engine that is understood"),
        (b"", "holds no start-up line"),
        (f"api_key={SECRET}\n".encode(), "holds no start-up line"),
        (b"\x7fELF\x00\x00vllm serve m -tp 4", "is not a text file"),
        (None, "cannot be read: no such file or directory"),
    ],
)
def test_what_is_no_log_is_refused_in_one_sentence(content: bytes | None, says: str, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    if content is not None:
        log.write_bytes(content)
    ran = agentroute("profiles", "from-log", str(log))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {log}: {says}") and ran.err.count("\n") == 1
    assert SECRET not in ran.err


def test_a_log_that_is_too_large_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with log.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert "is larger than 64 MiB; cut it after the start" in agentroute("profiles", "from-log", str(log)).err


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_other_encodings_of_text_are_read(encoding: str, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("vllm serve org/m -tp 4\n", encoding=encoding)
    assert agentroute("profiles", "from-log", str(log), "--json").json["profile"]["sharding"]["tp"] == 4


def test_a_few_wrong_bytes_do_no_harm(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"\xff\xfa progress \xe2\x96\nvllm serve org/m -tp 4\n")
    assert agentroute("profiles", "from-log", str(log)).code == 0


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("# mine\n")
    command = ("profiles", "from-log", str(DATA / "vllm-0.32.0-tp2.log"), "--output", str(file))
    ran = agentroute(*command)
    assert ran.code == 2 and "--force" in ran.err
    assert file.read_text() == "# mine\n"
    assert agentroute(*command, "--force").code == 0
    assert Profile.load(file).sharding == Sharding(tp=2)


def test_a_name_that_is_none_is_refused() -> None:
    ran = agentroute("profiles", "from-log", str(DATA / "vllm-0.32.0-tp2.log"), "--name", "  ")
    assert ran.code == 2 and "--name must begin with a letter or digit" in ran.err


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"),
        ("/x/.cache/huggingface/hub/models--openai--gpt-oss-120b/snapshots/b5c939d", "openai/gpt-oss-120b"),
        ("/home/somebody/models/mine/", "mine"),
        ("C:\\models\\mine.gguf", "mine"),
        ("models/mine.gguf", "mine"),
        (f"s3://user:{SECRET}@host/bucket/mine?key={SECRET}", "mine"),
        (f"s3://AKIAKEY:{SECRET}@bucket", "bucket"),
        (f"https://{SECRET}@huggingface.co", "huggingface.co"),
        (SECRET, "server"),
        ("", "server"),
    ],
)
def test_a_path_or_url_is_shown_by_its_last_part_alone(given: str, shown: str) -> None:
    assert model_id(given) == shown


def test_a_running_server_becomes_a_profile(tmp_path: Path, llama_one: EmbeddedServer) -> None:
    file = tmp_path / "mine.toml"
    ran = agentroute("profiles", "from-server", llama_one.url, "--output", str(file), "--name", "mine")
    assert ran.code == 0, ran.err
    profile = Profile.load(file)
    assert (profile.name, profile.engine.name) == ("mine", "llamacpp")
    assert profile.limits and (profile.limits.max_model_len, profile.limits.max_num_seqs) == (2048, 1)
    assert profile.limits.provenance.origin == "reported" and llama_one.url in profile.limits.provenance.source
    assert profile.pool and profile.pool.tokens == 2048
    assert profile.provenance == profile.limits.provenance


def test_a_key_in_a_server_s_model_is_never_repeated(tmp_path: Path) -> None:
    models = json.dumps({"object": "list", "data": [{"id": f"s3://user:{SECRET}@bucket"}]})
    with servers.Server(servers.answers(models)) as server:
        ran = agentroute("profiles", "from-server", server.url)
    assert ran.code == 0, ran.err
    assert 'name = "bucket"' in ran.out and SECRET not in ran.out + ran.err


def test_what_a_running_server_does_not_say_stays_unknown(llama_split: EmbeddedServer) -> None:
    ran = agentroute("profiles", "from-server", llama_split.url)
    assert ran.code == 0
    assert 'name = "smollm2-135m"' in ran.out and "kv_pool" not in ran.out
    assert "the KV pool is unknown" in ran.err
    answer = agentroute("profiles", "from-server", llama_split.url, "--json").json
    assert answer["profile"]["limits"]["max_model_len"] == 512
    assert "the KV pool is unknown" in answer["notes"][0]


def test_a_server_that_does_not_answer_is_a_failure_and_a_url_that_is_none_a_mistake() -> None:
    ran = agentroute("profiles", "from-server", f"http://127.0.0.1:{servers.free_port()}")
    assert (ran.code, ran.out) == (1, "") and "unavailable" in ran.err
    ran = agentroute("profiles", "from-server", "localhost:8080")
    assert ran.code == 2 and "must be an address such as" in ran.err


@pytest.mark.parametrize("command", [("profiles", "from-server"), ("init",)])
def test_a_server_without_a_model_is_a_failure(command: tuple[str, ...]) -> None:
    with servers.Server(servers.answers('{"object": "list", "data": []}')) as server:
        ran = agentroute(*command, server.url)
    assert ran.code == 1 and "lists no model" in ran.err


def test_a_vllm_server_becomes_a_profile(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    with recorded(VLLM) as server:
        ran = agentroute("profiles", "from-server", server.url, "--output", str(file))
        assert ran.code == 0, ran.err
    assert "vllm over the vllm wire, model tiny" in ran.err and "note" not in ran.err
    profile = Profile.load(file)
    assert (profile.engine.name, profile.engine.version, profile.sharding) == ("vllm", "0.32.0", Sharding(tp=2))
    assert (profile.precision.weights, profile.precision.kv) == ("bf16", "bf16")
    limits = profile.limits
    assert limits and (limits.max_model_len, limits.max_num_seqs, limits.max_num_batched_tokens) == (1024, 4, 4096)
    assert limits.provenance.origin == "reported"
    assert limits.provenance.source.startswith("the server at http://127.0.0.1:")
    assert profile.pool and (profile.pool.blocks, profile.pool.block_tokens) == (11, 128)


def test_a_vllm_server_outside_development_mode_leaves_its_split_unknown() -> None:
    with recorded("vllm-0.32.0-dp2", **{DEVELOPMENT: None}) as server:
        ran = agentroute("profiles", "from-server", server.url)
    assert ran.code == 0, ran.err
    assert "sharding" not in ran.out and "precision" not in ran.out and "tokens = 1536" in ran.out
    assert "2 data-parallel engines answer here" in ran.err


def test_what_a_reader_of_the_pool_must_know_stands_in_the_profile() -> None:
    metrics = ['vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0']
    with recorded(VLLM, **{"/metrics": metrics}) as server:
        ran = agentroute("profiles", "from-server", server.url, "--json")
    pool = ran.json["profile"]["limits"]["kv_pool"]
    assert (pool["tokens"], pool["block_tokens"]) == (1600, 16)
    assert (
        "tells its blocks, not its tokens" in pool["provenance"]["notes"] and pool["provenance"]["origin"] == "reported"
    )
    assert any("tells its blocks, not its tokens" in note for note in ran.json["notes"])


def test_an_sglang_server_becomes_a_profile_without_its_keys(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    with recorded(SGLANG) as server:
        ran = agentroute("profiles", "from-server", server.url, "--output", str(file))
        told = agentroute("profiles", "from-server", server.url, "--json")
    assert ran.code == 0, ran.err
    profile = Profile.load(file)
    assert (profile.model, profile.accelerator, profile.accelerators) == ("deepseek-v3", "h200_sxm", 8)
    assert profile.sharding == Sharding(tp=2, attention_dp=4, ep=8) and profile.kv_memories == 4
    assert (profile.precision.weights, profile.precision.kv) == ("fp8", "fp8_e4m3")
    assert profile.pool and (profile.pool.blocks, profile.pool.block_tokens) == (12_296, 64)
    assert profile.capabilities and profile.capabilities.offers == {"tools": True, "vision": False, "audio": False}
    assert SECRET not in ran.out + ran.err + told.out + told.err + file.read_text()


def test_init_writes_the_adapter_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with recorded(VLLM) as one, recorded(SGLANG) as other:
        ran = agentroute("init", one.url, other.url)
    assert ran.code == 0, ran.err
    assert [each.adapter for each in Config.load(tmp_path / "agentroute.toml").deployments] == ["vllm", "sglang"]
    assert SECRET not in ran.out + ran.err + "".join(file.read_text() for file in tmp_path.rglob("*.toml"))


def test_what_the_caller_knows_comes_before_what_the_server_says_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--accelerator", "b200_sxm", "--tp", "4", "--kv-tokens", "64000")
    with recorded(SGLANG) as server:
        ran = agentroute("init", server.url, *options)
    assert ran.code == 0, ran.err
    profile = Profile.load(tmp_path / "profiles" / "DeepSeek-V3.toml")
    assert (profile.accelerator, profile.sharding) == ("b200_sxm", Sharding(tp=4, attention_dp=4, ep=8))
    assert profile.pool and (profile.pool.blocks, profile.pool.block_tokens) == (1000, 64)
    for words in (
        "--tp 4 is written down, though the server says 2",
        "--accelerator b200_sxm is written down, though the server says h200_sxm",
        "--kv-tokens 64000 is written down, though the server says 786944",
    ):
        assert words in ran.err
    assert "--attention-dp" not in ran.err
    assert profile.provenance and profile.provenance.origin == "reported"
    assert profile.provenance.notes == "given by hand: --accelerator b200_sxm, --tp 4"


def test_engines_that_the_metrics_show_stand_beside_the_split_that_the_caller_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with recorded("vllm-0.32.0-dp2", **{DEVELOPMENT: None}) as server:
        ran = agentroute("init", server.url, "--tp", "4")
    assert ran.code == 0, ran.err
    assert Profile.load(tmp_path / "profiles" / "tiny.toml").sharding == Sharding(tp=4, attention_dp=2)
    assert "is written down, though" not in ran.err


def test_a_number_of_accelerators_that_contradicts_the_split_is_said_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with recorded(VLLM) as server:
        refused = agentroute("init", server.url, "--tp", "2", "--accelerator-count", "8")
        ran = agentroute("init", server.url, "--accelerator-count", "8")
    assert refused.code == 2 and "--accelerator-count is 8, but the split (tp2) takes 2" in refused.err
    assert ran.code == 0, ran.err
    assert "--accelerator-count 8 is written down, though the server says 2" in ran.err
    profile = Profile.load(tmp_path / "profiles" / "tiny.toml")
    assert (profile.accelerators, profile.sharding) == (8, None)


def test_a_split_that_does_not_fit_the_servers_is_refused_with_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with recorded(SGLANG) as server:
        ran = agentroute("init", server.url, "--ep", "3")
    assert ran.code == 2
    assert "ep must divide tp * attention_dp = 8, got 3 (the server says tp2 ep8 adp4)" in ran.err


# ---- other runtimes


@pytest.mark.parametrize(
    ("server", "adapter", "engine", "engines", "pool"),
    [
        ("dynamo-1.6.1-two-workers", "dynamo", "dynamo", 2, (128, 16)),
        ("trtllm-1.3", "trtllm", "trtllm", None, (1_000, 32)),
        ("sglang-router-0.3.2", "sglang_router", "other", 2, None),
        ("vllm-router-0.1.17", "vllm_router", "llamacpp", 2, None),
    ],
)
def test_init_knows_every_runtime_and_the_doctor_agrees(
    server: str,
    adapter: str,
    engine: str,
    engines: int | None,
    pool: tuple[int, int] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with recorded(server) as one:
        ran = agentroute("init", one.url)
        assert ran.code == 0, ran.err
        checked = agentroute("doctor")
    (declared,) = Config.load("agentroute.toml").deployments
    (profile,) = (Profile.load(file) for file in (tmp_path / "profiles").iterdir())
    assert (declared.adapter, profile.engine.name) == (adapter, engine)
    assert (profile.limits.engines if profile.limits else None) == engines
    assert (profile.pool and (profile.pool.blocks, profile.pool.block_tokens)) == pool
    assert "wrong" not in checked.out


def test_a_name_of_ones_own_is_known_by_what_was_loaded(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    listed = {"data": [{"id": "our-best", "root": "Qwen/Qwen3-32B", "owned_by": "vllm", "max_model_len": 1024}]}
    with recorded(VLLM, **{"/v1/models": listed}) as server:
        assert agentroute("profiles", "from-server", server.url, "--output", str(file)).code == 0
    assert Profile.load(file).model == "qwen3-32b"


def test_engines_and_prefix_caching_that_metrics_show_stand_in_the_limits() -> None:
    with recorded("vllm-0.32.0-dp2", **{DEVELOPMENT: None}) as server:
        ran = agentroute("profiles", "from-server", server.url)
    assert "engines = 2\nprefix_caching = true\n" in ran.out
