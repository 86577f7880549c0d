"""The snapshot as it is once commands are done: machines gone, new ones running, pods where they were planned.

A new machine is taken to be its cheapest type in its cheapest offering, and its quiet time to be over. So a decision can look one
step ahead: what it would do next belongs into the same step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from msgspec.structs import replace as changed

from karpenter.api.core import Node, NodeSpec, NodeStatus, Pod
from karpenter.api.karpenter import NodeClaim
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.catalog.index import TypeIndex
from karpenter.catalog.types import InstanceType
from karpenter.cluster.classes import PodClasses
from karpenter.cluster.faces import Counts, Face, face_of, is_counted
from karpenter.cluster.nodes import NO_USAGE, NodeView, view
from karpenter.cluster.snapshot import Snapshot
from karpenter.cluster.terms import Term
from karpenter.decide.disrupt.command import Command
from karpenter.decide.plan import PlannedClaim
from karpenter.model import conditions, labels, pods
from karpenter.model import resources as res
from karpenter.model.buffers import is_virtual

_DONE = ("Launched", "Registered", "Initialized", "Ready", "Consolidatable")


def aftermath(snapshot: Snapshot, commands: Iterable[Command], indexes: Mapping[str, TypeIndex]) -> Snapshot:
    """The snapshot after these commands."""
    done = tuple(commands)
    gone = {candidate.key for command in done for candidate in command.candidates}
    staying = {item.key: item for item in snapshot.nodes if item.key not in gone}
    counting = _Counting(snapshot)
    for command in done:
        for planned in command.replacements:
            staying[planned.name] = _running(planned, indexes[planned.node_pool])
        arriving = [(planned.name, planned.pods) for planned in command.replacements]
        arriving += [(placed.key, placed.pods) for placed in command.placed]
        for key, found in arriving:
            moving = [pod for pod in found if not is_virtual(pod)]
            staying[key] = _with(staying[key], moving)
            counting.move(moving, staying[key].name)
    return replace(
        snapshot,
        nodes=tuple(sorted(staying.values(), key=lambda item: (item.name, item.provider_id))),
        census=counting.census,
        repelling=counting.repelling,
    )


def _with(host: NodeView, arriving: Iterable[Pod]) -> NodeView:
    """The machine with more pods."""
    bound = tuple(changed(pod, spec=changed(pod.spec, node_name=host.name)) for pod in arriving)
    requested = res.add(host.requested, *(pods.requests(pod) for pod in bound))
    return replace(host, pods=(*host.pods, *bound), requested=requested)


def _running(planned: PlannedClaim, index: TypeIndex) -> NodeView:
    """A bought machine once it runs."""
    kind = index.types[index.position[planned.instance_types[0]]]
    own = _labels(planned, kind)
    provider_id = f"planned:///{planned.name}"
    ready = tuple(Condition(type=name, status=conditions.TRUE) for name in _DONE)
    offered = res.to_wire(kind.allocatable)
    claim: NodeClaim = changed(
        planned.claim,
        metadata=changed(planned.claim.metadata, labels=own),
        status=changed(planned.claim.status, provider_id=provider_id, conditions=ready),
    )
    node = Node(
        metadata=ObjectMeta(
            name=planned.name,
            uid=planned.name,
            labels={
                **own,
                labels.HOSTNAME: planned.name,
                labels.REGISTERED: "true",
                labels.INITIALIZED: "true",
            },
        ),
        spec=NodeSpec(provider_id=provider_id, taints=tuple(taint.as_taint() for taint in claim.spec.taints)),
        status=NodeStatus(
            allocatable=offered,
            capacity=res.to_wire(kind.capacity),
            conditions=(Condition(type="Ready", status=conditions.TRUE),),
        ),
    )
    return view(node, claim, NO_USAGE, marked=False)


def _labels(planned: PlannedClaim, kind: InstanceType) -> dict[str, str]:
    """By its type, its offering, and what its claim leaves no choice about."""
    own = {key: min(form.values) for key, form in kind.requirements.items() if form.values and not form.complement}
    sold = {key: min(form.values) for key, form in planned.cheapest.requirements.items() if form.values}
    asked = {item.key: item.values[0] for item in planned.claim.spec.requirements if len(item.values) == 1}
    return {**own, **asked, **sold, **planned.claim.metadata.labels}


class _Counting:
    """Who is where, by look and by terms, while pods move. What the snapshot holds is copied before it is changed."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.census: dict[Face, Counts] = dict(snapshot.census)
        self.repelling: dict[tuple[Term, ...], Counts] = dict(snapshot.repelling)
        self._classes = PodClasses()

    def move(self, moving: Iterable[Pod], to: str) -> None:
        """These go to a node."""
        for pod in moving:
            terms = self._classes.of(pod).terms.repelling if pod.spec.affinity is not None else ()
            if is_counted(pod):
                face = face_of(pod)
                self.census[face] = _moved(self.census.get(face, {}), pod.spec.node_name, to)
            if terms:
                self.repelling[terms] = _moved(self.repelling.get(terms, {}), pod.spec.node_name, to)


def _moved(counts: Counts, here: str, there: str) -> Counts:
    found = {**counts, there: counts.get(there, 0) + 1}
    left = found.get(here, 0) - 1
    if left > 0:
        found[here] = left
    else:
        found.pop(here, None)
    return found
