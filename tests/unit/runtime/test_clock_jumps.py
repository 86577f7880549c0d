"""No node is removed because the wall clock jumps."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption
from karpenter.model.clock import ClockJumpDetector
from support.virtual_cluster import VirtualCluster, in_virtual_time

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 31.0])
def test_a_jump_is_noticed_and_held_against_the_clock_for_a_while(jump: float) -> None:
    detector = ClockJumpDetector()
    assert detector.jump_seconds(NOON, 100.0) == 0
    assert detector.jump_seconds(NOON + timedelta(seconds=10), 110.0) == 0
    assert detector.is_trusted(110.0)
    assert detector.jump_seconds(NOON + timedelta(seconds=20 + jump), 120.0) == jump
    assert not detector.is_trusted(120.0)
    assert detector.jump_seconds(NOON + timedelta(seconds=400 + jump), 500.0) == 0
    assert detector.is_trusted(500.0)


def test_clocks_that_differ_a_little_are_steady() -> None:
    detector = ClockJumpDetector()
    for step in range(100):
        assert detector.jump_seconds(NOON + timedelta(seconds=step * 10.5), step * 10.0) == 0
    assert detector.is_trusted(1000.0)


@in_virtual_time
async def test_no_node_is_disrupted_while_the_wall_clock_is_not_trusted(cluster: VirtualCluster) -> None:
    """An hour that never passed: what is empty for ten minutes seems empty for long."""
    await cluster.node_class()
    await cluster.pool(disruption=Disruption(consolidate_after="0s", budgets=(Budget(nodes="100%"),)))
    await cluster.start()
    await asyncio.sleep(11)
    assert cluster.manager is not None
    cluster.clock._start += timedelta(hours=1)
    await asyncio.sleep(10)
    assert cluster.lines("the time of day has jumped, holding disruption for a while")
    await cluster.claim("n0", pool="np")
    await asyncio.sleep(0.1)
    await cluster.join("n0", "n0")
    await asyncio.sleep(240)
    assert (await cluster.get_claim("n0")).metadata.deletion_timestamp is None
    await asyncio.sleep(120)
    assert await cluster.all(kinds.NODE_CLAIM) == []
