"""What may be repeated of a name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentroute.startup.names import printable, without_secrets

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"),
        ("org/m-GGUF:Q4_K_M", "org/m-GGUF:Q4_K_M"),
        ("/models/mine.gguf", "/models/mine.gguf"),
        ("C:\\models\\mine.gguf", "C:\\models\\mine.gguf"),
        ("org/m@main", "org/m@main"),
        (f"s3://AKIAKEY:{SECRET}@bucket", "s3://bucket"),
        (f"s3://key:a/{SECRET}@bucket/org/m", "s3://bucket/org/m"),  # such keys hold slashes
        (f"https://user:{SECRET}@host.example/m?token={SECRET}#{SECRET}", "https://host.example/m"),
        (f"https://hf_{SECRET}@huggingface.co", "https://huggingface.co"),
        (f"user:{SECRET}@host/m", "host/m"),
        (f"m?token={SECRET}", "m"),
        # A password may hold what ends an address; then nothing of it can be told apart.
        (f"https://user:a?{SECRET}@host/m", None),
        (f"https://host/m?mail=a@{SECRET}", None),
        (f"sk-{SECRET}", None),
        (f"hf_{SECRET}", None),
        (f"https://host/hf_{SECRET}/m", None),
        ("https://?", None),
        ("", None),
    ],
)
def test_an_address_loses_its_credentials_and_a_key_is_no_name(given: str, left: str | None) -> None:
    assert without_secrets(given) == left


@given(st.text(alphabet=st.characters(exclude_characters="@"), min_size=1), st.sampled_from(["s3", "https", "hf"]))
def test_no_credentials_survive(credentials: str, scheme: str) -> None:
    left = without_secrets(f"{scheme}://{credentials}@host/m")
    assert left in (None, f"{scheme}://host/m")


@given(st.text())
def test_whatever_is_left_is_left_again(text: str) -> None:
    left = without_secrets(text)
    assert left is None or without_secrets(left) in (left, None)


@pytest.mark.parametrize(
    ("name", "seen"),
    [("my log (1).txt", "my log (1).txt"), ("Wörter", "Wörter"), ("a\ab\x1b[2J\x9b\n", "a\\x07b\\x1b[2J\\x9b\\n")],
)
def test_a_name_is_shown_without_what_moves_the_terminal(name: str, seen: str) -> None:
    assert printable(name) == seen


@given(st.text())
def test_every_name_can_be_shown(name: str) -> None:
    assert printable(name).isprintable()
