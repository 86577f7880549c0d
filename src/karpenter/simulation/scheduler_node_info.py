"""Nodes and pods as the simulated scheduler sees them, and its filters for one node.

It shares no code with the engine, because tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from karpenter.api.core import Node, Pod, PodSpec
from karpenter.api.scheduling_constraints import NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm
from karpenter.kube.informer import ObjectKey, key_of
from karpenter.model import labels, pods, requirements, taints
from karpenter.model import resources as res
from karpenter.model.pod_defaults import SYSTEM_PRIORITIES
from karpenter.model.resources import Resources

HARD_TAINT_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
_ABSENT_KEY_OPERATORS = frozenset({requirements.Op.NOT_IN, requirements.Op.DOES_NOT_EXIST})
# What kube-scheduler assumes, for scoring only, of a pod that requests nothing: 100m and 200 MiB.
DEFAULT_SCORED_REQUESTS = {res.CPU: 100, res.MEMORY: 200 * 2**20 * 1000}


class FilterReason(StrEnum):
    """Why a node rejects a pod, in the order of the filters."""

    CORDONED = "cordoned"
    TAINTED = "had taints the pod does not tolerate"
    NODE_AFFINITY = "did not match the pod's node selector or affinity"
    HOST_PORT = "had a requested host port in use"
    RESOURCES = "had too few free resources"
    SPREAD = "would break the pod's topology spread"
    POD_AFFINITY = "had no pod near that the pod requires"
    ANTI_AFFINITY = "had a pod near that excludes the pod or that it excludes"


Port = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A pod with everything a scheduling attempt reads, precomputed.

    ``kind``: what nodes see of it, but for other pods, host ports and its nomination.
    """

    pod: Pod
    requests: Resources
    ports: tuple[Port, ...]
    priority: int
    template: bytes
    signature: bytes
    kind: bytes
    has_inter_pod_terms: bool


def to_pod_info(pod: Pod) -> PodInfo:
    """Prepare a pod for scheduling. Raises ``quantity.QuantityError``."""
    spec = pod.spec
    affinity = spec.affinity
    node_affinity = affinity.node_affinity if affinity is not None else None
    requests = pods.pod_requests(pod)
    ports = tuple(_ports(spec))
    template = msgspec.json.encode((spec.node_selector, node_affinity, spec.tolerations))
    around = (
        spec.topology_spread_constraints,
        affinity.pod_affinity if affinity is not None else None,
        affinity.pod_anti_affinity if affinity is not None else None,
    )
    priority = spec.priority if spec.priority is not None else SYSTEM_PRIORITIES.get(spec.priority_class_name, 0)
    identity = (pod.metadata.namespace, pod.metadata.labels, pod.status.nominated_node_name, priority)
    signature = msgspec.json.encode((identity, requests, ports, around)) + template
    kind = msgspec.json.encode((priority, requests)) + template
    return PodInfo(pod, requests, ports, priority, template, signature, kind, any(around))


def _ports(spec: PodSpec) -> Iterable[Port]:
    for container in spec.containers:
        for port in container.ports:
            if port.host_port:
                yield (port.host_ip or "0.0.0.0", port.protocol, port.host_port)


def _ports_collide(left: Port, right: Port) -> bool:
    same_address = left[0] == right[0] or "0.0.0.0" in (left[0], right[0])
    return same_address and left[1:] == right[1:]


def matches_node(spec: PodSpec, node: Node) -> bool:
    """Whether node selector and required node affinity match the node; one matching term suffices."""
    own = node.metadata.labels
    if any(own.get(key) != value for key, value in spec.node_selector.items()):
        return False
    affinity = _node_affinity(spec)
    if affinity is None or affinity.required is None:
        return True
    return any(_term_matches(term, node) for term in affinity.required.node_selector_terms)


def _node_affinity(spec: PodSpec) -> NodeAffinity | None:
    return spec.affinity.node_affinity if spec.affinity is not None else None


def _term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.metadata.name}
    return all(
        _requirement_matches(requirement, node.metadata.labels) for requirement in term.match_expressions
    ) and all(_requirement_matches(requirement, fields) for requirement in term.match_fields)


def _requirement_matches(requirement: NodeSelectorRequirement, values: Mapping[str, str]) -> bool:
    value = values.get(requirement.key)
    if value is None:
        return requirement.operator in _ABSENT_KEY_OPERATORS
    return requirements.requirement(requirement.key, requirement.operator, requirement.values).allows(value)


@dataclass(frozen=True, slots=True)
class TemplateFit:
    """Results of the filters that depend only on node and pod template."""

    reason: FilterReason | None
    matches: bool
    preference: int
    soft_taints: int


@dataclass(slots=True)
class NodeSlotInfo:
    """A node and its pods. ``node`` is None while only its pods are known."""

    name: str
    node: Node | None = None
    allocatable: Resources = field(default_factory=dict)
    free: dict[str, int] = field(default_factory=dict)
    scored_requests: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DEFAULT_SCORED_REQUESTS, 0))
    pods: dict[ObjectKey, PodInfo] = field(default_factory=dict)
    nominated: dict[ObjectKey, PodInfo] = field(default_factory=dict)
    template_fits: dict[bytes, TemplateFit] = field(default_factory=dict)

    def set_node(self, node: Node | None) -> None:
        """Replace the Node and drop cached results."""
        self.node = node
        self.template_fits.clear()
        self.allocatable = res.parse_resources(node.status.allocatable) if node is not None else {}
        self.free = dict(self.allocatable)
        for held in self.pods.values():
            self._add_usage(held, 1)

    def add_pod(self, pod_info: PodInfo) -> None:
        """Count a pod on this node."""
        self.pods[key_of(pod_info.pod.metadata)] = pod_info
        self._add_usage(pod_info, 1)
        self._add_scored_usage(pod_info, 1)

    def remove_pod(self, key: ObjectKey) -> PodInfo:
        """Stop counting a pod, and return it. Raises ``KeyError``."""
        pod_info = self.pods.pop(key)
        self._add_usage(pod_info, -1)
        self._add_scored_usage(pod_info, -1)
        return pod_info

    def _add_usage(self, pod_info: PodInfo, by: int) -> None:
        for name, amount in pod_info.requests.items():
            self.free[name] = self.free.get(name, 0) - by * amount

    def _add_scored_usage(self, pod_info: PodInfo, by: int) -> None:
        for name, assumed in DEFAULT_SCORED_REQUESTS.items():
            self.scored_requests[name] += by * (pod_info.requests.get(name, 0) or assumed)

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the Node; none while there is no Node."""
        return self.node.metadata.labels if self.node is not None else {}


def same_for_scheduling(left: Node, right: Node) -> bool:
    """Whether two versions of a Node are the same to every filter."""
    return (
        left.metadata.labels == right.metadata.labels
        and left.spec == right.spec
        and left.status.allocatable == right.status.allocatable
    )


def template_fit(pod_info: PodInfo, slot: NodeSlotInfo) -> TemplateFit:
    """The filters that depend only on the pod template, computed once per template and node."""
    fit = slot.template_fits.get(pod_info.template)
    if fit is None:
        assert slot.node is not None
        fit = slot.template_fits[pod_info.template] = _fit_template(pod_info.pod.spec, slot.node)
    return fit


def _fit_template(spec: PodSpec, node: Node) -> TemplateFit:
    open_taints = taints.untolerated(node.spec.taints, spec.tolerations)
    soft = sum(taint.effect not in HARD_TAINT_EFFECTS for taint in open_taints)
    affinity = _node_affinity(spec)
    preferred = affinity.preferred if affinity is not None else ()
    weight = sum(term.weight for term in preferred if _term_matches(term.preference, node))
    matches = matches_node(spec, node)
    refusal = None if matches else FilterReason.NODE_AFFINITY
    if len(open_taints) > soft:
        refusal = FilterReason.TAINTED
    if node.spec.unschedulable and not _tolerates_cordon(spec):
        refusal = FilterReason.CORDONED
    return TemplateFit(refusal, matches, weight, soft)


def _tolerates_cordon(spec: PodSpec) -> bool:
    return any(
        toleration.operator == "Exists"
        and toleration.key in ("", labels.UNSCHEDULABLE_TAINT)
        and toleration.effect in ("", "NoSchedule")
        for toleration in spec.tolerations
    )


def nominated_pods(pod_info: PodInfo, slot: NodeSlotInfo) -> list[PodInfo]:
    """Other pods nominated to this node whose priority is at least this pod's."""
    own = key_of(pod_info.pod.metadata)
    return [
        other
        for key, other in slot.nominated.items()
        if key != own and other.priority >= pod_info.priority and key not in slot.pods
    ]


def has_port_conflict(pod_info: PodInfo, slot: NodeSlotInfo) -> bool:
    """Whether a pod on the node, or nominated to it, uses a host port of this pod."""
    holders = (*slot.pods.values(), *nominated_pods(pod_info, slot))
    return any(_ports_collide(own, other) for own in pod_info.ports for holder in holders for other in holder.ports)


def fits_resources(pod_info: PodInfo, slot: NodeSlotInfo) -> bool:
    """Whether the pod fits beside bound and nominated pods."""
    if not slot.nominated:
        return res.fits(pod_info.requests, slot.free)
    kept = res.add(*(other.requests for other in nominated_pods(pod_info, slot)))
    return res.fits(res.add(pod_info.requests, kept), slot.free)
