"""The signature of a pod: everything scheduling reads of it. Decisions are made per signature, never per pod (SCH-900.1).

Two pods have the same signature if these fields are equal: requests, node selector and affinity, tolerations, ports, device
claims and topology terms. The key is the encoded form of exactly those fields, which costs a few microseconds, so a thousand
replicas are parsed once. Signatures live as long as one of their pods. The pod's own labels (``NamespacedLabels``) and volumes
are not part of the signature: replicas that differ only there are packed together.
"""

from __future__ import annotations

from functools import cached_property
from weakref import WeakValueDictionary

import msgspec

from karpenter.api.core import Pod, PodSpec
from karpenter.api.scheduling_constraints import Affinity, NodeSelectorTerm
from karpenter.model import labels, pods
from karpenter.model import resources as res
from karpenter.model.requirements import Op, Requirement, Requirements, requirement
from karpenter.model.resources import Resources
from karpenter.state.device_demands import DeviceDemand
from karpenter.state.host_ports import HostPort, host_ports_of
from karpenter.state.topology_terms import (
    TopologyTerms,
    claim_affinity,
    has_topology_terms,
    label_keys_in_terms,
    topology_terms_of,
)

_encoder = msgspec.json.Encoder(order="deterministic")


class PodSignature:
    """What all pods with this signature have in common. Compared by identity: equal keys give the same object."""

    def __init__(
        self,
        key: bytes,
        pod: Pod,
        requests: Resources,
        device_demand: DeviceDemand | None = None,
    ) -> None:
        self.key = key
        self.spec = pod.spec
        self._meta = pod.metadata
        #: Effective requests of one pod, ``pods: 1`` included.
        self.requests = requests
        #: The devices that one pod still needs, in decisions that plan with devices.
        self.device_demand = device_demand

    def with_resources(self, added: Resources) -> PodSignature:
        """The signature of such pods with further requests."""
        return PodSignature(
            self.key, Pod(metadata=self._meta, spec=self.spec), {**self.requests, **added}, self.device_demand
        )

    def with_devices(self, demand: DeviceDemand, added: Resources) -> PodSignature:
        """The signature of such pods that need devices, which they request as ``added``, too.

        Pods that share a claim by name must be together: they have an affinity to each other by the claim.
        """
        signature = self.with_resources(added)
        signature.device_demand = demand
        if demand.shared:
            own = self.topology_terms
            together = tuple(claim_affinity(claim.key) for claim in demand.shared)
            signature.__dict__["topology_terms"] = TopologyTerms((*own.required, *together), own.preferred)
        return signature

    @cached_property
    def node_selector(self) -> Requirements:
        """The node selector as requirements."""
        return node_selector_requirements(self.spec)

    @cached_property
    def node_alternatives(self) -> tuple[Requirements, ...]:
        """See `node_alternatives_of`."""
        return node_alternatives_of(self.spec, self.node_selector)

    @cached_property
    def topology_terms(self) -> TopologyTerms:
        """Spread constraints and inter-pod affinity terms."""
        return topology_terms_of(self._meta, self.spec, self.node_alternatives)

    @cached_property
    def host_ports(self) -> tuple[HostPort, ...]:
        """Host ports of a pod."""
        return host_ports_of(self.spec)

    @cached_property
    def preferred_node_affinity(self) -> tuple[Requirements, ...]:
        """Preferred node affinity, heaviest first; equal weights in the order written (SCH-160)."""
        affinity = self.spec.affinity.node_affinity if self.spec.affinity else None
        terms = sorted(affinity.preferred, key=lambda term: -term.weight) if affinity else []
        return tuple(node_selector_term_requirements(term.preference) for term in terms)


class PodSignatureCache:
    """The signatures in use, by key."""

    def __init__(self) -> None:
        self._by_key: WeakValueDictionary[bytes, PodSignature] = WeakValueDictionary()
        #: Signature of bound pods with unparseable requests: they exist, but their usage is unknown.
        self.unparseable = PodSignature(b"", Pod(), {res.PODS: res.ONE_UNIT})

    def signature_of(self, pod: Pod) -> PodSignature:
        """The signature of a pod. Raises ``quantity.QuantityError`` if its requests do not parse."""
        key = _signature_key(pod)
        signature = self._by_key.get(key)
        if signature is None:
            signature = self._by_key[key] = PodSignature(key, pod, pods.pod_requests(pod))
        return signature


def _signature_key(pod: Pod) -> bytes:
    """The key of the fields that decisions read. Names of containers and volumes, and priority, are left out: they would separate
    pods of different workloads that need the same of a node."""
    spec, status = pod.spec, pod.status
    fields: tuple[object, ...] = (
        [(container.resources, container.restart_policy) for container in spec.containers],
        [(container.resources, container.restart_policy) for container in spec.init_containers],
        spec.node_selector,
        spec.os,
        spec.tolerations,
        spec.affinity,
        spec.topology_spread_constraints,
        spec.resources,
        spec.overhead,
        host_ports_of(spec),
        [claim.name for claim in spec.resource_claims],
    )
    if has_topology_terms(spec):
        pod_labels = pod.metadata.labels
        fields = (*fields, pod.metadata.namespace, [(key, pod_labels.get(key)) for key in label_keys_in_terms(spec)])
    if not (
        status.container_statuses or status.init_container_statuses or status.resources or status.allocated_resources
    ):
        return _encoder.encode(fields)
    resize_conditions = [condition for condition in status.conditions if condition.type == "PodResizePending"]
    names = [container.name for container in (*spec.containers, *spec.init_containers)]
    status_fields = (
        names,
        status.container_statuses,
        status.init_container_statuses,
        status.resources,
        status.allocated_resources,
    )
    return _encoder.encode(
        (fields, status_fields, [(condition.type, condition.reason) for condition in resize_conditions])
    )


def node_selector_requirements(spec: PodSpec) -> Requirements:
    """The node selector as requirements, with the pod's operating system: the kubelet rejects the pod on any other."""
    selector_requirements = [requirement(key, Op.IN, (value,)) for key, value in spec.node_selector.items()]
    os_requirements = [requirement(labels.OS, Op.IN, (spec.os.name,))] if spec.os is not None and spec.os.name else []
    return Requirements((*selector_requirements, *os_requirements))


def node_alternatives_of(spec: PodSpec, node_selector: Requirements | None = None) -> tuple[Requirements, ...]:
    """Node requirements: the node selector combined with each required affinity term; one of them must hold."""
    own = node_selector_requirements(spec) if node_selector is None else node_selector
    terms = required_node_affinity_terms(spec.affinity)
    return tuple(own.intersect(node_selector_term_requirements(term)) for term in terms) if terms else (own,)


def required_node_affinity_terms(affinity: Affinity | None) -> tuple[NodeSelectorTerm, ...]:
    """Required node-affinity terms, of which one must hold."""
    node_affinity = affinity.node_affinity if affinity else None
    return node_affinity.required.node_selector_terms if node_affinity and node_affinity.required else ()


def node_selector_term_requirements(term: NodeSelectorTerm) -> Requirements:
    """The expressions of one node selector term, intersected per key."""
    return Requirements(requirement(entry.key, entry.operator, entry.values) for entry in term.match_expressions)


def hostname_requirement(name: str) -> Requirement:
    """The requirement for one hostname."""
    return Requirement(labels.HOSTNAME, False, frozenset((name,)))
