"""Replicas of static NodePools: pure decisions about a fixed number of nodes, independent of pending pods (SCH §24, DIS §18).

``scale_up`` says how many claims to create, ``scale_down_claims`` which to delete. Claims have numbered slots with derived names,
and new claims take the lowest free slots. So a creation repeated after a crash or a lost response finds its own claim instead of
creating another one. A slot has a few names, used in turn: the claim that follows one that has just gone has another name, so
that ``kubectl wait --for=delete`` ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count, islice

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import durations, labels, pod_disruption, pods
from karpenter.model import resources as res
from karpenter.model.conditions import is_true
from karpenter.model.requirements import intersects
from karpenter.model.resources import Resources
from karpenter.scheduling.offerings.nodepool_templates import nodepool_requirements
from karpenter.scheduling.planned_nodeclaims import derived_claim_name
from karpenter.state.state_node import StateNode


@dataclass(frozen=True)
class StaticClaim:
    """A claim of a static pool with the unfinished pods on its node. ``is_disrupting``: a disruption command removes it."""

    claim: NodeClaim
    pods: tuple[Pod, ...] = ()
    is_disrupting: bool = False

    @property
    def is_deleting(self) -> bool:
        """Whether it is being deleted or its instance is terminating."""
        claim = self.claim
        return claim.metadata.deletion_timestamp is not None or is_true(claim.status.conditions, "InstanceTerminating")

    @property
    def is_active(self) -> bool:
        """Whether it counts towards the replicas, launched or not (SCH-701)."""
        return not self.is_disrupting and not self.is_deleting


@dataclass(frozen=True)
class ReplicaCounts:
    """Number of claims of a pool by state (SCH-701)."""

    active: int = 0
    pending_disruption: int = 0
    deleting: int = 0

    @property
    def total(self) -> int:
        """All claims, which the node limit applies to."""
        return self.active + self.pending_disruption + self.deleting


@dataclass(frozen=True)
class ScaleUp:
    """How many claims a pool lacks, and how many of those its node limit allows."""

    wanted: int = 0
    allowed: int = 0


def count_replicas(claims: Iterable[StaticClaim]) -> ReplicaCounts:
    """Count the claims of a pool by state."""
    members = tuple(claims)
    active = sum(member.is_active for member in members)
    deleting = sum(member.is_deleting for member in members)
    return ReplicaCounts(active, len(members) - active - deleting, deleting)


def scale_up(pool: NodePool, counts: ReplicaCounts, reserved: int = 0) -> ScaleUp:
    """How many claims to create (SCH-702). ``reserved`` nodes are being created (OPS-120). Raises ``quantity.QuantityError``."""
    replicas = pool.spec.replicas or 0
    if counts.active + counts.pending_disruption >= replicas:
        return ScaleUp()
    wanted = replicas - counts.active
    return ScaleUp(wanted, allowed_by_node_limit(pool, counts, wanted, reserved))


def allowed_by_node_limit(pool: NodePool, counts: ReplicaCounts, wanted: int, reserved: int = 0) -> int:
    """How many of the wanted claims the pool's node limit allows (DIS-226). Raises ``quantity.QuantityError``."""
    limit = res.parse_resources(pool.spec.limits).get(res.NODES)
    remaining = wanted if limit is None else limit // res.ONE_UNIT - counts.total - reserved
    return max(0, min(wanted, remaining))


def exceeded_limits(pool: NodePool, nodes: Iterable[StateNode]) -> tuple[str, ...]:
    """The limits of a pool that its nodes exceed; a limit that is just reached is not exceeded (SCH-631)."""
    limits = res.parse_resources(pool.spec.limits)
    if not limits:
        return ()
    used = res.add(
        *(
            _node_capacity(state_node)
            for state_node in nodes
            if state_node.pool == pool.metadata.name and not state_node.marked_for_deletion
        )
    )
    return tuple(sorted(name for name, limit in limits.items() if used.get(name, 0) > limit))


def _node_capacity(state_node: StateNode) -> Resources:
    return {**state_node.capacity, res.NODES: res.ONE_UNIT}


#: How many names a slot has before the first one comes again.
_NAMES_OF_SLOT = 8


@dataclass(frozen=True)
class ReplicaSlot:
    """A slot for a claim. ``zone`` is the required zone of its node, empty for any."""

    name: str
    zone: str = ""


def free_slots(
    pool: NodePool,
    taken_names: Collection[str],
    how_many: int,
    zones: Sequence[str] = (),
    former_names: Collection[str] = (),
) -> tuple[ReplicaSlot, ...]:
    """The lowest free slots. Consecutive slots rotate through ``zones``.

    ``taken_names`` are the names of all claims, ``former_names`` those of claims that have gone, the latest last.
    """
    free = (number for number in count() if not any(name in taken_names for name in _names(pool, number)))
    return tuple(_slot(pool, number, zones, former_names) for number in islice(free, how_many))


def _slot(pool: NodePool, number: int, zones: Sequence[str], former_names: Collection[str]) -> ReplicaSlot:
    names = tuple(_names(pool, number))
    unused = next((name for name in names if name not in former_names), None)
    name = unused or next(name for name in former_names if name in names)
    return ReplicaSlot(name, zones[number % len(zones)] if zones else "")


def _names(pool: NodePool, number: int) -> Iterator[str]:
    """The names of a slot, one after the other."""
    for use in range(_NAMES_OF_SLOT):
        identity = f"static {number}" if use == 0 else f"static {number} again {use}"
        yield derived_claim_name(pool.metadata.name, pool.metadata.uid, identity)


def spread_zones(pool: NodePool, types: Iterable[InstanceType]) -> tuple[str, ...]:
    """The zones with available offerings, if the pool asks to spread its replicas over zones; else none (SCH §24 Beyond)."""
    if pool.metadata.annotations.get(labels.SPREAD_REPLICAS) != labels.ZONE:
        return ()
    requirements = nodepool_requirements(pool)
    zones = {
        offering.zone
        for instance_type in types
        if intersects(instance_type.requirements, requirements)
        for offering in instance_type.offerings
        if offering.launchable and intersects(offering.requirements, requirements)
    }
    return tuple(sorted(zones - {""}))


def scale_down_claims(pool: NodePool, claims: Sequence[StaticClaim], now: datetime) -> tuple[NodeClaim, ...]:
    """The claims to delete, in the order of SCH-703: not launched, empty, then lowest eviction cost."""
    active = [member for member in claims if member.is_active]
    excess = len(active) - (pool.spec.replicas or 0)
    ranked = sorted(active, key=lambda member: _scale_down_order(member, now))
    return tuple(member.claim for member in ranked[: max(0, excess)])


def _scale_down_order(member: StaticClaim, now: datetime) -> tuple[int, bool, float, bool, str]:
    """Sort key: least disruptive first. Among empty nodes, claims without a Node come first; ties are broken by name."""
    claim = member.claim
    has_node = bool(claim.status.node_name)
    if not claim.status.provider_id:
        return (0, False, 0.0, has_node, claim.metadata.name)
    is_protected = any(pods.is_active(pod) and pod_disruption.is_protected(pod, now) for pod in member.pods)
    if not is_protected and all(pods.is_daemonset_pod(pod) for pod in member.pods):
        return (1, False, 0.0, has_node, claim.metadata.name)
    return (2, is_protected, _eviction_cost(member, now), has_node, claim.metadata.name)


def _eviction_cost(member: StaticClaim, now: datetime) -> float:
    """Cost of evicting all its pods, scaled by the remaining lifetime (DIS-113)."""
    return sum(pod_disruption.eviction_cost(pod) for pod in member.pods) * lifetime_remaining(member.claim, now)


def lifetime_remaining(claim: NodeClaim, now: datetime) -> float:
    """The share of its lifetime a claim has left, from 1 to 0; 1 without expiration (DIS-112)."""
    text, created = claim.spec.expire_after, claim.metadata.creation_timestamp
    lifetime = durations.parse_duration_or_never(text) if durations.is_valid_duration(text) else None
    if lifetime is None or created is None:
        return 1.0
    if lifetime <= timedelta(0):
        return 0.0
    return min(max((lifetime - (now - created)) / lifetime, 0.0), 1.0)
