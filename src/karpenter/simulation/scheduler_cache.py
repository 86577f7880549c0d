"""Placement of one pod: filters and scores of kube-scheduler over a cache of nodes that is updated pod by pod.

Filters run in kube-scheduler's order (``FilterReason``), scores have its default weights: free capacity 1, balance 1, node
affinity 2, pod affinity 2, spread 2, preferred taints 3. Where kube-scheduler chooses at random among equals, the first name
wins here. A nominated node is tried first, and room for a nominated pod is reserved against pods of the same or lower
priority.

Not simulated: volumes, device claims, image locality, preemption.

Cost. Results that depend only on node and pod template are cached per node and template; usage is a running sum; counts for
spread and affinity come from the census. So an attempt is one pass over the nodes, for most pods over those that were open to
such a pod or changed since (`open_nodes`), and an attempt equal to one that failed since the last change is skipped.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from karpenter.api.core import Node, Pod
from karpenter.api.scheduling_constraints import PodAffinity, TopologySpreadConstraint
from karpenter.kube.informer import ObjectKey, key_of
from karpenter.model import taints
from karpenter.simulation import pod_census
from karpenter.simulation.open_nodes import OpenNodes
from karpenter.simulation.pod_census import PodCensus
from karpenter.simulation.scheduler_node_info import (
    DEFAULT_SCORED_REQUESTS,
    HARD_TAINT_EFFECTS,
    FilterReason,
    NodeSlotInfo,
    PodInfo,
    fits_resources,
    has_port_conflict,
    same_for_scheduling,
    template_fit,
)

_MAX_NODE_SCORE = 100


@dataclass(frozen=True, slots=True)
class PodPlaced:
    """The node for a pod."""

    node: str


@dataclass(frozen=True, slots=True)
class PodUnschedulable:
    """No node fits the pod; the number of nodes per first reason."""

    node_count: int
    reason_counts: tuple[tuple[FilterReason, int], ...]

    def __str__(self) -> str:
        counted = ", ".join(f"{count} {reason}" for reason, count in self.reason_counts)
        return f"0/{self.node_count} nodes are available" + (f": {counted}." if counted else ".")


class SchedulerCache:
    """All nodes and their pods; chooses the node for a pod.

    A rejected pod need not be tried again before ``change_count`` has changed for it.
    """

    def __init__(self) -> None:
        self._capacity_changes = 0
        self._changes = 0
        self.census = PodCensus()
        self._nodes: dict[str, NodeSlotInfo] = {}
        self._names: list[str] = []
        self._node_by_pod: dict[ObjectKey, str] = {}
        self._nominated_node_by_pod: dict[ObjectKey, str] = {}
        self._unschedulable_cache: dict[bytes, PodUnschedulable] = {}
        self._open_nodes = OpenNodes(self._nodes)

    def change_count(self, pod_info: PodInfo) -> int:
        """Counts the changes that may let this pod fit: more room, or any change for a pod with constraints on other pods."""
        return self._changes if pod_info.has_inter_pod_terms else self._capacity_changes

    def set_node(self, name: str, node: Node | None) -> None:
        """Add, change or remove (None) a node."""
        slot = self._nodes.setdefault(name, NodeSlotInfo(name))
        if slot.node is not None and node is not None and same_for_scheduling(slot.node, node):
            return
        if slot.node is None and node is not None:
            insort(self._names, name)
        elif slot.node is not None and node is None:
            self._names.remove(name)
        slot.set_node(node)
        self._open_nodes.changed(name)
        self._on_capacity_gained()
        self._remove_if_empty(slot)

    def add_pod(self, pod_info: PodInfo, node: str) -> None:
        """Add a pod to its node (bound or about to be), or replace it."""
        key = key_of(pod_info.pod.metadata)
        before = self._remove(key)
        reserved = self._release_nomination(key)
        self._nodes.setdefault(node, NodeSlotInfo(node)).add_pod(pod_info)
        self._node_by_pod[key] = node
        self.census.add(pod_info.pod, node)
        self._changes += 1
        if (before is not None and before.requests != pod_info.requests) or reserved not in ("", node):
            self._on_capacity_gained()

    def remove_pod(self, key: ObjectKey) -> None:
        """Remove a pod."""
        if self._remove(key) is not None:
            self._on_capacity_gained()

    def _remove(self, key: ObjectKey) -> PodInfo | None:
        node = self._node_by_pod.pop(key, None)
        if node is None:
            return None
        slot = self._nodes[node]
        pod_info = slot.remove_pod(key)
        self._open_nodes.changed(node)
        self.census.remove(key)
        self._remove_if_empty(slot)
        return pod_info

    def nominate(self, pod_info: PodInfo) -> None:
        """Reserve room for a pending pod on its nominated node, if any."""
        key = key_of(pod_info.pod.metadata)
        node = pod_info.pod.status.nominated_node_name
        if self._nominated_node_by_pod.get(key, "") == node:
            return
        self.remove_nomination(key)
        if node:
            self._nominated_node_by_pod[key] = node
            self._nodes.setdefault(node, NodeSlotInfo(node)).nominated[key] = pod_info

    def remove_nomination(self, key: ObjectKey) -> None:
        """Remove the reservation of a nominated pod."""
        if self._release_nomination(key):
            self._on_capacity_gained()

    def _release_nomination(self, key: ObjectKey) -> str:
        node = self._nominated_node_by_pod.pop(key, "")
        if node:
            slot = self._nodes[node]
            del slot.nominated[key]
            self._open_nodes.changed(node)
            self._remove_if_empty(slot)
        return node

    def _on_capacity_gained(self) -> None:
        self._capacity_changes += 1
        self._changes += 1
        self._unschedulable_cache.clear()

    def _remove_if_empty(self, slot: NodeSlotInfo) -> None:
        if slot.node is None and not slot.pods and not slot.nominated:
            self._nodes.pop(slot.name, None)
            self._open_nodes.gone(slot.name)

    def schedule(self, pod_info: PodInfo) -> PodPlaced | PodUnschedulable:
        """The node for a pod, or why there is none."""
        pod_unschedulable = self._unschedulable_cache.get(pod_info.signature)
        if pod_unschedulable is not None:
            return pod_unschedulable
        around = _TopologyTerms(self, pod_info)
        nominated = self._nodes.get(pod_info.pod.status.nominated_node_name)
        if nominated is not None and nominated.node is not None and _filter(pod_info, nominated, around) is None:
            return PodPlaced(nominated.name)
        return self._select_node(pod_info, around)

    def _select_node(self, pod_info: PodInfo, topology: _TopologyTerms) -> PodPlaced | PodUnschedulable:
        open_slots, refusals = self._open_and_refusing(pod_info, topology)
        if open_slots:
            return PodPlaced(_highest_scored(pod_info, open_slots, topology).name)
        reasons = tuple((reason, refusals[reason]) for reason in FilterReason if refusals[reason])
        refused = PodUnschedulable(len(self._names), reasons)
        if not pod_info.has_inter_pod_terms:
            self._unschedulable_cache[pod_info.signature] = refused
        return refused

    def _open_and_refusing(
        self, pod_info: PodInfo, topology: _TopologyTerms
    ) -> tuple[list[NodeSlotInfo], Counter[FilterReason]]:
        """The nodes that a pod fits on, by name, and how many of the others refuse it for which reason."""
        if not (pod_info.has_inter_pod_terms or pod_info.ports or topology.excluded_domains):
            return self._open_nodes.find(pod_info.kind, partial(_filter, pod_info, topology=topology))
        open_slots: list[NodeSlotInfo] = []
        refusals: Counter[FilterReason] = Counter()
        for slot in self.nodes():
            refusal = _filter(pod_info, slot, topology)
            if refusal is None:
                open_slots.append(slot)
            else:
                refusals[refusal] += 1
        return open_slots, refusals

    def nodes(self) -> Iterable[NodeSlotInfo]:
        """Every known node, by name."""
        return (self._nodes[name] for name in self._names)


def _filter(pod_info: PodInfo, slot: NodeSlotInfo, topology: _TopologyTerms) -> FilterReason | None:
    fixed = template_fit(pod_info, slot)
    if fixed.reason is not None:
        return fixed.reason
    if pod_info.ports and has_port_conflict(pod_info, slot):
        return FilterReason.HOST_PORT
    if not fits_resources(pod_info, slot):
        return FilterReason.RESOURCES
    return topology.filter_reason(slot) if pod_info.has_inter_pod_terms or topology.excluded_domains else None


class _TopologyTerms:
    """Spread and pod affinity of each node, computed once per attempt."""

    def __init__(self, board: SchedulerCache, pod_info: PodInfo) -> None:
        self._census = board.census
        self._pod = pod_info.pod
        self._nodes = [(slot.name, slot.labels) for slot in board.nodes()] if pod_info.has_inter_pod_terms else []
        self._spread = [self._hard_spread(each, pod_info, board) for each in _hard_spread_constraints(pod_info.pod)]
        affinity = pod_info.pod.spec.affinity
        self._affinity = self._affinity_counts(affinity.pod_affinity if affinity is not None else None)
        self._anti_affinity = self._affinity_counts(affinity.pod_anti_affinity if affinity is not None else None)
        self._is_first_in_group = self._no_match_exists_yet()
        self.excluded_domains = self._excluded_domains(board)

    def _count(self, pattern: pod_census.PodFilter, topology_key: str) -> dict[str, int]:
        return pod_census.domain_counts(self._census.counts_by_node(pattern), topology_key, self._nodes)

    def _hard_spread(
        self, constraint: TopologySpreadConstraint, pod_info: PodInfo, board: SchedulerCache
    ) -> tuple[str, dict[str, int], int]:
        """Topology key, matching pods per domain, and the most a domain may hold before this pod joins it."""
        pattern = pod_census.filter_of_constraint(pod_info.pod, constraint)
        keys = [each.topology_key for each in _hard_spread_constraints(pod_info.pod)]
        counted = [
            (slot.name, slot.labels)
            for slot in board.nodes()
            if all(key in slot.labels for key in keys) and _counts_for_spread(constraint, pod_info, slot)
        ]
        totals = pod_census.domain_counts(self._census.counts_by_node(pattern), constraint.topology_key, counted)
        fewest = min(totals.values(), default=0) if len(totals) >= (constraint.min_domains or 1) else 0
        joins = self._census.matches(pattern, pod_info.pod)
        return constraint.topology_key, totals, constraint.max_skew + fewest - joins

    def _affinity_counts(self, affinity: PodAffinity | None) -> list[tuple[str, dict[str, int]]]:
        return [
            (term.topology_key, self._count(pod_census.filter_of_term(self._pod, term), term.topology_key))
            for term in pod_census.required_terms(affinity)
        ]

    def _no_match_exists_yet(self) -> bool:
        """Whether the pod's affinity selects itself and no such pod has a node yet: then every domain is valid."""
        affinity = self._pod.spec.affinity
        terms = pod_census.required_terms(affinity.pod_affinity) if affinity is not None else ()
        patterns = [pod_census.filter_of_term(self._pod, term) for term in terms]
        return all(self._census.matches(pattern, self._pod) for pattern in patterns) and not any(
            self._census.counts_by_node(pattern) for pattern in patterns
        )

    def _excluded_domains(self, board: SchedulerCache) -> set[tuple[str, str]]:
        near: set[tuple[str, str]] = set()
        for topology_key, tally in self._census.anti_affinity_against(self._pod):
            for slot in board.nodes():
                domain = slot.labels.get(topology_key)
                if domain is not None and slot.name in tally:
                    near.add((topology_key, domain))
        return near

    def filter_reason(self, slot: NodeSlotInfo) -> FilterReason | None:
        labels = slot.labels
        for key, totals, most in self._spread:
            if key not in labels or totals.get(labels[key], 0) > most:
                return FilterReason.SPREAD
        if any(
            key not in labels or not (self._is_first_in_group or totals.get(labels[key]))
            for key, totals in self._affinity
        ):
            return FilterReason.POD_AFFINITY
        excluded = any(key in labels and totals.get(labels[key]) for key, totals in self._anti_affinity)
        if excluded or any(labels.get(key) == domain for key, domain in self.excluded_domains):
            return FilterReason.ANTI_AFFINITY
        return None

    def spread_scores(self, slots: list[NodeSlotInfo]) -> list[float]:
        """Matching pods in each node's domains by the soft spread constraints; fewer is better."""
        crowding = [0.0] * len(slots)
        for constraint in self._pod.spec.topology_spread_constraints:
            if constraint.when_unsatisfiable != "ScheduleAnyway":
                continue
            totals = self._count(pod_census.filter_of_constraint(self._pod, constraint), constraint.topology_key)
            weight = math.log(len(totals) + 2)
            for index, slot in enumerate(slots):
                count = totals.get(slot.labels.get(constraint.topology_key, ""), 0)
                crowding[index] += count * weight + constraint.max_skew - 1
        return crowding

    def affinity_scores(self, slots: list[NodeSlotInfo]) -> list[float]:
        """Weighted count of pods by preferred affinity, minus that by preferred anti-affinity; more is better."""
        affinity = self._pod.spec.affinity
        sums = [0.0] * len(slots)
        if affinity is None:
            return sums
        for sign, side in ((1, affinity.pod_affinity), (-1, affinity.pod_anti_affinity)):
            for preferred in side.preferred if side is not None else ():
                term = preferred.pod_affinity_term
                totals = self._count(pod_census.filter_of_term(self._pod, term), term.topology_key)
                for index, slot in enumerate(slots):
                    count = totals.get(slot.labels.get(term.topology_key, ""), 0)
                    sums[index] += sign * preferred.weight * count
        return sums


def _hard_spread_constraints(pod: Pod) -> list[TopologySpreadConstraint]:
    return [each for each in pod.spec.topology_spread_constraints if each.when_unsatisfiable != "ScheduleAnyway"]


def _counts_for_spread(constraint: TopologySpreadConstraint, pod_info: PodInfo, slot: NodeSlotInfo) -> bool:
    assert slot.node is not None
    if constraint.node_affinity_policy != "Ignore" and not template_fit(pod_info, slot).matches:
        return False
    if constraint.node_taints_policy != "Honor":
        return True
    open_taints = taints.untolerated(slot.node.spec.taints, pod_info.pod.spec.tolerations)
    return not any(taint.effect in HARD_TAINT_EFFECTS for taint in open_taints)


def _highest_scored(pod_info: PodInfo, slots: list[NodeSlotInfo], topology: _TopologyTerms) -> NodeSlotInfo:
    if len(slots) == 1:
        return slots[0]
    totals = [_resource_score(pod_info, slot) for slot in slots]
    fixed = [template_fit(pod_info, slot) for slot in slots]
    weighted: list[tuple[int, list[int]]] = [
        (2, _normalize([each.preference for each in fixed])),
        (3, _normalize_reverse([each.soft_taints for each in fixed])),
    ]
    if pod_info.has_inter_pod_terms:
        weighted.append((2, _normalize_reverse(topology.spread_scores(slots))))
        weighted.append((2, _normalize(topology.affinity_scores(slots))))
    for weight, scores in weighted:
        totals = [total + weight * score for total, score in zip(totals, scores, strict=True)]
    # The slots are in the order of their names and max keeps the first of equals.
    return max(zip(totals, slots, strict=True), key=lambda pair: pair[0])[1]


def _resource_score(pod_info: PodInfo, slot: NodeSlotInfo) -> int:
    """Least-allocated plus balance, each 0 to 100."""
    used: list[float] = []
    for name, assumed in DEFAULT_SCORED_REQUESTS.items():
        whole = slot.allocatable.get(name, 0)
        wanted = slot.scored_requests[name] + (pod_info.requests.get(name, 0) or assumed)
        used.append(min(1.0, wanted / whole) if whole > 0 else 1.0)
    least = sum(int((1 - share) * _MAX_NODE_SCORE) for share in used) // len(used)
    balance = int((1 - abs(used[0] - used[1]) / 2) * _MAX_NODE_SCORE)
    return least + balance


def _normalize(values: Iterable[float]) -> list[int]:
    given = list(values)
    lowest, highest = min(min(given), 0), max(given)
    span = highest - lowest
    return [int(_MAX_NODE_SCORE * (value - lowest) / span) if span else 0 for value in given]


def _normalize_reverse(values: Iterable[float]) -> list[int]:
    return [_MAX_NODE_SCORE - score for score in _normalize(values)]
