"""Annotations of Cluster Autoscaler count, so that users who migrate or run both need not change their workloads."""

from __future__ import annotations

import pytest

from karpenter.disruption.decide.command import DisruptionReason
from karpenter.model import labels
from support.disruption_cases import claimed, on, pool, running, verdict, with_annotation


@pytest.mark.parametrize(("value", "blocks"), [("false", True), ("true", False), ("no", False)])
def test_a_pod_that_is_not_safe_to_evict_keeps_its_node(value: str, blocks: bool) -> None:
    meta = {"annotations": {labels.SAFE_TO_EVICT: value}}
    said = verdict("n", pool(), running("n"), on("n", 1, meta=meta))
    key = "cluster-autoscaler.kubernetes.io/safe-to-evict"
    assert said == (f'Pod has "{key}" annotation (Pod=default/n-0)' if blocks else "")


def test_drift_with_an_end_of_the_drain_moves_such_a_pod() -> None:
    """DIS-082: as one with karpenter.sh/do-not-disrupt."""
    pods = on("n", 1, meta={"annotations": {labels.SAFE_TO_EVICT: "false"}})
    cluster = claimed(running("n"), termination_grace_period="1h")
    assert verdict("n", pool(), cluster, pods, reason=DisruptionReason.DRIFTED) == ""


@pytest.mark.parametrize(("value", "blocks"), [("true", True), ("false", False)])
def test_a_node_that_must_not_be_scaled_down_stays(value: str, blocks: bool) -> None:
    host, behind = running("n")
    said = verdict("n", pool(), with_annotation(host, labels.SCALE_DOWN_DISABLED, value), behind)
    key = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
    assert said == (f'Disruption is blocked through the "{key}" annotation' if blocks else "")
