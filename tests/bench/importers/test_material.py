"""Reading a file safely, and telling what it is."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from agentroute.bench.importers import IMPORTERS, load
from agentroute.bench.importers.lost import Lost
from agentroute.bench.importers.material import MAX_BYTES, MAX_RECORDS, Record, read
from agentroute.errors import FileError

DATA = Path(__file__).parents[2] / "data" / "bench"
VLLM = (DATA / "run" / "vllm.json").read_text()


def written(folder: Path, content: str | bytes, name: str = "result.json") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("r.json", b"", "is empty"),
        ("r.json", b" \n\t\n", "is empty"),
        ("r.json", b"\x89PNG\r\n\x1a\n\x00\x00", "is not UTF-8 text"),
        ("r.json", b"a\x00b", "is not a text file"),
        ("r.json", b"[" * 200_000, "nests too deeply"),
        ("r.json", b'{"a":' * 200_000, "nests too deeply"),
        ("r.json", b'{"a": 1,\n "b" 2}', "is not valid JSON: expecting ':' delimiter"),
        ("r.json", b"{}", "is no result file of a known format"),
        ("r.json", b"[]", "is no result file of a known format"),
        ("r.json", b"[1, 2]", "is no result file of a known format"),
        ("r.txt", b"hello there\n", "is no result file of a known format"),
        ("r.csv", b'a,"b\nc', "is neither JSON nor CSV"),
        (
            "r.csv",
            b"ISL;OSL\n1;2\n",
            "a plain CSV has the columns isl, osl, concurrency and ttft_ms, tpot_ms or e2e_ms",
        ),
        ("r.yaml", b"- a\n- b\n", "is not a line of the plain YAML"),
        ("r.yaml", b"a: &x 1\nb: [1, 2]\n{", "is not a line of the plain YAML"),
        ("r.yaml", "".join(f"{' ' * i}a:\n" for i in range(100)).encode(), "nests too deeply"),
    ],
)
def test_what_is_no_result_is_refused(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=says):
        load(written(tmp_path, content, name))


def test_the_refusal_names_every_format(tmp_path: Path) -> None:
    with pytest.raises(FileError) as raised:
        load(written(tmp_path, "{}"))
    assert all(importer.NAME in str(raised.value) for importer in IMPORTERS)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"data": [{"session_id": "a", "payloads": []}]}, "holds AIPerf's inputs; give profile_export_aiperf.json"),
        ({"metadata": {}, "payload": {}}, "holds AIPerf's raw exchange"),
        ({"aiperf_version": "0.13.0", "metrics": {}}, "is a side file of AIPerf"),
        ({"ready": True, "was_cancelled": False}, "is a side file of AIPerf"),
        ({"version": "0.2", "results": {"request_performance": {}}}, "is a benchmark report of llm-d"),
        ({"format": 1, "engine": {}, "measurements": []}, "is a profile already"),
    ],
)
def test_a_file_that_lies_beside_results_is_refused_with_what_to_give(
    content: object, says: str, tmp_path: Path
) -> None:
    with pytest.raises(FileError, match=says):
        load(written(tmp_path, json.dumps(content)))


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(FileError, match="is larger than 64 MiB"):
        load(path)


def test_a_file_of_too_many_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="at most 200,000 are read"):
        load(written(tmp_path, "{}\n" * (MAX_RECORDS + 1)))


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is not a file"):
        load(tmp_path)
    with pytest.raises(FileError, match="no such file"):
        load(tmp_path / "none.json")


def test_bare_infinity_and_nan_are_read_and_are_no_numbers(tmp_path: Path) -> None:
    record = read(written(tmp_path, '{"a": Infinity, "b": NaN, "c": -Infinity, "d": 1e999, "e": 2}')).first
    assert [record.number(key) for key in "abcde"] == [None, None, None, None, 2.0]
    assert record.lost.notes() == (
        "a is Infinity, not a finite number; it is taken as unknown",
        "b is NaN, not a finite number; it is taken as unknown",
        "c is -Infinity, not a finite number; it is taken as unknown",
        "d is Infinity, not a finite number; it is taken as unknown",
    )


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "0", "null", '"12"', "true", "[1]", "{}"])
def test_a_time_that_is_no_number_is_unknown(value: str, tmp_path: Path) -> None:
    whole = json.loads(VLLM)
    text = VLLM.replace(f'"mean_tpot_ms": {whole["mean_tpot_ms"]}', f'"mean_tpot_ms": {value}')
    results = load(written(tmp_path, text))
    (judged,) = results.judged
    said = {"0": None, "null": None, '"12"': "'12'", "[1]": "a list", "{}": "an object"}.get(value, value)
    note = f"mean_tpot_ms is {said}, not a finite number; it is taken as unknown"
    assert results.notes == ((note,) if said else ())  # 0 stands for what was not measured
    assert judged.point.tpot_ms and judged.point.tpot_ms.mean is None
    assert judged.point.ttft_ms and judged.point.ttft_ms.mean is not None


def test_an_appended_file_that_was_cut_short_is_read_to_there(tmp_path: Path) -> None:
    results = load(written(tmp_path, f"{VLLM.strip()}\n{VLLM[:500]}"))
    assert len(results.judged) == 1
    assert results.notes == ("1 line is no JSON object and is left out: line 2",)


@pytest.mark.parametrize("prefix", ["﻿", "\n\n", ""])
def test_a_mark_or_blank_lines_before_the_json_do_no_harm(prefix: str, tmp_path: Path) -> None:
    assert len(load(written(tmp_path, prefix + VLLM)).judged) == 1


@pytest.mark.parametrize(
    ("name", "key", "value", "said"),
    [
        ("vllm.json", "tp", "8.5", "tp is '8.5', not a whole number"),
        ("vllm.json", "model_id", 7, "model_id is 7, not a text"),
        ("vllm.json", "date", "on Monday", "date is 'on Monday', not a date"),
        ("vllm.json", "request_rate", math.nan, "request_rate is NaN, not a finite number"),
        ("vllm.json", "engine", "mine", "engine is 'mine', not an engine that is known here"),
        ("sglang.jsonl", "mean_ttft_ms", True, "mean_ttft_ms is true, not a finite number"),
        ("guidellm.json", "benchmarks.0.metrics.inter_token_latency_ms.successful", 5,
         "benchmarks[0]: metrics.inter_token_latency_ms.successful is 5, not an object"),
        ("aiperf.json", "request_throughput.avg", math.nan, "request_throughput.avg is NaN, not a finite number"),
        ("trtllm-bench.json", "streaming_metrics.avg_ttft_ms", math.inf,
         "streaming_metrics.avg_ttft_ms is Infinity, not a finite number"),
        ("inferencex-agg_bmk.json", "0.framework", "mine",
         "[0]: framework is 'mine', not an engine that is known here"),
    ],
)  # fmt: skip
def test_what_is_dropped_is_said_with_its_key(name: str, key: str, value: object, said: str, tmp_path: Path) -> None:
    whole = here = json.loads(next(DATA.glob(f"*/{name}")).read_text())
    *way, last = (int(part) if part.isdigit() else part for part in key.split("."))
    for part in way:
        here = here[part]
    here[last] = value
    assert f"{said}; it is taken as unknown" in load(written(tmp_path, json.dumps(whole))).notes


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("guidellm.csv", "30.856966972351074", "inf",
         "row 4: Time to First Token Successful ms Mean is 'inf', not a finite number"),
        ("guidellm.csv", "[24.033784866333008, ", "[",
         "row 4: Time to First Token Successful ms Percentiles is a list, not a list of eleven numbers"),
        ("llama-bench.csv", '"7000"', '"7000.5"', "row 2: build_number is 7000.5, not a whole number"),
        ("aiperf.csv", "135.91", "nan", "request_latency.avg is 'nan', not a finite number"),
        ("inference-perf-stage_0.yaml", "mean: 0.05\n", "mean: .inf\n",
         "successes.latency.time_to_first_token.mean is '.inf', not a finite number"),
    ],
)  # fmt: skip
def test_what_is_dropped_of_a_table_is_said(name: str, old: str, new: str, said: str, tmp_path: Path) -> None:
    whole = next(DATA.glob(f"*/{name}")).read_text()
    assert old in whole
    assert f"{said}; it is taken as unknown" in load(written(tmp_path, whole.replace(old, new, 1), name)).notes


def test_one_key_that_is_wrong_in_many_lines_is_one_note() -> None:
    lost = Lost()
    for i in range(1, 4):
        Record({"a": {"b": math.nan}}, f"line {i}", lost).inside("a").number("b")
    assert lost.notes() == ("line 1 and 2 other places: a.b is NaN, not a finite number; it is taken as unknown",)


@pytest.mark.parametrize("key", ["total_input_tokens", "total_output_tokens", "completed"])
def test_a_run_that_cannot_do_without_what_is_dropped_is_refused_with_the_key(key: str, tmp_path: Path) -> None:
    whole = json.loads(VLLM) | {key: math.inf}
    with pytest.raises(FileError, match=rf"how many tokens were sent and answered; {key} is Infinity, not a finite"):
        load(written(tmp_path, json.dumps(whole)))


def test_a_value_of_the_wrong_type_is_unknown() -> None:
    record = Record({"a": {"b": [1]}, "n": True, "s": 3, "t": "8", "big": 10**5_000, "half": 1.5})
    assert record.get("a", "b", "c") is None
    assert record.inside("n").data == {}
    assert record.records("a") == []
    assert (record.number("n"), record.text("s"), record.count("t"), record.count("half")) == (None, None, 8, None)
    assert record.number("big") is None
    assert record.numbers("a", "b") == [1.0]
    assert record.numbers("a") is None
    assert record.lost.notes() == (
        "n is true, not an object; it is taken as unknown",
        "a is an object, not a list; it is taken as unknown",
        "s is 3, not a text; it is taken as unknown",
        "half is 1.5, not a whole number; it is taken as unknown",
        "big is a number of absurd length, not a finite number; it is taken as unknown",
    )


@pytest.mark.parametrize(
    ("head", "row", "says"),
    [
        ("isl,osl,ttft_s", "1,2,3", "unknown column 'ttft_s'; did you mean 'ttft_ms'"),
        ("isl,osl,isl", "1,2,3", "has the column isl twice"),
        ("isl,osl,concurrency,tpot_ms", "100,50,4", "has 3 cells where its head has 4"),
        ("isl,osl,concurrency,tpot_ms", "100,50,4,fast", "tpot_ms must be a number of at least 0, got 'fast'"),
        ("isl,osl,concurrency,tpot_ms", "100,50,4,inf", "tpot_ms must be a number"),
        ("isl,osl,concurrency,tpot_ms,date", "100,50,4,9,29.11.26", "date must be a day such as 2026-11-29, got"),
        ("isl,osl,concurrency,tpot_ms,loop", "100,50,4,9,half", "loop must be one of closed, open"),
        ("isl,osl,concurrency,tpot_ms,engine", "100,50,4,9,vlm", "engine must be one of vllm"),
        ("isl,osl,concurrency,tpot_ms", "100,50,4,0.009", "is it in seconds"),
        ("isl,osl,concurrency,tpot_ms,tp,ep,accelerators", "100,50,4,9,8,8,64", "ep was multiplied in"),
        ("isl,osl,concurrency,tpot_ms,tp", "100,50,4,9,1.5", "tp must be a whole number of at least 1, got '1.5'"),
        ("isl,osl,concurrency,tpot_ms,pp", "100,50,4,9,0", "pp must be a whole number of at least 1, got '0'"),
        ("isl,osl,concurrency,tpot_ms", "100", "has 1 cell where its head has 4"),
        ("isl,osl,concurrency,tpot_ms,tp,ep", "100,50,4,9,4,3", "do not fit each other"),
        ("isl,osl,concurrency,tpot_ms", "", "holds no run"),
    ],
)
def test_a_plain_csv_is_read_strictly(head: str, row: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(FileError) as raised:
        load(written(tmp_path, f"{head}\n{row}\n", "mine.csv"))
    assert says in str(raised.value)


def test_no_run_with_nothing_but_failures_is_taken(tmp_path: Path) -> None:
    whole = json.loads(VLLM) | {"completed": 0, "failed": 16, "total_output_tokens": 0}
    with pytest.raises(FileError, match="as a result of vllm bench serve, no request was completed"):
        load(written(tmp_path, json.dumps(whole)))


def test_the_e2e_follows_from_the_latencies_that_vllm_writes_without_being_asked(tmp_path: Path) -> None:
    whole = {key: value for key, value in json.loads(VLLM).items() if "e2el" not in key}
    (judged,) = load(written(tmp_path, json.dumps(whole))).judged
    e2e = judged.point.e2e_ms
    assert e2e and (e2e.mean, e2e.p99) == (123.263, 134.251)


@pytest.mark.parametrize("rate", ['"inf"', "Infinity"])
@pytest.mark.parametrize(("clients", "loop", "saturated"), [("4", "closed", None), ("null", "open", True)])
def test_an_unlimited_rate_is_a_closed_loop_only_with_a_limit_on_concurrency(
    rate: str, clients: str, loop: str, saturated: bool | None, tmp_path: Path
) -> None:
    text = VLLM.replace('"request_rate": "inf"', f'"request_rate": {rate}')
    text = text.replace('"max_concurrency": 4', f'"max_concurrency": {clients}')
    (judged,) = load(written(tmp_path, text)).judged
    assert (judged.run.loop, judged.point.saturated) == (loop, saturated)


def test_a_metric_in_another_unit_is_read_in_that_unit_and_in_an_unknown_one_refused(tmp_path: Path) -> None:
    whole = json.loads((DATA / "run" / "aiperf.json").read_text())
    ttft = whole["time_to_first_token"]
    seconds = {key: value / 1_000 for key, value in ttft.items() if isinstance(value, float)} | {"unit": "s"}
    (judged,) = load(written(tmp_path, json.dumps(whole | {"time_to_first_token": seconds}))).judged
    assert judged.point.ttft_ms and judged.point.ttft_ms.mean == 65.6489
    with pytest.raises(FileError, match="the unit of time_to_first_token is none of ns, us, ms"):
        load(written(tmp_path, json.dumps(whole | {"time_to_first_token": ttft | {"unit": "fortnights"}})))


def test_ranks_of_the_experts_do_not_make_a_world(tmp_path: Path) -> None:
    whole = json.loads((DATA / "written" / "trtllm-bench.json").read_text())
    whole["world_info"] |= {"ep_size": 4, "world_size": 16}
    with pytest.raises(FileError, match="world_size is 16, but tp_size x pp_size is 4"):
        load(written(tmp_path, json.dumps(whole)))


def test_a_disaggregated_row_that_counts_other_gpus_is_refused(tmp_path: Path) -> None:
    row = json.loads((DATA / "written" / "inferencex-agg-disaggregated.json").read_text())
    with pytest.raises(FileError, match=r"num_decode_gpu is 64, but its split takes 8 GPUs \(times ep: 64\)"):
        load(written(tmp_path, json.dumps(row | {"num_decode_gpu": 64})))


def test_a_shared_prompt_of_llama_batched_bench_is_refused(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (DATA / "written" / "llama-batched-bench.jsonl").read_text().splitlines()]
    text = "\n".join(json.dumps(row | {"is_pp_shared": 1}) for row in rows)
    results = load(written(tmp_path, text))
    assert [judged.point.concurrency for judged in results.judged] == [1]
    assert all("one shared prompt" in refused.why for refused in results.refused)


@pytest.mark.parametrize(
    ("split_mode", "gpus", "split"),
    [("layer", 2, "tp1 pp2"), ("row", 2, "tp2"), ("none", 2, "tp1"), ("layer", 1, "tp1")],
)
def test_llama_bench_splits_layers_or_rows(split_mode: str, gpus: int, split: str, tmp_path: Path) -> None:
    rows = json.loads((DATA / "written" / "llama-bench.json").read_text())
    card = ", ".join(["NVIDIA GeForce RTX 4090"] * gpus)
    rows = [row | {"split_mode": split_mode, "gpu_info": card} for row in rows]
    facts = load(written(tmp_path, json.dumps(rows))).judged[0].run.facts
    assert str(facts.sharding) == split


def test_llama_bench_on_a_cpu_has_no_accelerator(tmp_path: Path) -> None:
    rows = [row | {"gpu_info": ""} for row in json.loads((DATA / "written" / "llama-bench.json").read_text())]
    facts = load(written(tmp_path, json.dumps(rows))).judged[0].run.facts
    assert (facts.sharding, facts.accelerator_word) == (None, None)
