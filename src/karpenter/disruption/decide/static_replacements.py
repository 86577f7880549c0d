"""Replacements of nodes of static NodePools in one pass: each needs a slot of ``limits.nodes`` (DIS-225 to DIS-227, K15-233)."""

from __future__ import annotations

from collections.abc import Mapping

from karpenter.api.karpenter import NodePool
from karpenter.disruption.decide.command import Command
from karpenter.disruption.decide.move_blockers import StaticPoolAtNodeLimit, StaticReservationsFull
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels
from karpenter.model.conditions import READY, is_true
from karpenter.model.quantity_checks import check_quantities
from karpenter.model.requirements import requirements_from_labels
from karpenter.scheduling.offerings.nodepool_templates import nodepool_requirements
from karpenter.scheduling.planned_nodeclaims import MAX_INSTANCE_TYPES, static_claim
from karpenter.scheduling.solution import NewNodeClaim
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.static import replicas

#: Why a static NodePool can launch nothing for a node that is to go.
StaticBlocker = StaticPoolAtNodeLimit | StaticReservationsFull


class StaticReplacements:
    """What static NodePools may still launch in this pass, beside what they have."""

    def __init__(self, snapshot: ClusterSnapshot, indexes: Mapping[str, TypeIndex]) -> None:
        self._snapshot = snapshot
        self._indexes = indexes
        self._pools = {pool.metadata.name: pool for pool in snapshot.pools}
        self._taken_names = {view.key for view in snapshot.nodes}
        self._counts: dict[str, replicas.ReplicaCounts] = {}
        self._staged: dict[str, int] = {}

    def pool(self, name: str) -> NodePool:
        """The NodePool of this name, which exists."""
        return self._pools[name]

    def index(self, name: str) -> TypeIndex:
        """The instance types of a NodePool."""
        return self._indexes[name]

    def may_replace(self, name: str) -> bool:
        """Whether nodes of the pool may be replaced now: not while it has more than it wants (DIS-225, K15-233)."""
        pool, held = self._pools[name], self._held(name)
        return held.active + held.pending_disruption <= (pool.spec.replicas or 0) and not check_quantities(pool)

    def refills(self, name: str) -> bool:
        """Whether the pool would launch a node for one that is gone (K15-326)."""
        pool = self._pools[name]
        return pool.metadata.deletion_timestamp is None and is_true(pool.status.conditions, READY)

    def stage(self, name: str) -> NewNodeClaim | StaticPoolAtNodeLimit | None:
        """A NodeClaim by the pool's template, which takes a slot; None while none of its instance types is available."""
        pool, index = self._pools[name], self._indexes[name]
        staged = self._staged.get(name, 0)
        if replicas.allowed_by_node_limit(pool, self._held(name), staged + 1) <= staged:
            return StaticPoolAtNodeLimit(name)
        (slot,) = replicas.free_slots(pool, self._taken_names, 1, replicas.spread_zones(pool, index.types))
        planned = _static_replacement(pool, index, slot)
        if planned is not None:
            self._staged[name] = staged + 1
            self._taken_names.add(slot.name)
        return planned

    def unstage(self, command: Command) -> None:
        """Give the slots of a command back that is not carried out (K15-212)."""
        for planned in command.replacements:
            self._staged[planned.node_pool] -= 1
            self._taken_names.discard(planned.name)

    def _held(self, name: str) -> replicas.ReplicaCounts:
        if name not in self._counts:
            members = [
                replicas.StaticClaim(
                    view.claim,
                    is_disrupting=view.marked_for_deletion and not replicas.StaticClaim(view.claim).is_deleting,
                )
                for view in self._snapshot.nodes
                if view.claim is not None and view.claim.metadata.labels.get(labels.NODE_POOL) == name
            ]
            self._counts[name] = replicas.count_replicas(members)
        return self._counts[name]


def _static_replacement(pool: NodePool, index: TypeIndex, slot: replicas.ReplicaSlot) -> NewNodeClaim | None:
    asked = nodepool_requirements(pool)
    if slot.zone:
        asked = asked.intersect(requirements_from_labels({labels.ZONE: slot.zone}))
    kept = index.cheapest(asked, index.matching(asked) & index.with_available_offering(asked), MAX_INSTANCE_TYPES)
    if not kept:
        return None
    return NewNodeClaim(
        claim=static_claim(pool, slot.name, labels.WELL_KNOWN | index.well_known, slot.zone),
        node_pool=pool.metadata.name,
        instance_types=tuple(dict.fromkeys(index.types[position].name for position in kept)),
        cheapest_offering=index.prices(asked).cheapest_offering[kept[0]],
        pods=(),
    )
