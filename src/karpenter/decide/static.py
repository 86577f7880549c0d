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
from karpenter.catalog.types import InstanceType
from karpenter.cluster.nodes import NodeView
from karpenter.decide.provision.finalise import derived_name
from karpenter.decide.provision.templates import requirements_of
from karpenter.model import durations, labels, pods
from karpenter.model import resources as res
from karpenter.model.conditions import is_true
from karpenter.model.requirements import intersects
from karpenter.model.resources import Resources


@dataclass(frozen=True)
class Member:
    """A claim of a static pool with the unfinished pods on its node. ``is_chosen``: a disruption of ours is removing it."""

    claim: NodeClaim
    pods: tuple[Pod, ...] = ()
    is_chosen: bool = False

    @property
    def is_deleting(self) -> bool:
        """Whether it is on its way out for good."""
        claim = self.claim
        return claim.metadata.deletion_timestamp is not None or is_true(claim.status.conditions, "InstanceTerminating")

    @property
    def is_active(self) -> bool:
        """Whether it counts towards the replicas, launched or not (SCH-701)."""
        return not self.is_chosen and not self.is_deleting


@dataclass(frozen=True)
class Counts:
    """How many claims a pool has, by where they stand (SCH-701)."""

    active: int = 0
    pending_disruption: int = 0
    deleting: int = 0

    @property
    def total(self) -> int:
        """All of them: what the limit on nodes is held against."""
        return self.active + self.pending_disruption + self.deleting


@dataclass(frozen=True)
class Growth:
    """How many claims a pool lacks, and how many of those its limit on nodes allows."""

    wanted: int = 0
    granted: int = 0


def counts(members: Iterable[Member]) -> Counts:
    """The members, counted."""
    found = tuple(members)
    active = sum(member.is_active for member in found)
    deleting = sum(member.is_deleting for member in found)
    return Counts(active, len(found) - active - deleting, deleting)


def growth(pool: NodePool, held: Counts, reserved: int = 0) -> Growth:
    """What to create (SCH-702). ``reserved`` nodes are being created already (OPS-120). Raises ``quantity.QuantityError``."""
    replicas = pool.spec.replicas or 0
    if held.active + held.pending_disruption >= replicas:
        return Growth()
    wanted = replicas - held.active
    return Growth(wanted, room(pool, held, wanted, reserved))


def room(pool: NodePool, held: Counts, wanted: int, reserved: int = 0) -> int:
    """How many of the wanted claims the pool's limit on nodes allows (DIS-226). Raises ``quantity.QuantityError``."""
    limit = res.parse(pool.spec.limits).get(res.NODES)
    left = wanted if limit is None else limit // res.ONE - held.total - reserved
    return max(0, min(wanted, left))


def exceeded(pool: NodePool, views: Iterable[NodeView]) -> tuple[str, ...]:
    """The limits of a pool that its machines are beyond; having just reached one is none (SCH-631)."""
    limits = res.parse(pool.spec.limits)
    if not limits:
        return ()
    used = res.add(*(_held(view) for view in views if view.pool == pool.metadata.name and not view.leaving))
    return tuple(sorted(name for name, limit in limits.items() if used.get(name, 0) > limit))


def _held(view: NodeView) -> Resources:
    return {**view.capacity, res.NODES: res.ONE}


@dataclass(frozen=True)
class Slot:
    """A place for a claim. ``zone`` is where its node has to be, empty for anywhere."""

    name: str
    zone: str = ""


def free_slots(pool: NodePool, taken: Collection[str], how_many: int, zones: Sequence[str] = ()) -> tuple[Slot, ...]:
    """The lowest free slots; ``taken`` are the names of all claims there are. Neighbouring slots are in different ``zones``."""
    slots = (_slot(pool, number, zones) for number in count())
    return tuple(islice((slot for slot in slots if slot.name not in taken), how_many))


def _slot(pool: NodePool, number: int, zones: Sequence[str]) -> Slot:
    name = derived_name(pool.metadata.name, pool.metadata.uid, f"static {number}")
    return Slot(name, zones[number % len(zones)] if zones else "")


def zones_to_spread_over(pool: NodePool, types: Iterable[InstanceType]) -> tuple[str, ...]:
    """The zones the pool can buy in now, where it asks for its replicas to be spread over them; else none (SCH §24 Beyond)."""
    if pool.metadata.annotations.get(labels.SPREAD_REPLICAS) != labels.ZONE:
        return ()
    wished = requirements_of(pool)
    found = {
        offering.zone
        for item in types
        if intersects(item.requirements, wished)
        for offering in item.offerings
        if offering.available and intersects(offering.requirements, wished)
    }
    return tuple(sorted(found - {""}))


def surplus(pool: NodePool, members: Sequence[Member], now: datetime) -> tuple[NodeClaim, ...]:
    """The claims to give up, in the order of SCH-703: not launched, empty, then those cheapest to move."""
    active = [member for member in members if member.is_active]
    excess = len(active) - (pool.spec.replicas or 0)
    ranked = sorted(active, key=lambda member: _rank(member, now))
    return tuple(member.claim for member in ranked[: max(0, excess)])


def _rank(member: Member, now: datetime) -> tuple[int, bool, float, bool, str]:
    """Sort key: what hurts least first. Of empty ones those go first that have no Node yet; the name ends every tie."""
    claim = member.claim
    has_node = bool(claim.status.node_name)
    if not claim.status.provider_id:
        return (0, False, 0.0, has_node, claim.metadata.name)
    is_protected = any(pods.is_active(pod) and pods.is_protected(pod, now) for pod in member.pods)
    if not is_protected and all(pods.is_daemon(pod) for pod in member.pods):
        return (1, False, 0.0, has_node, claim.metadata.name)
    return (2, is_protected, _moving_cost(member, now), has_node, claim.metadata.name)


def _moving_cost(member: Member, now: datetime) -> float:
    """What evicting all its pods costs, less as the end of its life comes near (DIS-113)."""
    return sum(pods.eviction_cost(pod) for pod in member.pods) * _life_left(member.claim, now)


def _life_left(claim: NodeClaim, now: datetime) -> float:
    """The part of its life a claim has left, from 1 to 0; 1 where it has no end (DIS-112)."""
    text, created = claim.spec.expire_after, claim.metadata.creation_timestamp
    life = durations.parse_or_never(text) if durations.is_readable(text) else None
    if life is None or created is None:
        return 1.0
    if life <= timedelta(0):
        return 0.0
    return min(max((life - (now - created)) / life, 0.0), 1.0)
