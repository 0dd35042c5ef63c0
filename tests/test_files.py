"""Reading files: whatever is in one, the answer is a value or one sentence that says where it is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fleets import CONFIG, PROFILE, broken, line_of, written
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentroute import locations
from agentroute.config import Config
from agentroute.errors import AgentrouteError, ConfigError, FileError, ProfileError
from agentroute.files import MAX_BYTES, dotted
from agentroute.profile import Profile


def refused(path: Path) -> ProfileError:
    """The error that reading ``path`` as a profile raises, which is one sentence that begins with the place."""
    with pytest.raises(ProfileError) as raised:
        Profile.load(path)
    error = raised.value
    assert error.path == path
    place = f"{path}:{error.line}: " if error.line else f"{path}: "
    assert str(error).startswith(place + (f"{error.key}: " if error.key else ""))
    assert "\n" not in str(error)
    assert len(str(error)) < 500
    return error


def said(error: FileError) -> str:
    return str(error).removeprefix(str(error.path))


# ---- the file itself


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        pytest.param(b"\xff\xfe", 1, "is not UTF-8 text", id="UTF-16"),
        pytest.param(b'format = 1\nname = "\xe9"\n', 2, "is not UTF-8 text", id="Latin-1"),
        pytest.param(b"#" * (MAX_BYTES + 1), None, "is larger than 4 MiB", id="too large"),
        pytest.param(
            PROFILE.encode()[:-9], line_of(PROFILE, '"second run"'), "is not valid TOML", id="cut in a string"
        ),
        pytest.param(b"format = 1\npoints = [\n", None, "is not valid TOML", id="cut in an array"),
        pytest.param(b"format = 1\n[engine\n", 2, "is not valid TOML", id="cut in a header"),
        pytest.param(b'format = 1\nname = "a"\nname = "b"\n', 3, "is not valid TOML", id="a key twice"),
        pytest.param(b"[engine]\n[engine]\n", 2, "is not valid TOML", id="a table twice"),
        pytest.param(b"format 1\n", 1, "is not valid TOML", id="no TOML at all"),
        pytest.param(b"name = " + b"[" * 100_000, None, "nests too deeply", id="deep arrays"),
        pytest.param(b"format = " + b"9" * 5_001, None, "absurd length", id="5,001 digits"),
        pytest.param(b"", None, "format: is missing", id="empty"),
    ],
)
def test_a_toml_file_is_refused(tmp_path: Path, content: bytes, line: int | None, message: str) -> None:
    error = refused(written(tmp_path, content))
    assert message in said(error)
    assert line is None or error.line == line


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        pytest.param(b'{"format": 1,\n"name": "a"', 2, "is not valid JSON", id="cut"),
        pytest.param(b"", 1, "is not valid JSON", id="empty"),
        pytest.param(b'{"format": 1,\n}', 2, "is not valid JSON", id="a comma too many"),
        pytest.param(b"[1, 2]", 1, "must hold one table", id="an array"),
        pytest.param(b"3", 1, "must hold one table", id="a number"),
        pytest.param(b"[" * 100_000, None, "nests too deeply", id="deep arrays"),
        pytest.param(b'{"a":' * 100_000, None, "nests too deeply", id="deep objects"),
        pytest.param(b'{"format": 1,\n"name": "a",\n"name": "b"}', None, "twice", id="a key twice"),
        pytest.param(b"\xff{}", 1, "is not UTF-8 text", id="not UTF-8"),
    ],
)
def test_a_json_file_is_refused(tmp_path: Path, content: bytes, line: int | None, message: str) -> None:
    error = refused(written(tmp_path, content, "file.json"))
    assert message in said(error)
    assert line is None or error.line == line


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert said(refused(tmp_path / "gone.toml")) == ": cannot be read: no such file or directory"


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert said(refused(tmp_path)) == ": is not a file"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    assert said(refused(tmp_path / "pipe.toml")) == ": is not a file"


def test_a_path_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError):
        Profile.load(tmp_path / "a\0b.toml")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, PROFILE)
    path.chmod(0)
    assert "permission denied" in said(refused(path))


def test_a_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    content = PROFILE.encode()
    path = written(tmp_path, content + b"#" * (MAX_BYTES - len(content)))
    assert Profile.load(path).name == "mine"


def test_lines_may_end_as_on_windows(tmp_path: Path) -> None:
    assert Profile.load(written(tmp_path, PROFILE.replace("\n", "\r\n"))).name == "mine"


# ---- a mistake in it: its key, its line, its sentence

SECOND_POINT = "{ isl = 128, osl = 64, concurrency = 8, ttft_ms = { mean = 20.0 }, tpot_ms = { mean = 6.0 } }"
LAST_POINT = "concurrency = 8, ttft_ms = { mean = 70.0 }"


@pytest.mark.parametrize(
    ("good", "bad", "key", "message"),
    [
        # the top
        ("format = 1", "format = 2", "format", "must be 1, got 2"),
        ('name = "mine"', 'nmae = "mine"', "nmae", "unknown key; did you mean 'name'?"),
        ('name = "mine"', "name = 5", "name", "must be a valid string, got 5"),
        ('name = "mine"', 'Name = "mine"', "Name", "unknown key; did you mean 'name'?"),
        ("accelerator_count = 2", "accelerator_count = -2", "accelerator_count", "greater than or equal to 1, got -2"),
        ("accelerator_count = 2", "accelerator_count = 2.0", "accelerator_count", "must be a valid integer"),
        ("accelerator_count = 2", "accelerator_count = true", "accelerator_count", "must be a valid integer"),
        ("accelerator_count = 2", "accelerator_count = " + "9" * 400, "accelerator_count", "less than or equal to"),
        ("accelerator_count = 2", "accelerator_count = 0x" + "f" * 5_000, "accelerator_count", "less than or equal to"),
        # a table
        ('name = "vllm"', 'name = "vlm"', "engine.name", "'vllm', 'sglang'"),
        ('version = "0.11.0"', 'versoin = "0.11.0"', "engine.versoin", "unknown key; did you mean 'version'?"),
        ('version = "0.11.0"', 'Version = "0.11.0"', "engine.Version", "unknown key; did you mean 'version'?"),
        ("tp = 2", "tp = 0", "sharding.tp", "greater than or equal to 1, got 0"),
        ("tp = 2", "tp = 2\nep = 3", "sharding", "ep must divide tp * attention_dp = 2, got 3"),
        # an inline table
        ("tokens = 65536", "tokens = -1", "limits.kv_pool.tokens", "greater than or equal to 1, got -1"),
        ("tokens = 65536", "tokens = 8", "limits.kv_pool", "must hold at least one block of 16 tokens, got 8"),
        (
            "block_tokens = 16",
            "block_size = 16",
            "limits.kv_pool.block_size",
            "unknown key; did you mean 'block_tokens",
        ),
        # an array of tables, and inline tables in an array in it
        ('source = "first run"', 'sauce = "first run"', "measurements[0].provenance.sauce", "did you mean 'source'?"),
        ('source = "second run"', "source = 5", "measurements[1].provenance.source", "must be a valid string, got 5"),
        (
            SECOND_POINT,
            SECOND_POINT.replace("isl = 128", "isl = 1.5"),
            "measurements[0].points[1].isl",
            "must be a valid integer",
        ),
        (
            LAST_POINT,
            LAST_POINT.replace("70.0", "-70.0"),
            "measurements[1].points[2].ttft_ms.mean",
            "must be greater than 0, got -70",
        ),
        (LAST_POINT, LAST_POINT.replace("70.0", "nan"), "measurements[1].points[2].ttft_ms.mean", "got nan"),
        (LAST_POINT, LAST_POINT.replace("70.0", "inf"), "measurements[1].points[2].ttft_ms.mean", "got inf"),
        (LAST_POINT, LAST_POINT.replace("70.0", "1e999"), "measurements[1].points[2].ttft_ms.mean", "got inf"),
        (LAST_POINT, LAST_POINT.replace("70.0", '"70"'), "measurements[1].points[2].ttft_ms.mean", "must be a valid"),
        (LAST_POINT, LAST_POINT.replace("ttft_ms", "tttf_ms"), "measurements[1].points[2].tttf_ms", "mean 'ttft_ms'?"),
        (
            LAST_POINT,
            LAST_POINT.replace("mean = 70.0", "p50 = 70.0, p99 = 60.0"),
            "measurements[1].points[2].ttft_ms",
            "percentiles contradict each other",
        ),
        (
            LAST_POINT,
            LAST_POINT + ", e2e_ms = { mean = 9.0 }",
            "measurements[1].points[2]",
            "the times contradict each other: ttft + (osl - 1) * tpot = 542.5, e2e = 9.0",
        ),
    ],
)
def test_a_mistake_is_found_at_its_line(tmp_path: Path, good: str, bad: str, key: str, message: str) -> None:
    text = broken(PROFILE, good, bad)
    error = refused(written(tmp_path, text))
    assert error.key == key
    assert message in said(error)
    at = line_of(text, bad.split("\n")[0])
    assert error.line == (at - 1 if key == "sharding" else at)


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (SECOND_POINT, SECOND_POINT.replace("concurrency = 8", "concurrency = 1"), "holds contradicting points"),
        (
            "isl = 128, osl = 64, concurrency = 8, ttft_ms = { mean = 20.0 }, tpot_ms = { mean = 6.0 }",
            "isl = 128, osl = 64, concurrency = 1, ttft_ms = { mean = 10.0 }, tpot_ms = { mean = 5.0 }",
            "is given twice",
        ),
        ("accelerator_count = 2", "accelerator_count = 4", "accelerator_count is 4, but the split (tp2) takes 2"),
        (
            "[limits]",
            "[disaggregated]\nprefill = { sharding = { tp = 1 } }\ndecode = { sharding = { tp = 1 } }\n[limits]",
            "sharding and disaggregated exclude each other",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_as_a_whole(tmp_path: Path, good: str, bad: str, message: str) -> None:
    assert message in said(refused(written(tmp_path, broken(PROFILE, good, bad))))


@pytest.mark.parametrize(
    ("good", "bad", "key", "at"),
    [
        pytest.param('name = "vllm"\n', "", "engine.name", "[engine]", id="of a table"),
        pytest.param(
            'provenance = { origin = "reported", source = "its log" }\n',
            "",
            "limits.provenance",
            "[limits]",
            id="which is a table",
        ),
        pytest.param("isl = 1024, osl = 64, concurrency = 4, ", "isl = 1024, osl = 64, ",
                     "measurements[1].points[1].concurrency", "ttft_ms = { mean = 60.0 }", id="of a point"),
    ],
)  # fmt: skip
def test_a_missing_key_is_reported_at_its_table(tmp_path: Path, good: str, bad: str, key: str, at: str) -> None:
    text = broken(PROFILE, good, bad)
    error = refused(written(tmp_path, text))
    assert (error.key, error.line) == (key, line_of(text, at))
    assert "is missing; it must be given" in said(error)


POINT = "{ isl = 1, osl = 2, concurrency = 1, ttft_ms = { mean = 1.0 }, tpot_ms = { mean = 1.0 } }"
WRONG = POINT.replace("isl = 1", "isl = -1")
HEAD = 'format = 1\nname = "a"\nengine = { name = "vllm" }\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param('format = 1\nengine.name = "vlm"\nname = "a"\n', 2, id="a dotted key"),
        pytest.param('format = 1 # a\u2028b\x85c\nname = "a"\n[engine]\nname = "vlm"\n', 4, id="odd separators"),
        pytest.param(f"{HEAD}[limits.kv_pool]\ntokens = -1\n", 5, id="a table whose parent has no header"),
        pytest.param(
            f"{HEAD}[limits]\n[limits.kv_pool]\ntokens = -1\n[limits.provenance]\n", 6, id="a table in a table"
        ),
        pytest.param(f"{HEAD}# name = 5\n[[measurements]]\npoints = [{WRONG}]\n", 6, id="all in one line"),
        pytest.param(f"{HEAD}[[measurements]]\npoints = [{WRONG},\n  {POINT}]\n", 5, id="begins after the bracket"),
        pytest.param(f"{HEAD}[[measurements]]\npoints = [\n  {POINT}, {WRONG},\n  {POINT}]\n", 6, id="two in a line"),
        pytest.param(
            f"{HEAD}[[measurements]]\n[[measurements.points]]\nisl = 1\n[[measurements.points]]\nisl = -1\n",
            8,
            id="an array of tables in an array of tables",
        ),
        pytest.param(
            f'{HEAD}notes = """\n[engine]\nname = 5\n"""\n[limits]\nmax_model_len = -1\n', 9, id="a long text"
        ),
        pytest.param(f'{HEAD}[ "limits" ]  # here\n"max_model_len" = -1\n', 5, id="quotes, spaces and a comment"),
    ],
)
def test_a_mistake_is_found_however_the_file_is_written(tmp_path: Path, text: str, line: int) -> None:
    error = refused(written(tmp_path, text))
    assert error.line == line


def test_what_is_missing_in_one_measurement_is_not_looked_for_in_the_next(tmp_path: Path) -> None:
    text = broken(PROFILE, 'provenance = { origin = "measured", source = "first run" }\n', "")
    error = refused(written(tmp_path, text))
    assert error.key == "measurements[0].provenance"
    assert error.line == text[: text.index("[[measurements]]")].count("\n") + 1


# ---- JSON


def as_json(**changes: Any) -> dict[str, Any]:
    source = {"origin": "measured", "source": "a test"}
    good: dict[str, Any] = {
        "format": 1,
        "engine": {"name": "vllm", "version": "1"},
        "name": "mine",
        "price": {"usd_per_accelerator_hour": 2.5, "provenance": source},
        "measurements": [
            {
                "provenance": source,
                "points": [
                    {"isl": 1, "osl": 2, "concurrency": n, "tpot_ms": {"mean": 5.0}}
                    | ({"e2e_ms": {"mean": 9.0}} if n > 2 else {})
                    for n in (1, 2, 3, 4)
                ],
            }
        ],
    }
    return good | changes


@pytest.mark.parametrize(
    ("good", "bad", "key", "message"),
    [
        ('"format": 1', '"format": 7', "format", "must be 1, got 7"),
        ('"name": "mine"', '"name": 5', "name", "must be a valid string"),
        ('"name": "mine"', '"nmae": "mine"', "nmae", "did you mean 'name'?"),
        ('"name": "vllm"', '"name": "vlm"', "engine.name", "got 'vlm'"),
        ('"usd_per_accelerator_hour": 2.5', '"usd_per_accelerator_hour": NaN', None, "finite number, got nan"),
        ('"usd_per_accelerator_hour": 2.5', '"usd_per_accelerator_hour": -Infinity', None, "got -inf"),
        ('"usd_per_accelerator_hour": 2.5', '"usd_per_accelerator_hour": 1e999', None, "finite number, got inf"),
        ('"usd_per_accelerator_hour": 2.5', '"usd_per_accelerator_hour": 1' + "0" * 5_000, None, "got inf"),
        ('"usd_per_accelerator_hour": 2.5', '"usd_per_accelerator_hour": 1' + "0" * 30, None, "less than or equal"),
        ('"concurrency": 3', '"concurrency": -3', "measurements[0].points[2].concurrency", "got -3"),
        ('"concurrency": 4', '"concurrency": 4.0', "measurements[0].points[3].concurrency", "must be a valid integer"),
        ('"concurrency": 4', '"concurency": 4', "measurements[0].points[3].concurency", "did you mean 'concurrency'?"),
    ],
)
def test_a_mistake_in_json_is_found_at_its_line(
    tmp_path: Path, good: str, bad: str, key: str | None, message: str
) -> None:
    text = broken(json.dumps(as_json(), indent=1), good, bad)
    error = refused(written(tmp_path, text, "file.json"))
    assert error.key == (key or "price.usd_per_accelerator_hour")
    assert message in said(error)
    assert error.line == line_of(text, bad)


def test_a_mistake_in_json_is_found_where_earlier_elements_lack_the_key(tmp_path: Path) -> None:
    text = json.dumps(as_json(), indent=1)
    head, _, tail = text.rpartition('"mean": 9.0')
    first, _, second = head.partition('"mean": 9.0')
    text = f'{first}"mean": -9.0{second}"mean": 9.0{tail}'
    error = refused(written(tmp_path, text, "file.json"))
    assert (error.key, error.line) == ("measurements[0].points[2].e2e_ms.mean", line_of(text, '"mean": -9.0'))


# ---- configuration files


@pytest.mark.parametrize(
    ("good", "bad", "key", "message"),
    [
        ('objective = "latency"', 'objective = "speed"', "objective", "there is no objective 'speed'"),
        ('name = "two"', 'name = ""', "deployments[1].name", "at least 1 character"),
        ('name = "two"', 'name = "one"', "deployments[1].name", "there is a deployment 'one' already"),
        ("8001", "99999", "deployments[0].base_url", "must be an address such as"),
        ("http://127.0.0.1:8001", "http://me:secret@host", "deployments[0].base_url", "must not hold a password"),
        ("http://127.0.0.1:8001", "ftp://host", "deployments[0].base_url", "must be an address such as"),
        ("http://127.0.0.1:8001", "http://host/v1?key=1", "deployments[0].base_url", "must not have a query"),
        ("http://127.0.0.1:8001", "http://h/v1/chat/completions", "deployments[0].base_url", "without /chat/compl"),
        ("http://127.0.0.1:8001", "http://host/v1/models/", "deployments[0].base_url", "without /models, got"),
        ('adapter = "openai"', 'adapter = "opnai"', "deployments[1].adapter", "did you mean 'openai'?"),
        ('adapter = "openai"', 'adaptor = "openai"', "deployments[1].adaptor", "did you mean 'adapter'?"),
        ("vllm-h100-tp4", "vlm-h100-tp4", "deployments[0].profile", "did you mean 'qwen3-32b/vllm-h100-tp4'?"),
        ('allow = ["one", "two"]', 'allow = ["one", "tow"]', "routes.default.allow", "did you mean 'two'?"),
        ('allow = ["one", "two"]', "allow = []", "routes.default.allow", "at least 1 item"),
        ('objective = "fit"', 'objective = "fot"', "routes.batch.objective", "did you mean 'fit'?"),
        ('objective = "fit"', 'objektive = "fit"', "routes.batch.objektive", "did you mean 'objective'?"),
        ("value = 60.0", "value = -60.0", "routes.batch.deadline_s.value", "greater than 0, got -60"),
        ("value = 60.0", 'value = 60.0, stat = "p42"', "routes.batch.deadline_s.stat", "'mean', 'p50'"),
        ("value = 60.0", 'value = 60.0, stats = "p95"', "routes.batch.deadline_s.stats", "did you mean 'stat'?"),
        ("deadline_s = { value = 60.0, hard = true }", "deadline_s = nan", "routes.batch.deadline_s", "got nan"),
        ("deadline_s = { value = 60.0, hard = true }", "deadline_s = -1", "routes.batch.deadline_s", "got -1"),
        ("deadline_s = { value = 60.0, hard = true }", "deadline_s = true", "routes.batch.deadline_s", "got True"),
    ],
)
def test_a_mistake_in_a_configuration_is_found_at_its_line(
    tmp_path: Path, good: str, bad: str, key: str, message: str
) -> None:
    text = broken(CONFIG, good, bad)
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        Config.load(path)
    error = raised.value
    assert "\n" not in str(error)
    assert message in str(error)
    assert error.key == key
    assert error.line == text[: text.rindex(bad)].count("\n") + 1


@pytest.mark.parametrize("route", ["fast", "Fast", "int", "my route", "a.b"])
def test_a_route_may_have_any_name_and_its_mistake_is_found(tmp_path: Path, route: str) -> None:
    """Names that pydantic could take for a type are among them."""
    path = written(tmp_path, CONFIG + f'\n[routes."{route}"]\ntpot_ms = -1.0\n')
    with pytest.raises(ConfigError) as raised:
        Config.load(path)
    assert (raised.value.key, raised.value.line) == (f"routes.{route}.tpot_ms", (CONFIG + "\n\n").count("\n") + 1)


@pytest.mark.parametrize(
    ("key", "deployments", "part"),
    [
        ("deployments[1].profile", [{"base_url": "http://a"}, {"base_url": "http://b", "profile": "nope"}], "nope"),
        ("deployments[1].base_url", [{"urls": ["http://a"]}, {"base_url": "ftp://b"}, {"base_url": "http://c"}], "ftp"),
    ],
)
def test_a_mistake_in_a_json_configuration_is_found_at_its_line(
    tmp_path: Path, key: str, deployments: list[dict[str, Any]], part: str
) -> None:
    good = {"profile": "qwen3-32b/vllm-h100-tp4"}
    whole = [{"name": f"d{i}", **good, **deployment} for i, deployment in enumerate(deployments)]
    text = json.dumps({"deployments": whole}, indent=1)
    with pytest.raises(ConfigError) as raised:
        Config.load(written(tmp_path, text, "file.json"))
    assert (raised.value.key, raised.value.line) == (key, line_of(text, part))


# ---- nothing else may come out


@given(st.text(max_size=60), st.sampled_from(["file.toml", "file.json"]))
@example("Format = 1", "file.toml")
@example('{"A": 1}', "file.json")
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_at_all_is_a_profile_or_one_sentence(tmp_path: Path, text: str, name: str) -> None:
    path = written(tmp_path, text.encode("utf-8", "ignore"), name)
    for kind in (Profile, Config):
        try:
            kind.load(path)
        except FileError as error:
            assert "\n" not in str(error)


@given(st.integers(0, len(PROFILE)), st.integers(1, 8), st.text('={}[]",.\n x1-', max_size=3))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_profile_is_a_profile_or_one_sentence(tmp_path: Path, at: int, cut: int, put: str) -> None:
    path = written(tmp_path, PROFILE[:at] + put + PROFILE[at + cut :])
    try:
        Profile.load(path)
    except AgentrouteError as error:
        assert isinstance(error, ProfileError)
        assert "\n" not in str(error)
        assert error.line is None or 1 <= error.line <= PROFILE.count("\n") + 4


@pytest.mark.parametrize("depth", [50, 500, 960, 990, 1_100, 5_000])
def test_nesting_of_any_depth_is_one_sentence(tmp_path: Path, depth: int) -> None:
    refused(written(tmp_path, '{"format": 1, "name": ' + "[" * depth + "]" * depth + "}", "file.json"))
    refused(written(tmp_path, "format = 1\nname = " + "[" * depth + "]" * depth + "\n"))


# ---- the two finders by themselves


@pytest.mark.parametrize(
    ("location", "key"),
    [((), None), (("a",), "a"), (("a", "b"), "a.b"), (("a", 3, "b"), "a[3].b"), (("a", 1, 2), "a[1][2]")],
)
def test_a_place_is_written_as_a_person_writes_it(location: tuple[int | str, ...], key: str | None) -> None:
    assert dotted(location) == key


def test_a_key_that_is_nowhere_has_no_line() -> None:
    assert locations.line_of(locations.toml_lines("a = 1\n"), ("b",)) is None
    assert locations.line_of(locations.json_lines('{"a": 1}'), ("b",)) is None
