"""One tree of errors: a user's mistake and a server's fault are different branches."""

from __future__ import annotations

import ast
import pickle
import re
import time
from pathlib import Path

import pytest

from agentroute import errors
from agentroute.errors import (
    AgentrouteError,
    BackendError,
    ConfigError,
    FailureKind,
    FileError,
    NoFeasibleDeployment,
    PoolFull,
    ProfileError,
    RefusedError,
    TaskError,
    UnknownNameError,
    UsageError,
    counted,
    suggest,
)
from agentroute.reasons import Reason

TREE: dict[type[Exception], type[Exception]] = {
    AgentrouteError: Exception,
    UsageError: AgentrouteError,
    FileError: UsageError,
    ProfileError: FileError,
    ConfigError: FileError,
    TaskError: UsageError,
    UnknownNameError: UsageError,
    RefusedError: UsageError,
    NoFeasibleDeployment: AgentrouteError,
    PoolFull: NoFeasibleDeployment,
    BackendError: AgentrouteError,
}


@pytest.mark.parametrize("kind", TREE)
def test_the_tree_is_as_drawn(kind: type[Exception]) -> None:
    assert kind.__bases__ == (TREE[kind],)
    drawn = re.findall(r"[A-Z]\w+(?:Error|Deployment|Full)\b", errors.__doc__ or "")
    assert kind.__name__ in drawn


def test_no_error_stands_outside_the_tree() -> None:
    raised = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert raised == set(TREE)
    for path in Path(errors.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and path.name != "errors.py":
                bases = {ast.unparse(base) for base in node.bases}
                assert not any(base.endswith(("Error", "Exception")) for base in bases), f"{path}: {node.name}"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ProfileError("is wrong", path=Path("a.toml")), "a.toml: is wrong"),
        (ProfileError("is wrong", path=Path("a.toml"), key="b.c"), "a.toml: b.c: is wrong"),
        (ConfigError("is wrong", path=Path("a.toml"), key="b", line=3), "a.toml:3: b: is wrong"),
        (UnknownNameError("model", "lama", ["llama", "qwen"]), "there is no model 'lama'; did you mean 'llama'?"),
        (
            NoFeasibleDeployment("no", {"a": Reason("window", "small"), "b": Reason("slo", "slow")}),
            "no\n  a: small\n  b: slow",
        ),
        (BackendError(FailureKind.ENGINE_DEAD, "gone"), "backend: engine dead: gone"),
        (
            BackendError(FailureKind.OVERLOADED, "busy", deployment="d", url="http://a", status=503),
            "d at http://a: overloaded (HTTP 503): busy",
        ),
    ],
)
def test_an_error_says(error: Exception, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize(
    ("name", "known", "text"),
    [
        ("lama", ["llama", "qwen"], "did you mean 'llama'?"),
        ("xyz", ["llama", "qwen"], "known: llama, qwen"),
        ("xyz", [], "there are none to choose from"),
        ("xyz", [f"m{i:02}" for i in range(14)], "known: " + ", ".join(f"m{i:02}" for i in range(12)) + ", ..."),
    ],
)
def test_a_wrong_name_gets_a_suggestion(name: str, known: list[str], text: str) -> None:
    assert suggest(name, known) == text


@pytest.mark.parametrize(
    "error",
    [
        ProfileError("is wrong", path=Path("a.toml"), key="b", line=3),
        UnknownNameError("model", "a", ["b"]),
        NoFeasibleDeployment("nothing", {"a": Reason("window", "too small")}),
        BackendError(FailureKind.TIMEOUT, "slow", deployment="a", retry_after_s=1.5, text="so far"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_crosses_a_process_border_with_all_it_carries(error: AgentrouteError) -> None:
    restored = pickle.loads(pickle.dumps(error))
    assert type(restored) is type(error)
    assert str(restored) == str(error)
    assert vars(restored) == vars(error)


@pytest.mark.parametrize(("count", "said"), [(0, "0 points"), (1, "1 point"), (2, "2 points"), (2_601, "2,601 points")])
def test_a_count_is_said_in_the_singular_or_the_plural(count: int, said: str) -> None:
    assert counted(count, "point") == said


def test_a_wrong_name_of_any_length_is_told_in_brief_and_at_once() -> None:
    name = "abcd" * 1_000_000
    before = time.perf_counter()
    told = str(UnknownNameError("model", name, ["abcd" * 40]))
    assert time.perf_counter() - before < 0.3
    assert len(told) < 300
