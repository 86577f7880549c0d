"""Static NodePools: a fixed number of nodes, whatever pods wait (SCH §24, DIS §18).

Two decisions, each a function of the pool and its claims: how many more to create (``growth``), and which to give up
(``surplus``). Claims have numbered slots. The name of a slot is derived, and new claims take the lowest slots nobody has: so a
creation that is repeated after a crash or a lost answer finds its own claim, and never makes one too many.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
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
    """A claim of a static pool with the unfinished pods on its node. ``is_chosen``: a disruption of ours is removing it."""

    claim: NodeClaim
    pods: tuple[Pod, ...] = ()
    is_disrupting: bool = False

    @property
    def is_deleting(self) -> bool:
        """Whether it is on its way out for good."""
        claim = self.claim
        return claim.metadata.deletion_timestamp is not None or is_true(claim.status.conditions, "InstanceTerminating")

    @property
    def is_active(self) -> bool:
        """Whether it counts towards the replicas, launched or not (SCH-701)."""
        return not self.is_disrupting and not self.is_deleting


@dataclass(frozen=True)
class ReplicaCounts:
    """How many claims a pool has, by where they stand (SCH-701)."""

    active: int = 0
    pending_disruption: int = 0
    deleting: int = 0

    @property
    def total(self) -> int:
        """All of them: what the limit on nodes is held against."""
        return self.active + self.pending_disruption + self.deleting


@dataclass(frozen=True)
class ScaleUp:
    """How many claims a pool lacks, and how many of those its limit on nodes allows."""

    wanted: int = 0
    allowed: int = 0


def count_replicas(claims: Iterable[StaticClaim]) -> ReplicaCounts:
    """The members, counted."""
    found = tuple(claims)
    active = sum(member.is_active for member in found)
    deleting = sum(member.is_deleting for member in found)
    return ReplicaCounts(active, len(found) - active - deleting, deleting)


def scale_up(pool: NodePool, counts: ReplicaCounts, reserved: int = 0) -> ScaleUp:
    """What to create (SCH-702). ``reserved`` nodes are being created already (OPS-120). Raises ``quantity.QuantityError``."""
    replicas = pool.spec.replicas or 0
    if counts.active + counts.pending_disruption >= replicas:
        return ScaleUp()
    wanted = replicas - counts.active
    return ScaleUp(wanted, allowed_by_node_limit(pool, counts, wanted, reserved))


def allowed_by_node_limit(pool: NodePool, counts: ReplicaCounts, wanted: int, reserved: int = 0) -> int:
    """How many of the wanted claims the pool's limit on nodes allows (DIS-226). Raises ``quantity.QuantityError``."""
    limit = res.parse_resources(pool.spec.limits).get(res.NODES)
    left = wanted if limit is None else limit // res.ONE_UNIT - counts.total - reserved
    return max(0, min(wanted, left))


def exceeded_limits(pool: NodePool, nodes: Iterable[StateNode]) -> tuple[str, ...]:
    """The limits of a pool that its machines are beyond; having just reached one is none (SCH-631)."""
    limits = res.parse_resources(pool.spec.limits)
    if not limits:
        return ()
    used = res.add(
        *(_node_capacity(view) for view in nodes if view.pool == pool.metadata.name and not view.marked_for_deletion)
    )
    return tuple(sorted(name for name, limit in limits.items() if used.get(name, 0) > limit))


def _node_capacity(state_node: StateNode) -> Resources:
    return {**state_node.capacity, res.NODES: res.ONE_UNIT}


@dataclass(frozen=True)
class ReplicaSlot:
    """A place for a claim. ``zone`` is where its node has to be, empty for anywhere."""

    name: str
    zone: str = ""


def free_slots(
    pool: NodePool, taken_names: Collection[str], how_many: int, zones: Sequence[str] = ()
) -> tuple[ReplicaSlot, ...]:
    """The lowest free slots; ``taken`` are the names of all claims there are. Neighbouring slots are in different ``zones``."""
    slots = (_slot(pool, number, zones) for number in count())
    return tuple(islice((slot for slot in slots if slot.name not in taken_names), how_many))


def _slot(pool: NodePool, number: int, zones: Sequence[str]) -> ReplicaSlot:
    name = derived_claim_name(pool.metadata.name, pool.metadata.uid, f"static {number}")
    return ReplicaSlot(name, zones[number % len(zones)] if zones else "")


def spread_zones(pool: NodePool, types: Iterable[InstanceType]) -> tuple[str, ...]:
    """The zones the pool can buy in now, where it asks for its replicas to be spread over them; else none (SCH §24 Beyond)."""
    if pool.metadata.annotations.get(labels.SPREAD_REPLICAS) != labels.ZONE:
        return ()
    wished = nodepool_requirements(pool)
    found = {
        offering.zone
        for item in types
        if intersects(item.requirements, wished)
        for offering in item.offerings
        if offering.available and intersects(offering.requirements, wished)
    }
    return tuple(sorted(found - {""}))


def scale_down_claims(pool: NodePool, claims: Sequence[StaticClaim], now: datetime) -> tuple[NodeClaim, ...]:
    """The claims to give up, in the order of SCH-703: not launched, empty, then those cheapest to move."""
    active = [member for member in claims if member.is_active]
    excess = len(active) - (pool.spec.replicas or 0)
    ranked = sorted(active, key=lambda member: _scale_down_order(member, now))
    return tuple(member.claim for member in ranked[: max(0, excess)])


def _scale_down_order(member: StaticClaim, now: datetime) -> tuple[int, bool, float, bool, str]:
    """Sort key: what hurts least first. Of empty ones those go first that have no Node yet; the name ends every tie."""
    claim = member.claim
    has_node = bool(claim.status.node_name)
    if not claim.status.provider_id:
        return (0, False, 0.0, has_node, claim.metadata.name)
    is_protected = any(pods.is_active(pod) and pod_disruption.is_protected(pod, now) for pod in member.pods)
    if not is_protected and all(pods.is_daemonset_pod(pod) for pod in member.pods):
        return (1, False, 0.0, has_node, claim.metadata.name)
    return (2, is_protected, _eviction_cost(member, now), has_node, claim.metadata.name)


def _eviction_cost(member: StaticClaim, now: datetime) -> float:
    """What evicting all its pods costs, less as the end of its life comes near (DIS-113)."""
    return sum(pod_disruption.eviction_cost(pod) for pod in member.pods) * _lifetime_remaining(member.claim, now)


def _lifetime_remaining(claim: NodeClaim, now: datetime) -> float:
    """The part of its life a claim has left, from 1 to 0; 1 where it has no end (DIS-112)."""
    text, created = claim.spec.expire_after, claim.metadata.creation_timestamp
    life = durations.parse_duration_or_never(text) if durations.is_valid_duration(text) else None
    if life is None or created is None:
        return 1.0
    if life <= timedelta(0):
        return 0.0
    return min(max((life - (now - created)) / life, 0.0), 1.0)
