"""What delays consolidation although it would save money: young nodes, workloads in a roll-out (``workload_rollouts``), and
other nodes that become consolidatable soon (``stabilization_window``).

All apply to nodes with pods only. An empty node has ``consolidateAfter``, and deleting it interrupts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from karpenter.disruption.decide.command import Candidate
from karpenter.disruption.decide.disruption_blockers import NodeTooYoung
from karpenter.disruption.decide.stabilization_window import StabilizationWindow
from karpenter.disruption.decide.workload_rollouts import WorkloadRollouts
from karpenter.model import consolidation_thresholds, pod_disruption
from karpenter.model import resources as res
from karpenter.model.budget_windows import TimeSpan
from karpenter.model.consolidation_thresholds import LEAN_CONSOLIDATION, ConsolidationDefaults, ConsolidationThresholds
from karpenter.model.disruption_rules import disruption_rules
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode

#: Of the requests a node was launched for; below it the default minimum age ends early.
_KEPT_SHARE = 0.75


def node_age_blocker(candidate: Candidate, thresholds: ConsolidationThresholds, now: datetime) -> NodeTooYoung | None:
    """That a node is too young for its NodePool to consolidate it; None if it is old enough or its age is unknown."""
    created = candidate.state_node.claim.metadata.creation_timestamp if candidate.state_node.claim is not None else None
    minimum_age = thresholds.minimum_node_age
    if created is None or now - created >= minimum_age:
        return None
    if thresholds.is_default_age and _lost_its_pods(candidate):
        return None
    try:
        until = created + minimum_age
    except OverflowError:
        until = None  # an unparseable setting holds forever
    return NodeTooYoung(minimum_age, until=until)


def _lost_its_pods(candidate: Candidate) -> bool:
    """Whether the node's pods request less than ``_KEPT_SHARE`` of the CPU and of the memory its NodeClaim was launched for."""
    claim = candidate.state_node.claim
    launched_for = res.parse_resources(claim.spec.resources.requests) if claim is not None else {}
    return bool(launched_for) and all(
        candidate.state_node.pod_requests.get(name, 0) < _KEPT_SHARE * launched_for.get(name, 0)
        for name in (res.CPU, res.MEMORY)
        if launched_for.get(name, 0)
    )


def time_driven_changes(
    snapshot: ClusterSnapshot,
    now: datetime,
    within_seconds: float,
    defaults: ConsolidationDefaults = LEAN_CONSOLIDATION,
) -> Iterator[datetime]:
    """Moments after ``now`` at which budgets open or close, freezes end, nodes come of age, delays end or protections run out."""
    end = now + timedelta(seconds=within_seconds)
    if defaults.wait_for_rollouts:
        yield from (moment for moment in WorkloadRollouts(snapshot, now).ends if moment <= end)
    waiting_until = StabilizationWindow(snapshot, now, defaults.stabilization_window).until
    if waiting_until is not None and waiting_until <= end:
        yield waiting_until
    youth: dict[str, timedelta] = {}
    for pool in snapshot.pools:
        yield from (
            edge for edge in disruption_rules(pool, snapshot.freeze).transitions(TimeSpan(now, end)) if edge > now
        )
        youth[pool.metadata.name] = consolidation_thresholds.consolidation_thresholds(pool, defaults).minimum_node_age
    for view in snapshot.nodes:
        created = view.claim.metadata.creation_timestamp if view.claim is not None else None
        age = youth.get(view.pool)
        if created is not None and age is not None and now - created < age < end - created:
            yield created + age
        yield from _protection_ends(view, now)


def _protection_ends(view: StateNode, now: datetime) -> Iterator[datetime]:
    """When the active protections of the node and of its pods run out."""
    protections = [pod_disruption.disruption_protection(pod, now) for pod in view.pods_with_eviction_annotation]
    if view.node is not None:
        protections.append(pod_disruption.node_disruption_protection(view.node, now))
    for protection in protections:
        if protection is not None and protection.active and protection.until is not None:
            yield protection.until
