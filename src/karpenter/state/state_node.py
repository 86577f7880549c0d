"""The state node: a Node, its NodeClaim, or both merged by the rules of SCH-080 ff."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from karpenter.api.core import Node, Pod
from karpenter.api.karpenter import NodeClaim, NodeClaimStatus
from karpenter.api.meta import WireResources
from karpenter.api.scheduling_constraints import Taint
from karpenter.model import conditions, labels, pod_disruption, pods, taints
from karpenter.model import resources as res
from karpenter.model.requirements import Op, Requirements, requirements_from_labels, requirements_from_wire
from karpenter.model.resources import Resources
from karpenter.state.pod_signature import hostname_requirement
from karpenter.state.rollout_controls import WorkloadKey, workload_version

_OFFERING = (labels.CAPACITY_TYPE, labels.INSTANCE_TYPE, labels.ZONE)


@dataclass(frozen=True)
class StateNode:
    """A node that exists or has been requested by a NodeClaim.

    ``requirements`` are its labels or, before launch, the claim's requirements (then keys may allow several values, and
    ``launched`` is False). ``allocatable`` is empty before launch; ``pod_requests`` sums bound, unfinished pods,
    ``daemonset_requests`` those owned by DaemonSets.
    """

    name: str
    hostname: str
    provider_id: str
    pool: str
    requirements: Requirements
    taints: tuple[Taint, ...]
    capacity: Resources
    allocatable: Resources
    pod_requests: Resources
    daemonset_requests: Resources
    pods: tuple[Pod, ...]
    launched: bool
    registered: bool
    initialized: bool
    marked_for_deletion: bool
    node: Node | None
    claim: NodeClaim | None

    @cached_property
    def key(self) -> str:
        """A key that is stable from claim to node: the NodeClaim's name, or the Node's if there is no claim."""
        return self.claim.metadata.name if self.claim is not None else self.name

    @cached_property
    def pods_by_workload(self) -> Mapping[str, int]:
        """Number of bound pods per workload."""
        return Counter(owner for pod in self.pods if (owner := pods.workload_id(pod)))

    @cached_property
    def versions_by_workload(self) -> Mapping[WorkloadKey, frozenset[str]]:
        """The versions in which workloads have active pods here."""
        versions: dict[WorkloadKey, frozenset[str]] = {}
        for pod in self.pods:
            known = workload_version(pod)
            if known is not None and pods.is_active(pod):
                versions[known[0]] = versions.get(known[0], frozenset()) | {known[1]}
        return versions

    @cached_property
    def terminating_pods(self) -> tuple[Pod, ...]:
        """Bound pods that are being deleted."""
        return tuple(pod for pod in self.pods if pod.metadata.deletion_timestamp is not None)

    @cached_property
    def pods_with_eviction_annotation(self) -> tuple[Pod, ...]:
        """Bound pods with an annotation that says that they should stay."""
        return tuple(filter(pod_disruption.has_eviction_annotation, self.pods))

    @cached_property
    def unreadable_costs(self) -> tuple[tuple[Pod, str, str], ...]:
        """Bound pods whose disruption cost cannot be read, each with its annotation and the value (K15-341)."""
        unreadable = ((pod, pod_disruption.unreadable_cost(pod)) for pod in self.pods if pod.metadata.annotations)
        return tuple((pod, *complaint) for pod, complaint in unreadable if complaint is not None)

    @cached_property
    def reschedulable_pods(self) -> tuple[Pod, ...]:
        """The pods that need another place when the node goes (DIS-007)."""
        moving = tuple(filter(pods.is_reschedulable, self.pods))
        return moving if len(moving) < len(self.pods) else self.pods

    @cached_property
    def eviction_cost(self) -> float:
        """What evicting its reschedulable pods costs, no pod counting less than 0 (DIS-114)."""
        return sum(max(0.0, pod_disruption.eviction_cost(pod)) for pod in self.reschedulable_pods)

    @cached_property
    def is_empty(self) -> bool:
        """Whether the node counts as empty: no reschedulable pod on it costs anything to evict (DIS-121)."""
        return self.eviction_cost <= 0

    @property
    def managed(self) -> bool:
        """Whether it has a NodeClaim."""
        return self.claim is not None

    @cached_property
    def offering_labels(self) -> tuple[str, str, str] | None:
        """Capacity type, instance type and zone, if each of them is settled."""
        held = (self.requirements.requirement_for(key) for key in _OFFERING)
        names = [next(iter(each.values)) for each in held if each.operator is Op.IN and len(each.values) == 1]
        return (names[0], names[1], names[2]) if len(names) == len(_OFFERING) else None

    @cached_property
    def sold_as(self) -> tuple[str, str, str, str, str]:
        """NodePool, and by its labels instance type, zone, capacity type and reservation; a missing label is empty."""
        get = self.own_labels.get
        kind, zone, capacity_type = get(labels.INSTANCE_TYPE, ""), get(labels.ZONE, ""), get(labels.CAPACITY_TYPE, "")
        return (self.pool, kind, zone, capacity_type, get(labels.RESERVATION_ID, ""))

    @property
    def own_labels(self) -> Mapping[str, str]:
        """Its labels: the Node's, or its claim's while there is none."""
        if self.node is not None:
            return self.node.metadata.labels
        return self.claim.metadata.labels if self.claim is not None else {}

    @cached_property
    def true_conditions(self) -> frozenset[str]:
        """The conditions of its NodeClaim that are True."""
        held = self.claim.status.conditions if self.claim is not None else ()
        seen: dict[str, str] = {}
        for condition in held:
            seen.setdefault(condition.type, condition.status)
        return frozenset(kind for kind, status in seen.items() if status == conditions.TRUE)

    @cached_property
    def last_pod_event(self) -> datetime | None:
        """When its ``consolidateAfter`` period began: the last time that pods came or went, or its initialization."""
        if self.claim is None or conditions.INITIALIZED not in self.true_conditions:
            return None
        initialized = conditions.find_condition(self.claim.status.conditions, conditions.INITIALIZED)
        since = self.claim.status.last_pod_event_time
        return since or (initialized.last_transition_time if initialized is not None else None)

    @property
    def rebooting(self) -> bool:
        """Whether a reboot of the node is under way (K15-004)."""
        return conditions.REBOOTING in self.true_conditions

    @cached_property
    def ready(self) -> bool:
        """Whether the Node reports Ready."""
        return self.node is not None and conditions.is_true(self.node.status.conditions, "Ready")


@dataclass(frozen=True)
class NodeUsage:
    """The bound, unfinished pods of one node, and the sums of their requests."""

    pod_requests: Resources
    daemonset_requests: Resources
    pods: tuple[Pod, ...]


NO_NODE_USAGE = NodeUsage({}, {}, ())


def build_state_node(node: Node | None, claim: NodeClaim | None, usage: NodeUsage, *, marked: bool) -> StateNode:
    """Merge a Node and its NodeClaim (at least one given). ``marked``: a disruption command removes it (SCH-086).

    Raises ``quantity.QuantityError`` when a resource of either does not parse.
    """
    registered = claim is None or _has_true_label(node, labels.REGISTERED)
    initialized = claim is None or _has_true_label(node, labels.INITIALIZED)
    from_node = node is not None and registered
    name, values = _identity(node, claim, from_node=from_node)
    planned = claim.status if claim is not None and not initialized else NodeClaimStatus()
    launched = node is not None or (claim is not None and bool(claim.status.provider_id))
    return StateNode(
        name=name,
        hostname=values.get(labels.HOSTNAME) or name,
        provider_id=(node.spec.provider_id if node else "") or (claim.status.provider_id if claim else ""),
        pool=values.get(labels.NODE_POOL, ""),
        requirements=_node_requirements(values, claim, values.get(labels.HOSTNAME) or name, launched=launched),
        taints=_taints(node, claim, registered=registered, initialized=initialized and not _is_rebooting(claim)),
        capacity=_merged_resources(node.status.capacity if node else {}, planned.capacity),
        allocatable=_merged_resources(node.status.allocatable if node else {}, planned.allocatable),
        pod_requests=usage.pod_requests,
        daemonset_requests=usage.daemonset_requests,
        pods=usage.pods,
        launched=launched,
        registered=registered and node is not None,
        initialized=initialized and node is not None,
        marked_for_deletion=marked or _is_deleting(node, claim),
        node=node,
        claim=claim,
    )


def _is_rebooting(claim: NodeClaim | None) -> bool:
    return claim is not None and conditions.is_true(claim.status.conditions, conditions.REBOOTING)


def _has_true_label(node: Node | None, label: str) -> bool:
    return node is not None and node.metadata.labels.get(label) == "true"


def _identity(node: Node | None, claim: NodeClaim | None, *, from_node: bool) -> tuple[str, Mapping[str, str]]:
    """Name and labels (SCH-081, SCH-082): the claim's until the Node is registered, then the Node's."""
    if node is not None and (from_node or claim is None):
        return node.metadata.name, node.metadata.labels
    assert claim is not None
    return claim.metadata.name, claim.metadata.labels


def _node_requirements(
    values: Mapping[str, str], claim: NodeClaim | None, hostname: str, *, launched: bool
) -> Requirements:
    others = {key: value for key, value in values.items() if key != labels.HOSTNAME}
    if launched or claim is None:
        return requirements_from_labels({**others, labels.HOSTNAME: hostname})
    host = Requirements((hostname_requirement(hostname),))
    return requirements_from_labels(others).intersect(requirements_from_wire(claim.spec.requirements)).intersect(host)


def _taints(node: Node | None, claim: NodeClaim | None, *, registered: bool, initialized: bool) -> tuple[Taint, ...]:
    """Taints that pods must tolerate (SCH-084): while a managed node starts, ephemeral and startup taints are ignored.

    A node that reboots is capacity that returns (K15-107).
    """
    if claim is None:
        return node.spec.taints if node else ()
    of_claim = tuple(taint.as_taint() for taint in claim.spec.taints)
    node_taints = node.spec.taints if node is not None and registered else of_claim
    if initialized:
        return node_taints
    passing = (labels.REBOOTING_TAINT, *(taint.as_taint() for taint in claim.spec.startup_taints))
    return tuple(taint for taint in taints.without_taints(node_taints, passing) if not taints.is_ephemeral(taint))


def _merged_resources(reported: WireResources, planned: WireResources) -> Resources:
    """Capacity or allocatable (SCH-087, SCH-088): until initialization, the claim's value replaces missing and 0 values."""
    reported_amounts = res.parse_resources(reported)
    if not planned:
        return reported_amounts
    return {
        **reported_amounts,
        **{name: amount for name, amount in res.parse_resources(planned).items() if not reported_amounts.get(name)},
    }


def _is_deleting(node: Node | None, claim: NodeClaim | None) -> bool:
    """Whether its claim or Node is being deleted, or its instance is terminating (SCH-086)."""
    if claim is not None:
        terminating = conditions.is_true(claim.status.conditions, "InstanceTerminating")
        return claim.metadata.deletion_timestamp is not None or terminating
    return node is not None and node.metadata.deletion_timestamp is not None
