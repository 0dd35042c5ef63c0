"""The gateway against its own OpenAPI document, by everything that schemathesis tries; ``tests/gateway`` tries less."""

from __future__ import annotations

from pathlib import Path

import pytest
from schemas import held_against_its_document


def test_schemathesis_finds_nothing_in_thousands_of_requests(tmp_path: Path) -> None:
    pytest.importorskip("schemathesis")
    said = held_against_its_document(tmp_path, "--max-examples", "30", timeout=1_200)
    assert "No issues found" in said
