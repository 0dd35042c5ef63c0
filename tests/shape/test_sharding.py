"""How a deployment is split: degrees that agree, and the accelerators they take."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from agentroute.shape.sharding import Disaggregated, Sharding, Workers


@pytest.mark.parametrize(
    ("split", "accelerators", "text"),
    [
        (Sharding(), 1, "tp1"),
        (Sharding(tp=8), 8, "tp8"),
        (Sharding(tp=4, pp=2), 8, "tp4 pp2"),
        (Sharding(tp=8, ep=8), 8, "tp8 ep8"),
        (Sharding(ep=8, attention_dp=8), 8, "tp1 ep8 adp8"),
        (Sharding(tp=8, dcp=4), 8, "tp8 dcp4"),
        (Sharding(tp=4, pp=2, ep=8, attention_dp=2, dcp=2), 16, "tp4 pp2 ep8 adp2 dcp2"),
    ],
)
def test_a_split_takes_so_many_accelerators(split: Sharding, accelerators: int, text: str) -> None:
    assert (split.accelerators, str(split)) == (accelerators, text)


@pytest.mark.parametrize(
    ("degrees", "said"),
    [
        ({"tp": 4, "ep": 3}, "ep must divide tp * attention_dp = 4, got 3"),
        ({"tp": 2, "attention_dp": 2, "ep": 8}, "ep must divide tp * attention_dp = 4, got 8"),
        ({"tp": 4, "dcp": 3}, "dcp must divide tp = 4, got 3"),
        ({"tp": 0}, "greater than or equal to 1"),
        ({"pp": -1}, "greater than or equal to 1"),
        ({"cp": 2}, "Extra inputs are not permitted"),
    ],
)
def test_degrees_that_do_not_agree_are_refused(degrees: dict[str, int], said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Sharding(**degrees)
    assert said in str(raised.value)


def test_prefill_and_decode_workers_add_up() -> None:
    split = Disaggregated(
        prefill=Workers(workers=3, sharding=Sharding(tp=4)), decode=Workers(sharding=Sharding(ep=8, attention_dp=8))
    )
    assert split.accelerators == 20
    assert str(split) == "P 3x(tp4) D 1x(tp1 ep8 adp8)"
