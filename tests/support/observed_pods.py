"""Pods at the stages of their lives, and plans for them, as series about pods observe them."""

from __future__ import annotations

from datetime import datetime

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import Condition
from karpenter.instancetypes.instance_type import Offering
from karpenter.model.requirements import Requirements
from karpenter.scheduling.solution import NewNodeClaim, Solution, UnschedulablePod
from karpenter.scheduling.unschedulable_reasons import NoNodePool, UnschedulableCause, UnschedulableReason
from support.builders import UNSCHEDULABLE, claim, node_pool, pod, replaced, seconds


def condition(type_: str, at: datetime, status: str = "True") -> Condition:
    return Condition(type=type_, status=status, last_transition_time=at)


def pod_in_phase(name: str, phase: str, node_name: str = "", *conditions: Condition, uid: str = "") -> Pod:
    """A pod as the API shows it at one pod_in_phase of its life."""
    meta = {"uid": uid or f"uid-{name}"}
    return pod(name, {"cpu": "1"}, meta=meta, node_name=node_name, status={"phase": phase, "conditions": conditions})


def waiting(name: str = "p") -> Pod:
    return pod_in_phase(name, "Pending", "", UNSCHEDULABLE)


def bound(name: str = "p", at: float = 10) -> Pod:
    return pod_in_phase(name, "Pending", "n", condition("PodScheduled", seconds(at)))


def running(name: str = "p", at: float = 10) -> Pod:
    ready = condition("Ready", seconds(at), "False")
    return pod_in_phase(name, "Running", "n", condition("PodScheduled", seconds(at)), ready)


def ready(name: str = "p", scheduled: float = 10, at: float = 30) -> Pod:
    return pod_in_phase(
        name, "Running", "n", condition("PodScheduled", seconds(scheduled)), condition("Ready", seconds(at))
    )


def healthy(name: str = "np") -> NodePool:
    pool = node_pool(name)
    good = Condition(type="NodeRegistrationHealthy", status="True")
    return replaced(pool, status=replaced(pool.status, conditions=(*pool.status.conditions, good)))


def on_new_node(*pods: Pod, pool: str = "np") -> Solution:
    return Solution(new_claims=(NewNodeClaim(claim("c"), pool, ("t",), Offering(Requirements(), 1.0), pods),))


def left(*pods: Pod, cause: UnschedulableCause | None = None) -> Solution:
    return Solution(
        unschedulable=tuple(
            UnschedulablePod(listed_pod, (UnschedulableReason(cause or NoNodePool()),)) for listed_pod in pods
        )
    )
