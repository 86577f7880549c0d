"""Drift: machines that are not what their NodePool asks for any more (DIS §14), and how they are replaced (DIS §9.2, §9.3).

`drift_reason` says why a claim has drifted; a controller writes it down as a condition, and the methods here go by that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.catalog.index import TypeIndex
from karpenter.catalog.types import InstanceType, Offering
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import Snapshot
from karpenter.decide import static
from karpenter.decide.disrupt.allowances import Allowances
from karpenter.decide.disrupt.candidates import Blocked, Circumstances, Judge, is_drifted
from karpenter.decide.disrupt.command import Candidate, Command, DisruptionReason
from karpenter.decide.disrupt.simulation import Impossible, World
from karpenter.decide.plan import PlannedClaim
from karpenter.decide.provision.finalise import KEPT_TYPES, static_claim
from karpenter.decide.provision.templates import requirements_of
from karpenter.model import labels
from karpenter.model.conditions import FALSE, find, is_true
from karpenter.model.quantities import check_quantities
from karpenter.model.requirements import from_labels, from_wire

NODE_POOL = "NodePoolDrifted"
REQUIREMENTS = "RequirementsDrifted"
INSTANCE_TYPE = "InstanceTypeNotFound"
DAEMON_SETS = "DaemonSetsLackRoom"

#: On a claim: False while a DaemonSet that belongs on the machine has no room there.
DAEMON_SETS_FIT = "DaemonSetsFit"
#: So long that has to last before the machine is replaced: pods of a rolling update come and go.
LASTING = timedelta(minutes=5)

#: Claims younger than that are not asked whether their type is still sold (DIS-345): lists may lag behind launches.
SETTLED_AGE = timedelta(hours=1)
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def drift_reason(
    claim: NodeClaim, pool: NodePool, index: TypeIndex | None, now: datetime, of_provider: str = ""
) -> str:
    """Why a claim is not what its pool asks for, empty where it is (DIS-341 to DIS-345).

    ``index``: the prepared types of the pool, None where they are not known now. ``of_provider``: what the cloud itself says,
    which counts last.
    """
    if not is_true(claim.status.conditions, "Launched"):
        return ""
    if _differs_from_template(claim, pool):
        return NODE_POOL
    if not meets_requirements(claim, pool):
        return REQUIREMENTS
    created = claim.metadata.creation_timestamp
    if index is not None and created is not None and now - created > SETTLED_AGE and not is_sold(claim, index.types):
        return INSTANCE_TYPE
    return of_provider


def room_is_due(claim: NodeClaim, pool: NodePool) -> datetime | None:
    """From when on the machine is to be replaced by one with room for all DaemonSets (DIS-482); None where it stays.

    Only the pool's owner can ask for that.
    """
    found = find(claim.status.conditions, DAEMON_SETS_FIT)
    is_asked = pool.metadata.annotations.get(labels.REPLACE_FOR_DAEMON_SETS) == "true"
    if not is_asked or found is None or found.status != FALSE or found.last_transition_time is None:
        return None
    return found.last_transition_time + LASTING


def _differs_from_template(claim: NodeClaim, pool: NodePool) -> bool:
    """DIS-343: both carry a hash of the same version, and they differ."""
    ours, theirs = claim.metadata.annotations, pool.metadata.annotations
    if ours.get(labels.NODE_POOL_HASH_VERSION) != theirs.get(labels.NODE_POOL_HASH_VERSION):
        return False
    if labels.NODE_POOL_HASH_VERSION not in ours:
        return False
    mine, wanted = ours.get(labels.NODE_POOL_HASH), theirs.get(labels.NODE_POOL_HASH)
    return mine is not None and wanted is not None and mine != wanted


def meets_requirements(claim: NodeClaim, pool: NodePool) -> bool:
    """Whether the claim's labels satisfy every requirement of the pool (DIS-344)."""
    own = {labels.normalise(key): value for key, value in claim.metadata.labels.items()}
    for key, asked in from_wire(pool.spec.template.spec.requirements).items():
        value = own.get(key)
        if not (asked.accepts_absent if value is None else asked.allows(value)):
            return False
    return True


def is_sold(claim: NodeClaim, types: Iterable[InstanceType]) -> bool:
    """Whether the claim's type is among those a pool lists, the way it was bought, available or not (DIS-345)."""
    own = claim.metadata.labels
    kind = own.get(labels.INSTANCE_TYPE, "")
    return any(_was_bought(offering, own) for item in types if item.name == kind for offering in item.offerings)


def _was_bought(offering: Offering, own: Mapping[str, str]) -> bool:
    """A reserved machine may have become an on-demand one, and its reservation may be gone."""
    is_reserved = own.get(labels.CAPACITY_TYPE) == labels.RESERVED
    for key, asked in offering.requirements.items():
        if key == labels.RESERVATION_ID or key not in own:
            continue
        if key == labels.CAPACITY_TYPE and is_reserved:
            if not (asked.allows(labels.RESERVED) or asked.allows(labels.ON_DEMAND)):
                return False
        elif not asked.allows(own[key]):
            return False
    return True


# -- replacing what has drifted ------------------------------------------------------------------------------------------


def drifted(
    views: Iterable[NodeView], judge: Judge, circumstances: Circumstances
) -> tuple[list[Candidate], list[Candidate], list[Blocked]]:
    """Drifted machines of dynamic and of static pools in the order of DIS-118, and those that are kept.

    The machine the controller runs on comes last (DIS-469).
    """
    dynamic: list[Candidate] = []
    fixed: list[Candidate] = []
    blocked: list[Blocked] = []
    for view in views:
        if not judge.is_ours(view) or not is_drifted(view):
            continue
        found = judge.candidate(view, DisruptionReason.DRIFTED)
        if isinstance(found, Blocked):
            blocked.append(found)
        elif not circumstances.is_barred(DisruptionReason.DRIFTED, view.key):
            (fixed if judge.is_static(found) else dynamic).append(found)
    for machines in (dynamic, fixed):
        machines.sort(key=lambda candidate: (judge.is_home(candidate), _by_age(candidate)))
    return dynamic, fixed, blocked


def _by_age(candidate: Candidate) -> tuple[bool, datetime, str]:
    """Machines without pods first, then those that drifted longest ago (DIS-118, DIS-122); the name ends ties."""
    claim = candidate.view.claim
    condition = find(claim.status.conditions, "Drifted") if claim is not None else None
    since = condition.last_transition_time if condition is not None else None
    return (bool(candidate.pods), since or _LONG_AGO, candidate.view.name)


def replaced(
    candidates: Iterable[Candidate], world: World, allowances: Allowances
) -> tuple[list[Command], list[Blocked]]:
    """One command for each machine that budgets allow and whose pods have a place to go, at any price (DIS-230).

    All that budgets allow at once, not one in a pass: one that cannot be carried out keeps nobody else waiting.
    """
    commands: list[Command] = []
    blocked: list[Blocked] = []
    reason = DisruptionReason.DRIFTED
    for candidate in candidates:
        if allowances.left(candidate.pool, reason) <= 0:
            continue
        found = world.moved((candidate,))
        if isinstance(found, Impossible):
            blocked.append(Blocked(candidate.view, f"Pods can't be rescheduled: {found.why}"))
        elif found is not None:
            price = candidate.price_per_hour
            saving = None if price is None else price - found.price_per_hour
            commands.append(Command(reason, (candidate,), found.claims(), found.placed, saving_per_hour=saving))
            world.settle(commands[-1])
            allowances.take(candidate.pool)
    return commands, blocked


def replaced_in_place(
    candidates: Iterable[Candidate], snapshot: Snapshot, indexes: Mapping[str, TypeIndex], allowances: Allowances
) -> list[Command]:
    """One command for each drifted machine of a static pool that budgets and the limit on nodes allow (DIS-225 to DIS-227).

    A pool that has more machines than it wants is left alone until they are gone.
    """
    by_pool: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_pool.setdefault(candidate.pool, []).append(candidate)
    commands: list[Command] = []
    for pool in snapshot.pools:
        own = by_pool.get(pool.metadata.name, [])
        wanted = min(len(own), allowances.left(pool.metadata.name, DisruptionReason.DRIFTED))
        granted = _granted(pool, snapshot, wanted) if wanted and not check_quantities(pool) else 0
        if not granted:
            continue
        index = indexes[pool.metadata.name]
        taken = {view.key for view in snapshot.nodes}
        slots = static.free_slots(pool, taken, granted, static.zones_to_spread_over(pool, index.types))
        for candidate, slot in zip(own, slots, strict=False):
            planned = _to_template(pool, index, slot)
            if planned is not None:
                commands.append(Command(DisruptionReason.DRIFTED, (candidate,), (planned,)))
                allowances.take(candidate.pool)
    return commands


def _to_template(pool: NodePool, index: TypeIndex, slot: static.Slot) -> PlannedClaim | None:
    """A machine as the pool's template wants it; None while nothing of it can be bought."""
    asked = requirements_of(pool)
    if slot.zone:
        asked = asked.intersect(from_labels({labels.ZONE: slot.zone}))
    kept = index.cheapest(asked, index.matching(asked) & index.buyable(asked), KEPT_TYPES)
    if not kept:
        return None
    return PlannedClaim(
        claim=static_claim(pool, slot.name, labels.WELL_KNOWN | index.well_known, slot.zone),
        node_pool=pool.metadata.name,
        instance_types=tuple(index.types[position].name for position in kept),
        cheapest=index.prices(asked).offering[kept[0]],
        pods=(),
    )


def _granted(pool: NodePool, snapshot: Snapshot, wanted: int) -> int:
    """How many more machines a static pool may have for a while (DIS-225, DIS-226)."""
    members = [
        static.Member(view.claim, is_chosen=view.leaving and not _is_deleting(view.claim))
        for view in snapshot.nodes
        if view.claim is not None and view.claim.metadata.labels.get(labels.NODE_POOL) == pool.metadata.name
    ]
    held = static.counts(members)
    if held.active + held.pending_disruption > (pool.spec.replicas or 0):
        return 0
    return static.room(pool, held, wanted)


def _is_deleting(claim: NodeClaim) -> bool:
    return static.Member(claim).is_deleting
