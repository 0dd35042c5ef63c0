"""``agentroute size``, and the table of ``agentroute profiles show``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from console import agentroute

ASK = ("size", "deepseek-v3", "--accelerator", "h200_sxm", "--count", "16", "--weights", "fp8")


def test_it_ranks_splits_with_what_fits_and_what_gives_way() -> None:
    ran = agentroute(*ASK, "--context", "128000", "--concurrency", "64")
    assert ran.code == 0
    assert "splits hold that; the best 10 are shown" in ran.err
    assert ran.out.startswith("deepseek-v3 on 16 x h200_sxm, vllm, fp8 weights, bf16 KV cache: 64 x (128,000 context")
    for part in ("tp1 pp16", "GiB", "KV capacity at", "compute at", "a roofline that no measurement has corrected"):
        assert part in ran.out


def test_as_json_every_split_has_its_ceilings() -> None:
    data = agentroute(*ASK, "--context", "8000", "--concurrency", "256", "--tpot", "60ms", "--json").json
    assert (data["schema_version"], data["command"], data["model"]) == (1, "size", "deepseek-v3")
    splits = data["splits"]
    assert len(splits) > 20
    for split in splits:
        group = split["group"]
        assert group["concurrency"] == -(-256 // split["replicas"])
        n_c = [ceiling["n_c"]["mean"] for ceiling in group["ceilings"]]
        known = [value for value in n_c if value is not None]
        # None: no concurrency breaks it; those come last.
        assert n_c[: len(known)] == sorted(known)
        assert group["binding"] == group["ceilings"][0]["kind"]
        assert group["kv_gib"]["low"] <= group["kv_gib"]["mean"] <= group["kv_gib"]["high"]
        assert group["longest_tokens"]["high"] <= 163_840
        assert split["lone_ttft_ms"] <= split["ttft_ms"]
        assert split["keeps"] is False or split["tpot_ms"] <= 60
    crossing = [s for s in splits if s["sharding"]["ep"] == 16]
    assert all("experts_cross" in [c["kind"] for c in s["group"]["cautions"]] for s in crossing)


def test_a_config_json_will_do(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
        "max_position_embeddings": 131072, "tie_word_embeddings": False,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    for place in (path, tmp_path):
        ran = agentroute("size", str(place), "--accelerator", "l40s", "--count", "2", "--context", "8000")
        assert ran.code == 0, ran.err
        assert "tp2" in ran.out


def test_nothing_that_holds_is_a_true_answer() -> None:
    ran = agentroute("size", "deepseek-v3", "--accelerator", "l4", "--count", "2", "--context", "1000")
    assert ran.code == 3
    assert "weights at 0" in ran.out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("size", "deepseek-v9", "--accelerator", "l4", "--context", "1"), "there is no model 'deepseek-v9'"),
        (("size", "deepseek-v3", "--accelerator", "l5", "--context", "1"), "there is no accelerator 'l5'"),
        ((*ASK, "--context", "1", "--engine", "vlm"), "did you mean 'vllm'"),
        ((*ASK, "--context", "1", "--kv", "fp9"), "there is no KV type 'fp9'"),
        ((*ASK, "--context", "1", "--tpot", "soon"), "--tpot must be a duration"),
        (("size", "nowhere/config.json", "--accelerator", "l4", "--context", "1"), "nowhere/config.json"),
        ((*ASK, "--context", "1", "--kv-gib", "inf"), "--kv-gib"),
        ((*ASK, "--context", "1", "--kv-gib", "200"), "at most the 140.4 GiB of h200_sxm"),
        ((*ASK, "--context", "1", "--memory-utilisation", "0"), "--memory-utilisation"),
        ((*ASK, "--context", "1", "--engine-version", "new"), "must be a version such as 0.19"),
        ((*ASK, "--context", "0"), "--context"),
        ((*ASK, "--context", "1", "--count", "0"), "--count"),
    ],
)
def test_a_wrong_question_is_answered_in_a_sentence(args: tuple[str, ...], words: str) -> None:
    ran = agentroute(*args)
    assert ran.code == 2
    assert words in ran.err


def test_the_engine_counts_its_own_way() -> None:
    splits = {}
    for engine in ("vllm", "sglang", "trtllm", "llamacpp"):
        ran = agentroute("size", "llama-3.1-8b", "--accelerator", "h100_sxm", "--count", "2", "--context", "8000",
                         "--engine", engine, "--json")  # fmt: skip
        splits[engine] = [split["sharding"] for split in ran.json["splits"]]
    assert all(sharding["tp"] == 1 for sharding in splits["llamacpp"])
    assert any(sharding["tp"] == 2 for sharding in splits["sglang"])


def test_show_answers_for_8k_32k_and_128k() -> None:
    out = agentroute("profiles", "show", "llama-3.1-70b/vllm-h100-tp4").out
    table = out[out.index("what it offers") :]
    assert [line.split()[0] for line in table.splitlines()[2:5]] == ["8,000", "32,000", "128,000"]
    for part in ("n_max", "USD/request", "TTFT at n = 1", "binding ceiling", "next ceiling", "KV capacity at"):
        assert part in table
    offers = agentroute("profiles", "show", "llama-3.1-70b/vllm-h100-tp4", "--json").json["outlook"]
    assert [offer["context_tokens"] for offer in offers] == [8_000, 32_000, 128_000]
    assert all(offer["binding"] for offer in offers)


def test_a_scheme_that_quantises_nothing_of_the_model_is_refused() -> None:
    ask = ("size", "llama-3.1-70b", "--accelerator", "h200_sxm", "--count", "1", "--context", "1000")
    assert "weights of llama-3.1-70b cannot be 'mxfp4'" in agentroute(*ask, "--weights", "mxfp4").err
    assert " 39." in agentroute(*ask, "--weights", "nvfp4").out


def test_weights_that_do_not_fit_say_by_how_much_and_idle_replicas_are_told() -> None:
    out = agentroute("size", "llama-3.1-70b", "--accelerator", "l40s", "--count", "2", "--context", "8000").out
    assert "GiB are missing on every accelerator at the least" in out
    assert "1 of 2 replicas idle at 1 in flight" in out
    assert "are within the window" not in out


def test_a_pool_of_states_holds_requests_of_any_length() -> None:
    ask = ("size", "rwkv-6-7b", "--accelerator", "l4", "--context", "1000", "--count", "1")
    assert " any " in agentroute(*ask).out
    assert agentroute(*ask, "--json").json["splits"][0]["group"]["longest_tokens"] is None
