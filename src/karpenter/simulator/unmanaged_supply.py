"""Unmanaged nodes of a study as something for sale, for the lower bound: those that are alike are a stock that costs nothing.

Pods on unmanaged nodes cost nothing, so the bound of all pods is lower. Host names are left out: a pod that asks for one fits
nowhere in the bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from karpenter.api.karpenter import (
    NodeClaimTemplate,
    NodeClaimTemplateMeta,
    NodeClaimTemplateSpec,
    NodeClassReference,
    NodePool,
    NodePoolSpec,
    NodePoolTaint,
)
from karpenter.api.kinds import KWOK_NODE_CLASS
from karpenter.api.meta import ObjectMeta
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.well_known_labels import complete_requirements, label_in
from karpenter.model import labels
from karpenter.model.requirements import Requirements
from karpenter.simulator.starting_cluster import UnmanagedNode

_CLASS = NodeClassReference(group=KWOK_NODE_CLASS.group, kind=KWOK_NODE_CLASS.name, name="unmanaged")
#: What unmanaged nodes may lack that every offering has.
_DEFAULTS = {labels.INSTANCE_TYPE: "unmanaged", labels.ZONE: "none", labels.CAPACITY_TYPE: labels.ON_DEMAND}


@dataclass(frozen=True)
class UnmanagedKind:
    """Unmanaged nodes that pods cannot tell apart, as a NodePool that sells just these."""

    pool: NodePool
    instance_type: InstanceType

    def index(self, well_known: frozenset[str]) -> TypeIndex:
        """What the NodePool sells."""
        return TypeIndex([self.instance_type], well_known | frozenset(self.instance_type.requirements.keys()))


def unmanaged_kinds(unmanaged: Iterable[UnmanagedNode]) -> tuple[UnmanagedKind, ...]:
    """The kinds, in the order of their first node."""
    alike: defaultdict[bytes, list[UnmanagedNode]] = defaultdict(list)
    for node in unmanaged:
        alike[_key(node)].append(node)
    return tuple(_kind(f"unmanaged/{number}", each[0], len(each)) for number, each in enumerate(alike.values()))


def _key(node: UnmanagedNode) -> bytes:
    stated = (_labels(node), node.node.spec.taints, node.allocatable)
    return msgspec.json.encode(stated, order="deterministic")


def _labels(node: UnmanagedNode) -> dict[str, str]:
    stated = node.node.metadata.labels
    own = {labels.normalise(key): value for key, value in stated.items() if key != labels.HOSTNAME}
    return {**_DEFAULTS, **own}


def _kind(name: str, node: UnmanagedNode, count: int) -> UnmanagedKind:
    stated = _labels(node)
    own = {key: label_in(key, value) for key, value in stated.items()}
    place = Requirements((own[labels.ZONE], own[labels.CAPACITY_TYPE]))
    sold = Offering(place, 0.0, reservation_capacity=count, stock=name)
    # A stock is found by the name of its type, which is what the label says.
    type_name = stated[labels.INSTANCE_TYPE]
    instance_type = InstanceType(type_name, complete_requirements(own), node.allocatable, offerings=(sold,))
    return UnmanagedKind(_pool(name, node), instance_type)


def _pool(name: str, node: UnmanagedNode) -> NodePool:
    spec = NodeClaimTemplateSpec(requirements=(), node_class_ref=_CLASS, taints=tuple(_taints(node)))
    stated = {key: value for key, value in _labels(node).items() if key not in labels.WELL_KNOWN}
    template = NodeClaimTemplate(spec=spec, metadata=NodeClaimTemplateMeta(labels=stated))
    return NodePool(metadata=ObjectMeta(name=name), spec=NodePoolSpec(template=template))


def _taints(node: UnmanagedNode) -> Iterator[NodePoolTaint]:
    """Those that keep pods away. A cordoned node counts as open: the pods that it has stay."""
    for taint in node.node.spec.taints:
        match taint.effect:
            case "NoSchedule" | "NoExecute" as effect if taint.key != labels.UNSCHEDULABLE_TAINT:
                yield NodePoolTaint(key=taint.key, value=taint.value or None, effect=effect)
