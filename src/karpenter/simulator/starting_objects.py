"""Nodes, NodeClaims and instances of a starting cluster: each as it is in the study, from what was read of it.

Times are moved so that everything is as old as it was. What another cloud says of an object (node class, provider ID, taints of a
node that starts or leaves) is replaced by what the simulated cloud says.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from karpenter.api.core import Node, NodeSpec, NodeStatus
from karpenter.api.karpenter import NodeClaim, NodeClaimStatus, NodePool
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.api.scheduling_constraints import Taint
from karpenter.model import conditions, labels, taints
from karpenter.model.nodepool_hash import NODE_POOL_HASH_VERSION, hash_annotations, node_pool_hash
from karpenter.nodeclaim.node_ownership import node_class_label, owner_references_with
from karpenter.providers.simulated.simulated_instances import INSTANCE_LABEL, PROVIDER_ID_SCHEME, SimulatedInstance
from karpenter.providers.simulated.simulated_kubelet import FAKE_NODE

_UID_NAMESPACE = uuid.UUID("7c0b9f0a-8f0e-4f0b-9d53-5e0b8f1f6a11")
#: Labels and annotations of tools that play nodes.
_KWOK_PREFIXES = ("kwok.x-k8s.io/", f"{labels.KWOK_GROUP}/")
#: Taints that say what happens to a node at the moment; in the study nothing does.
_PASSING_TAINTS = (labels.DISRUPTED_TAINT.key, labels.UNREACHABLE_TAINT, labels.NOT_READY_TAINT)
#: What every node of a NodePool has, beside its host name.
LABELS_OF_LAUNCHED_NODES = frozenset(
    {labels.NODE_POOL, labels.INSTANCE_TYPE, labels.ZONE, labels.CAPACITY_TYPE, labels.ARCH, labels.OS}
)
_LAUNCH_CONDITIONS = (conditions.LAUNCHED, conditions.REGISTERED, conditions.INITIALIZED)


@dataclass(frozen=True, slots=True)
class NodeParts:
    """A node as it was read, with its NodeClaim, and what the study makes of them.

    ``labels``: of both, and those that they lack and a launch gives; ``settled``: the names of labels that a launch gives.
    ``status``: capacity and allocatable; ``shift`` is added to all times; ``begins``: when the study does.
    """

    node: Node
    claim: NodeClaim
    labels: Mapping[str, str]
    settled: frozenset[str]
    status: NodeStatus
    shift: timedelta
    begins: datetime

    @property
    def name(self) -> str:
        """Of the node."""
        return self.node.metadata.name

    @property
    def created(self) -> datetime:
        """When the instance was launched, in the time of the study."""
        stated = self.claim.metadata.creation_timestamp or self.node.metadata.creation_timestamp
        return self.begins if stated is None else min(self.begins, _whole_seconds(stated + self.shift))

    def moved(self, moment: datetime | None) -> datetime:
        """A time of an object in the time of the study; the launch for one that is not known."""
        return self.created if moment is None else min(self.begins, _whole_seconds(moment + self.shift))


def starting_uid(kind: str, name: str) -> str:
    """The uid of an object that a study begins with."""
    return str(uuid.uuid5(_UID_NAMESPACE, f"{kind}/{name}"))


def simulated_claim(parts: NodeParts, read: NodePool, simulated: NodePool) -> NodeClaim:
    """The NodeClaim as initialized. It has drifted from its NodePool in the study (``simulated``) if it has from the one read."""
    claim = parts.claim
    reference = simulated.spec.template.spec.node_class_ref
    spec = msgspec.structs.replace(claim.spec, node_class_ref=reference, startup_taints=())
    event = claim.status.last_pod_event_time
    status = NodeClaimStatus(
        node_name=parts.name,
        provider_id=PROVIDER_ID_SCHEME + parts.name,
        capacity=parts.status.capacity,
        allocatable=parts.status.allocatable,
        last_pod_event_time=None if event is None else parts.moved(event),
        conditions=tuple(_launch_condition(parts, kind) for kind in _LAUNCH_CONDITIONS),
    )
    made = NodeClaim(spec=spec, status=status)
    stated = labels_without_kwok({**_settled_labels(parts), **claim.metadata.labels})
    annotations = {**labels_without_kwok(claim.metadata.annotations), **_hash_annotations(claim, read, simulated)}
    metadata = ObjectMeta(
        name=claim.metadata.name,
        uid=starting_uid("NodeClaim", claim.metadata.name),
        generation=1,
        labels={**stated, **node_class_label(made)},
        annotations=annotations,
        creation_timestamp=parts.created,
        finalizers=(labels.TERMINATION_FINALIZER,),
    )
    return msgspec.structs.replace(made, metadata=metadata)


def _settled_labels(parts: NodeParts) -> Mapping[str, str]:
    """What a launch settles. NodeClaims that are written by hand may lack it, and would count as drifted."""
    keys = sorted(LABELS_OF_LAUNCHED_NODES | parts.settled)
    return {key: parts.labels[key] for key in keys if key in parts.labels}


def _launch_condition(parts: NodeParts, kind: str) -> Condition:
    """That the NodeClaim is launched, registered or initialized: since when it is, or for one that is not, since the start."""
    found = conditions.find_condition(parts.claim.status.conditions, kind)
    is_done = found is not None and found.status == conditions.TRUE
    since = parts.moved(found.last_transition_time) if found is not None and is_done else parts.begins
    return Condition(type=kind, status=conditions.TRUE, reason=kind, last_transition_time=since, observed_generation=1)


def _hash_annotations(claim: NodeClaim, read: NodePool, simulated: NodePool) -> Mapping[str, str]:
    """The hash of the NodePool in the study, or for a NodeClaim that differs from its NodePool another one."""
    own = claim.metadata.annotations
    version = own.get(labels.NODE_POOL_HASH_VERSION)
    current = (
        node_pool_hash(read)
        if version == NODE_POOL_HASH_VERSION
        else read.metadata.annotations.get(labels.NODE_POOL_HASH)
        if version == read.metadata.annotations.get(labels.NODE_POOL_HASH_VERSION)
        else None
    )
    stated = own.get(labels.NODE_POOL_HASH)
    if current is None or stated is None or stated == current:
        return hash_annotations(simulated)
    return {labels.NODE_POOL_HASH: stated, labels.NODE_POOL_HASH_VERSION: NODE_POOL_HASH_VERSION}


def simulated_node(parts: NodeParts, claim: NodeClaim) -> Node:
    """The Node of a running simulated instance, as registration and initialization leave it."""
    found = parts.node.metadata
    flags = {labels.REGISTERED: "true", labels.INITIALIZED: "true"}
    metadata = ObjectMeta(
        name=parts.name,
        uid=starting_uid("Node", parts.name),
        labels={**labels_without_kwok(parts.labels), **node_class_label(claim), **flags, **dict((FAKE_NODE,))},
        annotations={
            **labels_without_kwok(found.annotations),
            **_pool_hash(claim),
            **dict((FAKE_NODE, (INSTANCE_LABEL, "true"))),
        },
        creation_timestamp=parts.moved(found.creation_timestamp),
        finalizers=(labels.TERMINATION_FINALIZER,),
    )
    node = Node(
        metadata=metadata,
        spec=NodeSpec(
            provider_id=PROVIDER_ID_SCHEME + parts.name,
            # In a study nothing is there that takes startup taints off.
            taints=taints.without_taints(
                _without_passing_taints(parts.node.spec.taints),
                (taint.as_taint() for taint in parts.claim.spec.startup_taints),
            ),
            unschedulable=parts.node.spec.unschedulable,
        ),
        status=_ready_status(parts.status, parts.moved(found.creation_timestamp)),
    )
    references = owner_references_with(claim, node)
    return msgspec.structs.replace(node, metadata=msgspec.structs.replace(metadata, owner_references=references))


def _pool_hash(claim: NodeClaim) -> Mapping[str, str]:
    keys = (labels.NODE_POOL_HASH, labels.NODE_POOL_HASH_VERSION)
    return {key: claim.metadata.annotations[key] for key in keys}


def simulated_instance(parts: NodeParts, claim: NodeClaim, price_per_hour: float) -> SimulatedInstance:
    """The instance in the books of the simulated cloud."""
    stated = claim.metadata.labels
    return SimulatedInstance(
        node_name=parts.name,
        claim_name=claim.metadata.name,
        claim_uid=claim.metadata.uid,
        instance_type=parts.labels[labels.INSTANCE_TYPE],
        zone=parts.labels[labels.ZONE],
        capacity_type=parts.labels[labels.CAPACITY_TYPE],
        price_per_hour=price_per_hour,
        created_at=parts.created,
        labels=stated,
        node_labels=stated,
        taints=(),
        capacity={name: str(amount) for name, amount in parts.status.capacity.items()},
        allocatable={name: str(amount) for name, amount in parts.status.allocatable.items()},
    )


def unmanaged_node(node: Node, status: NodeStatus, shift: timedelta) -> Node:
    """A Node that belongs to nobody in the study."""
    found = node.metadata
    created = found.creation_timestamp
    moved = None if created is None else _whole_seconds(created + shift)
    metadata = ObjectMeta(
        name=found.name,
        uid=starting_uid("Node", found.name),
        labels=labels_without_kwok({key: value for key, value in found.labels.items() if key != labels.NODE_POOL}),
        annotations=labels_without_kwok(found.annotations),
        creation_timestamp=moved,
    )
    spec = NodeSpec(taints=tuple(_without_passing_taints(node.spec.taints)), unschedulable=node.spec.unschedulable)
    return Node(metadata=metadata, spec=spec, status=_ready_status(status, moved))


def _ready_status(status: NodeStatus, since: datetime | None) -> NodeStatus:
    ready = Condition(type=conditions.READY, status=conditions.TRUE, reason="KubeletReady", last_transition_time=since)
    return msgspec.structs.replace(status, conditions=(ready,))


def _without_passing_taints(stated: Iterable[Taint]) -> Iterable[Taint]:
    return (taint for taint in stated if taint.key not in _PASSING_TAINTS and not taints.is_ephemeral(taint))


def labels_without_kwok(pairs: Mapping[str, str]) -> Mapping[str, str]:
    """Labels or annotations without those of tools that play nodes, and without what ``kubectl apply`` keeps.

    They are told by their prefix. Labels of instance types stay, though they have such a prefix.
    """
    return {key: value for key, value in pairs.items() if not _is_of_kwok(key) and key != labels.LAST_APPLIED}


def _is_of_kwok(key: str) -> bool:
    return key.startswith(_KWOK_PREFIXES) and key not in labels.KWOK_WELL_KNOWN


def _whole_seconds(moment: datetime) -> datetime:
    return moment.replace(microsecond=0)
