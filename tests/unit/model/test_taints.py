from __future__ import annotations

import pytest

from karpenter.api.scheduling_constraints import Taint, Toleration
from karpenter.model import taints

TAINT = Taint(key="team", value="red", effect="NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "want"),
    [
        (Toleration(), False),
        (Toleration(operator="Exists"), True),
        (Toleration(key="team", value="red"), True),
        (Toleration(key="team", operator="Equal", value="red", effect="NoSchedule"), True),
        (Toleration(value="red"), True),
        (Toleration(key="team", value="blue"), False),
        (Toleration(key="team"), False),
        (Toleration(key="team", operator="Exists"), True),
        (Toleration(key="team", operator="Exists", value="blue"), True),
        (Toleration(key="other", operator="Exists"), False),
        (Toleration(operator="Exists", effect="NoExecute"), False),
        (Toleration(operator="Exists", effect="NoSchedule", toleration_seconds=0), True),
        (Toleration(key="team", operator="exists"), False),
        (Toleration(key="team", operator="Gt", value="1"), False),
    ],
)
def test_a_toleration_covers_what_the_rules_say(toleration: Toleration, want: bool) -> None:
    """SCH-401"""
    assert taints.tolerates_taint([toleration], TAINT) == want


@pytest.mark.parametrize(
    ("operator", "bound", "value", "want"),
    [
        ("Lt", "10", "9", True),
        ("Lt", "10", "10", False),
        ("Gt", "10", "11", True),
        ("Gt", "10", "10", False),
        ("Gt", "-5", "-4", True),
        ("Gt", "0", str(2**63 - 1), True),
        ("Gt", "0", str(2**63), False),
        ("Gt", "0", "9" * 5000, False),
        ("Gt", "0", "+1", False),
        ("Gt", "0", "01", False),
        ("Gt", "0", "1.5", False),
        ("Lt", "", "1", False),
    ],
)
def test_numeric_tolerations_compare_decimal_integers(operator: str, bound: str, value: str, want: bool) -> None:
    """SCH-401"""
    taint = Taint(key="level", value=value, effect="NoSchedule")
    assert taints.tolerates_taint([Toleration(key="level", operator=operator, value=bound)], taint) == want


def test_every_effect_has_to_be_tolerated() -> None:
    """SCH-400"""
    actual = tuple(Taint(key="a", effect=effect) for effect in ("NoSchedule", "PreferNoSchedule", "NoExecute"))
    assert taints.untolerated(actual, ()) == actual
    held = (Toleration(key="a", operator="Exists", effect="NoExecute"),)
    assert taints.untolerated(actual, iter(held)) == actual[:2]


@pytest.mark.parametrize(
    ("key", "effect", "want"),
    [
        ("node.kubernetes.io/not-ready", "NoSchedule", True),
        ("node.kubernetes.io/not-ready", "NoExecute", True),
        ("node.kubernetes.io/unreachable", "NoSchedule", True),
        ("node.kubernetes.io/unreachable", "NoExecute", False),
        ("node.cloudprovider.kubernetes.io/uninitialized", "NoSchedule", True),
        ("karpenter.sh/unregistered", "NoExecute", True),
        ("karpenter.sh/unregistered", "NoSchedule", False),
        ("readiness.k8s.io/network", "PreferNoSchedule", True),
        ("readiness.k8s.io.example.com/x", "NoSchedule", False),
        ("team", "NoSchedule", False),
    ],
)
def test_ephemeral_taints_are_known_by_key_and_effect(key: str, effect: str, want: bool) -> None:
    """SCH-085, OPS-041, AWS-928: whatever their value"""
    assert taints.is_ephemeral(Taint(key=key, effect=effect)) == want
    assert taints.is_ephemeral(Taint(key=key, effect=effect, value="true")) == want


def test_merging_keeps_existing_values_and_adds_each_taint_once() -> None:
    """OPS-024"""
    existing = [Taint(key="a", effect="NoSchedule", value="old")]
    added = [
        Taint(key="a", effect="NoSchedule", value="new"),
        Taint(key="a", effect="NoExecute"),
        Taint(key="a", effect="NoExecute", value="again"),
    ]
    assert taints.merge_taints(existing, added) == (existing[0], added[1])
    assert taints.is_same_taint(existing[0], added[0])
    assert not taints.is_same_taint(added[0], added[1])


def test_taints_read_as_kubectl_writes_them() -> None:
    assert taints.taint_text(TAINT) == "team=red:NoSchedule"
    assert taints.taint_text(Taint(key="team", effect="NoExecute")) == "team:NoExecute"
