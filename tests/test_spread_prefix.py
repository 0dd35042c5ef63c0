"""A fan-out whose siblings have a prefix in common."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fleets import profile, router, task
from groups import PREFIX, UNITS, alike, caching


def test_a_shared_prefix_is_held_and_read_once_where_prefix_caching_is_reported() -> None:
    one = router(caching(profile("a", kv_blocks=200)), profile("b", kv_blocks=200))
    without, with_ = (one.spread(asked, fanout=50)._over for asked in (task(), alike()))
    assert [site.most for site in without.sites] == [2, 2]
    assert [site.most for site in with_.sites] == [(200 - PREFIX) // (UNITS - PREFIX), 2]
    assert with_.sites[0].hot == with_.sites[0].most
    first, before = with_.options, without.options
    assert first.once_s[0] > 0 and first.e2e_s[0] < before.e2e_s[0]
    assert first.once_s[0] + first.e2e_s[0] == pytest.approx(before.e2e_s[0])
    other = first.site == 1
    assert (first.once_s[other] == 0).all()
    assert first.e2e_s[other] == pytest.approx(before.e2e_s[before.site == 1])


def test_one_alone_shares_nothing() -> None:
    one = router(caching(profile("a", kv_blocks=200)))
    assert one.spread(alike(), fanout=1).makespan_s == one.spread(task(), fanout=1).makespan_s


def test_a_held_prefix_takes_its_blocks_once_and_those_that_come_later_only_their_own() -> None:
    one = router(caching(profile("a", kv_blocks=202)))
    spread, ledger = one.spread(alike(), fanout=20), one._situation.ledger
    count, own = spread.at_once, UNITS - PREFIX
    assert (spread.placements[0].waves, count) == (3, 7)
    with spread.hold(one) as group:
        assert ledger.held[0] == PREFIX + count * own
        with one.acquire(spread.task):
            assert ledger.held[0] == PREFIX + (count + 1) * own
        for lease in group.leases[1:]:
            lease.release()
        assert ledger.held[0] == UNITS
    assert ledger.held[0] == 0


def test_a_prefix_that_siblings_hold_already_takes_no_room_and_no_time() -> None:
    one = router(caching(profile("a", kv_blocks=200)))
    alone = one.spread(alike(), fanout=20)
    with one.acquire(alone.task):
        beside = one.spread(alike(), fanout=20)
        site = beside.placements[0].site
        assert site.most == (200 - UNITS) // (UNITS - PREFIX)
        with beside.hold(one):
            assert one._situation.ledger.total == 1 + beside.at_once


def test_a_prompt_that_is_warm_somewhere_makes_the_group_quicker_there() -> None:
    one = router(caching(profile("a", kv_blocks=1_000)), caching(profile("b", kv_blocks=1_000)))
    step = replace(task(), session_id="s")
    with one.acquire(step) as lease:
        warm = lease.deployment.name
    (placement,) = one.spread(step, fanout=1).placements
    assert placement.deployment == warm
    assert placement.makespan_s < one.spread(task(), fanout=1).makespan_s
