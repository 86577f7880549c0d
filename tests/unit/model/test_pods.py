"""Which pods wait for a node, and how a NodeClaim's end treats its pods."""

from __future__ import annotations

import pytest

from karpenter.api.core import Pod
from karpenter.api.meta import Condition, OwnerReference
from karpenter.model import pods
from karpenter.runtime.nodeclaim_deletion import snake_case, termination_mode
from support.builders import claim, pod, replaced, seconds


def condition(reason: str, status: str = "False") -> Condition:
    return Condition(type="PodScheduled", status=status, reason=reason)


def pending(reason: str = "Unschedulable", status: str = "False", phase: str = "Pending", **more: object) -> Pod:
    return pod("p", status={"phase": phase, "conditions": (condition(reason, status),)}, **more)


def owned(api_version: str, kind: str) -> Pod:
    owner = OwnerReference(api_version=api_version, kind=kind, name="o", uid="u")
    return pending(meta={"owner_references": (owner,)})


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        pytest.param(pending(), True, id="SCH-040, DIS-012"),
        pytest.param(pending(status="True"), True, id="SCH-040a-any-status"),
        pytest.param(pending("SchedulingGated"), False, id="SCH-040a-gated"),
        pytest.param(pending("Other"), False, id="SCH-040a-other-reason"),
        pytest.param(pending(node_name="n"), False, id="SCH-040b"),
        pytest.param(owned("apps/v1", "DaemonSet"), False, id="SCH-040d"),
        pytest.param(owned("apps/v1", "ReplicaSet"), True, id="SCH-040d-other-owner"),
        pytest.param(owned("v1", "Node"), False, id="SCH-040e"),
        pytest.param(pending(phase="Succeeded"), False, id="DIS-006-succeeded"),
        pytest.param(pending(phase="Failed"), False, id="DIS-006-failed"),
    ],
)
def test_a_pod_waits_for_a_node_if_all_conditions_hold(subject: Pod, expected: bool) -> None:
    """SCH-041: pods that ended or are being deleted do not wait."""
    assert pods.is_provisionable(subject) is expected
    leaving = replaced(subject, metadata=replaced(subject.metadata, deletion_timestamp=seconds(1.0)))
    assert not pods.is_provisionable(leaving)


@pytest.mark.parametrize(("period", "mode"), [(None, "graceful"), ("1h", "eventual"), ("0s", "forceful")])
def test_the_termination_mode_follows_from_the_grace_period(period: str | None, mode: str) -> None:
    """DIS-552, OPS-421, OPS-M8: none is graceful, a positive one eventual, zero forceful."""
    plain = claim("c", None, [])
    nodeclaim = replaced(plain, spec=replaced(plain.spec, termination_grace_period=period))
    assert termination_mode(nodeclaim) == mode


@pytest.mark.parametrize(
    ("reason", "label"),
    [("Underutilized", "underutilized"), ("WhenEmptyOrUnderutilized", "when_empty_or_underutilized")],
)
def test_counters_have_reasons_and_policies_in_snake_case(reason: str, label: str) -> None:
    """OPS-405"""
    assert snake_case(reason) == label
