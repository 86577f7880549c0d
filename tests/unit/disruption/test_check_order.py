"""The order of checks before a node is disrupted, and the longest pause between passes."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from karpenter.api import kinds
from karpenter.api.core import Node
from karpenter.api.karpenter import Disruption
from karpenter.api.meta import Wire
from karpenter.kube.errors import Conflict
from karpenter.model import labels
from karpenter.runtime.intervals import Intervals
from karpenter.settings import Settings
from support.builders import node
from support.disruption_cases import pool, running, verdict, with_annotation
from support.virtual_cluster import VirtualCluster, in_virtual_time, refusing


def left_alone(objects: list[Wire]) -> list[Wire]:
    """The Node asks not to be disrupted."""
    return [
        with_annotation(wire, labels.DO_NOT_DISRUPT, "true") if isinstance(wire, Node) else wire for wire in objects
    ]


@pytest.mark.parametrize(
    ("objects", "nominated", "expected"),
    [
        pytest.param(running("n", initialized=False, deleted=True), False, "deleting or marked", id="deletion-first"),
        pytest.param(running("n", deleted=True), True, "deleting or marked for deletion", id="then-marked"),
        pytest.param(running("n"), True, "nominated", id="then-nominated"),
        pytest.param(running("n"), False, "do-not-disrupt", id="then-the-annotation"),
    ],
)
def test_the_first_check_that_fails_names_the_reason(objects: list[Wire], nominated: bool, expected: str) -> None:
    """K15-202, OPS-119, DIS-062: not marked, initialized, not nominated, and only then the annotation, which all have."""
    chosen = frozenset({"claim-n"}) if nominated else frozenset()
    assert expected in verdict("n", pool(), left_alone(objects), nominated=chosen)


@in_virtual_time
async def test_passes_more_than_fifteen_minutes_apart_are_logged(cluster: VirtualCluster) -> None:
    """DIS-051, DIS-022"""
    await cluster.start(Settings(intervals=Intervals(disruption_poll=timedelta(minutes=16))))
    await asyncio.sleep(33 * 60)
    lines = cluster.lines("abnormal time between runs")
    assert [(line["level"], line["time_since"]) for line in lines] == [("DEBUG", "960s")] * 2


@in_virtual_time
async def test_passes_at_the_usual_interval_are_not_logged(cluster: VirtualCluster) -> None:
    """DIS-051"""
    await cluster.start()
    await asyncio.sleep(40 * 60)
    assert cluster.lines("abnormal time between runs") == []


@in_virtual_time
async def test_a_taint_with_our_key_on_an_unmanaged_node_is_left_alone(cluster: VirtualCluster) -> None:
    """DIS-S008"""
    await cluster.kube.create(kinds.NODE, node("foreign", {"cpu": "4"}))
    await cluster.set_taints("foreign", (labels.DISRUPTED_TAINT,))
    await cluster.start()
    await asyncio.sleep(60)
    assert (await cluster.get_node("foreign")).spec.taints == (labels.DISRUPTED_TAINT,)


@in_virtual_time
async def test_a_write_conflict_over_a_left_over_taint_is_no_error(cluster: VirtualCluster) -> None:
    """DIS-S010: the taint goes with another try, and no error is logged."""
    await cluster.node_class()
    await cluster.pool(disruption=Disruption(consolidate_after="Never"))
    await cluster.start()
    await cluster.claim(pool="np")
    await asyncio.sleep(0.1)
    await cluster.join()
    await asyncio.sleep(1)
    await cluster.stop()
    await cluster.set_taints("node-c", (labels.DISRUPTED_TAINT,))
    await cluster.start()
    cluster.connection.refuse = refusing(lambda: Conflict("changed meanwhile"), 1, "patch Node")
    await asyncio.sleep(30)
    assert (await cluster.get_node()).spec.taints == ()
    assert [line for line in cluster.lines() if line["level"] == "ERROR"] == []
