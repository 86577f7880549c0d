"""The termination deadline may only move earlier (K15-016)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import Conflict
from karpenter.model import labels
from karpenter.model.clock import rfc3339
from karpenter.runtime.termination_deadline import tighten_deadline
from support.builders import NOW
from support.virtual_cluster import VirtualCluster, in_virtual_time

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("stored", "is_written"),
    [
        pytest.param("", True, id="none"),
        pytest.param("soon", True, id="unparsable"),
        pytest.param(rfc3339(NOW + 9 * MINUTE), True, id="later"),
        pytest.param(rfc3339(NOW + 5 * MINUTE), False, id="equal"),
        pytest.param(rfc3339(NOW + MINUTE), False, id="earlier"),
    ],
)
@in_virtual_time
async def test_a_deadline_is_written_unless_the_claim_has_one_that_is_not_later(
    cluster: VirtualCluster, stored: str, is_written: bool
) -> None:
    """K15-016"""
    notes = {labels.TERMINATION_TIMESTAMP: stored} if stored else {}
    claim = await cluster.claim(metadata={"annotations": notes})
    assert await tighten_deadline(cluster.kube, claim, NOW + 5 * MINUTE) is is_written
    now = (await cluster.get_claim()).metadata.annotations[labels.TERMINATION_TIMESTAMP]
    assert now == (rfc3339(NOW + 5 * MINUTE) if is_written else stored)


@in_virtual_time
async def test_a_claim_that_changed_meanwhile_is_read_again(cluster: VirtualCluster) -> None:
    """K15-211, K15-016: conflicts are retried, and the value that another client wrote meanwhile counts."""
    old = await cluster.claim()
    await cluster.kube.patch(NODE_CLAIM, "c", {"metadata": {"annotations": {"a": "b"}}})
    assert await tighten_deadline(cluster.kube, old, NOW + 5 * MINUTE)
    earlier = {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: rfc3339(NOW + MINUTE)}}}
    await cluster.kube.patch(NODE_CLAIM, "c", earlier)
    assert not await tighten_deadline(cluster.kube, old, NOW + 5 * MINUTE)


@in_virtual_time
async def test_a_claim_that_keeps_changing_is_left_to_the_next_pass(cluster: VirtualCluster) -> None:
    """K15-211"""
    claim = await cluster.claim()

    def always(verb: str, plural: str, name: str) -> None:
        if verb == "patch" and plural == "nodeclaims":
            raise Conflict("changed")

    cluster.server.raise_injected_fault = always
    with pytest.raises(Conflict, match="keeps changing"):
        await tighten_deadline(cluster.kube, claim, NOW)
