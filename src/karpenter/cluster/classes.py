"""Pods that scheduling cannot tell apart form one class; all deciding is done per class, never per pod (SCH-900.1).

Two pods are of one class when everything the decision reads of them is equal: requests, node selector and affinity,
tolerations, ports, volumes, device claims and constraints. The key is the encoded form of exactly those fields, which costs a few
microseconds, so a thousand replicas are parsed once. Classes live as long as a pod of theirs does.
"""

from __future__ import annotations

from functools import cached_property
from weakref import WeakValueDictionary

import msgspec

from karpenter.api.core import Affinity, Container, NodeSelectorTerm, Pod, PodSpec, Volume
from karpenter.model import labels, pods
from karpenter.model import resources as res
from karpenter.model.requirements import Op, Requirement, Requirements, requirement
from karpenter.model.resources import Resources

_encoder = msgspec.json.Encoder(order="deterministic")


class PodClass:
    """What all pods of the class have in common. Compared by identity: equal keys give the same object."""

    def __init__(self, key: bytes, spec: PodSpec, requests: Resources) -> None:
        self.key = key
        self.spec = spec
        #: Effective requests of one pod, ``pods: 1`` included.
        self.requests = requests

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
        self.unreadable = PodClass(b"", PodSpec(), {res.PODS: res.ONE})

    def of(self, pod: Pod) -> PodClass:
        """The class of a pod. Raises ``quantity.QuantityError`` when its requests do not parse."""
        key = _key(pod)
        known = self._by_key.get(key)
        if known is None:
            known = self._by_key[key] = PodClass(key, pod.spec, pods.requests(pod))
        return known


def _key(pod: Pod) -> bytes:
    """Only what decisions read: names of containers and volumes, soft constraints nobody honours yet and priority would split
    replicas of different workloads that are the same to a machine."""
    spec, status = pod.spec, pod.status
    seen = (
        [_of_container(container, spec) for container in spec.containers],
        [_of_container(container, spec) for container in spec.init_containers],
        spec.node_selector,
        spec.os,
        spec.tolerations,
        _of_affinity(spec.affinity),
        [spread for spread in spec.topology_spread_constraints if spread.when_unsatisfiable != "ScheduleAnyway"],
        spec.resources,
        spec.overhead,
        [volume for volume in spec.volumes if volume != Volume(name=volume.name)],
        spec.resource_claims,
    )
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


def _of_container(container: Container, spec: PodSpec) -> tuple[object, ...]:
    return (container.resources, container.restart_policy, host_ports(container, spec))


def host_ports(container: Container, spec: PodSpec) -> tuple[int, ...]:
    """Ports the container takes of its host; in the host's network those are all its ports."""
    taken = (port.host_port or (port.container_port if spec.host_network else 0) for port in container.ports)
    return tuple(port for port in taken if port)


def selector_of(spec: PodSpec) -> Requirements:
    """The node selector as requirements, with the operating system the pod names: elsewhere the kubelet refuses it."""
    own = [requirement(key, Op.IN, (value,)) for key, value in spec.node_selector.items()]
    system = [requirement(labels.OS, Op.IN, (spec.os.name,))] if spec.os is not None and spec.os.name else []
    return Requirements((*own, *system))


def _of_affinity(affinity: Affinity | None) -> object:
    if affinity is None:
        return None
    near, far = affinity.pod_affinity, affinity.pod_anti_affinity
    return (affinity.node_affinity, near.required if near else (), far.required if far else ())


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
