"""Pods that scheduling cannot tell apart form one class; all deciding is done per class, never per pod (SCH-900.1).

Two pods are of one class when everything the decision reads of them is equal: requests, node selector and affinity,
tolerations, ports, device claims and what they say about other pods. The key is the encoded form of exactly those fields,
which costs a few microseconds, so a thousand replicas are parsed once. Classes live as long as a pod of theirs does. How a
pod looks to others (its ``Face``) and the volumes it waits for are no part of its class: replicas that differ only there are
packed as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec

from karpenter.api.core import Affinity, Container, NodeSelectorTerm, Pod, PodSpec
from karpenter.cluster.terms import Terms, has_terms, labels_read, terms_of
from karpenter.model import labels, pods
from karpenter.model import resources as res
from karpenter.model.requirements import Op, Requirement, Requirements, requirement
from karpenter.model.resources import Resources

_encoder = msgspec.json.Encoder(order="deterministic")


class PodClass:
    """What all pods of the class have in common. Compared by identity: equal keys give the same object."""

    def __init__(self, key: bytes, pod: Pod, requests: Resources) -> None:
        self.key = key
        self.spec = pod.spec
        self._meta = pod.metadata
        #: Effective requests of one pod, ``pods: 1`` included.
        self.requests = requests

    def beside(self, more: Resources) -> PodClass:
        """The class of such pods that take something else of their machine as well."""
        return PodClass(self.key, Pod(metadata=self._meta, spec=self.spec), {**self.requests, **more})

    @cached_property
    def selector(self) -> Requirements:
        """The node selector as requirements."""
        return selector_of(self.spec)

    @cached_property
    def alternatives(self) -> tuple[Requirements, ...]:
        """What nodes must offer: node selector and each required affinity term; one of them must hold."""
        terms = required_terms(self.spec.affinity)
        return tuple(self.selector.intersect(of_term(term)) for term in terms) if terms else (self.selector,)

    @cached_property
    def terms(self) -> Terms:
        """What the pods say about other pods."""
        return terms_of(self._meta, self.spec, self.alternatives)

    @cached_property
    def ports(self) -> tuple[HostPort, ...]:
        """Ports of its host that a pod takes."""
        return ports_of(self.spec)

    @cached_property
    def preferences(self) -> tuple[Requirements, ...]:
        """Preferred node affinity, heaviest first; equal weights in the order written (SCH-160)."""
        affinity = self.spec.affinity.node_affinity if self.spec.affinity else None
        terms = sorted(affinity.preferred, key=lambda term: -term.weight) if affinity else []
        return tuple(of_term(term.preference) for term in terms)


class PodClasses:
    """The classes in use, by key."""

    def __init__(self) -> None:
        self._by_key: WeakValueDictionary[bytes, PodClass] = WeakValueDictionary()
        #: Stands for bound pods whose requests do not parse: they are there, but what they hold is unknown.
        self.unreadable = PodClass(b"", Pod(), {res.PODS: res.ONE})

    def of(self, pod: Pod) -> PodClass:
        """The class of a pod. Raises ``quantity.QuantityError`` when its requests do not parse."""
        key = _key(pod)
        known = self._by_key.get(key)
        if known is None:
            known = self._by_key[key] = PodClass(key, pod, pods.requests(pod))
        return known


def _key(pod: Pod) -> bytes:
    """Only what decisions read: names of containers and volumes and priority would split replicas of different workloads that
    are the same to a machine."""
    spec, status = pod.spec, pod.status
    seen: tuple[object, ...] = (
        [(container.resources, container.restart_policy) for container in spec.containers],
        [(container.resources, container.restart_policy) for container in spec.init_containers],
        spec.node_selector,
        spec.os,
        spec.tolerations,
        spec.affinity,
        spec.topology_spread_constraints,
        spec.resources,
        spec.overhead,
        ports_of(spec),
        [claim.name for claim in spec.resource_claims],
    )
    if has_terms(spec):
        own = pod.metadata.labels
        seen = (*seen, pod.metadata.namespace, [(key, own.get(key)) for key in labels_read(spec)])
    if not (
        status.container_statuses or status.init_container_statuses or status.resources or status.allocated_resources
    ):
        return _encoder.encode(seen)
    resizing = [condition for condition in status.conditions if condition.type == "PodResizePending"]
    names = [container.name for container in (*spec.containers, *spec.init_containers)]
    held = (
        names,
        status.container_statuses,
        status.init_container_statuses,
        status.resources,
        status.allocated_resources,
    )
    return _encoder.encode((seen, held, [(condition.type, condition.reason) for condition in resizing]))


class HostPort(NamedTuple):
    """A port of the host. ``ip`` is ``0.0.0.0`` where a pod names none."""

    ip: str
    port: int
    protocol: str

    def collides(self, other: HostPort) -> bool:
        """Whether both cannot be taken on one host (SCH-416)."""
        same = self.port == other.port and self.protocol == other.protocol
        return same and (self.ip == other.ip or self.ip in _ANY_IP or other.ip in _ANY_IP)

    def __str__(self) -> str:
        return f"IP: {self.ip}, Port: {self.port}, Proto: {self.protocol}"


_ANY_IP = frozenset({"0.0.0.0", "::"})


def ports_of(spec: PodSpec) -> tuple[HostPort, ...]:
    """Ports of its host that a pod takes (SCH-415), sidecars included (its Beyond); in the host's network those are
    all its ports.
    """
    sidecars = (container for container in spec.init_containers if container.restart_policy == "Always")
    return tuple(port for container in (*spec.containers, *sidecars) for port in _ports(container, spec))


def _ports(container: Container, spec: PodSpec) -> Iterator[HostPort]:
    for port in container.ports:
        number = port.host_port or (port.container_port if spec.host_network else 0)
        if number:
            yield HostPort(port.host_ip or "0.0.0.0", number, port.protocol or "TCP")


def selector_of(spec: PodSpec) -> Requirements:
    """The node selector as requirements, with the operating system the pod names: elsewhere the kubelet refuses it."""
    own = [requirement(key, Op.IN, (value,)) for key, value in spec.node_selector.items()]
    system = [requirement(labels.OS, Op.IN, (spec.os.name,))] if spec.os is not None and spec.os.name else []
    return Requirements((*own, *system))


def required_terms(affinity: Affinity | None) -> tuple[NodeSelectorTerm, ...]:
    """Required node-affinity terms, of which one must hold."""
    node_affinity = affinity.node_affinity if affinity else None
    return node_affinity.required.node_selector_terms if node_affinity and node_affinity.required else ()


def of_term(term: NodeSelectorTerm) -> Requirements:
    """The expressions of one node selector term, intersected per key."""
    return Requirements(requirement(entry.key, entry.operator, entry.values) for entry in term.match_expressions)


def hostname_requirement(name: str) -> Requirement:
    """The requirement that pins to one host."""
    return Requirement(labels.HOSTNAME, False, frozenset((name,)))
