"""TODO: say what belongs here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels
from karpenter.model.conditions import FALSE, find_condition, is_true
from karpenter.model.requirements import requirements_from_wire

NODE_POOL_DRIFTED = "NodePoolDrifted"
REQUIREMENTS_DRIFTED = "RequirementsDrifted"
INSTANCE_TYPE_NOT_FOUND = "InstanceTypeNotFound"
DAEMON_SETS_LACK_ROOM = "DaemonSetsLackRoom"

#: On a claim: False while a DaemonSet that belongs on the machine has no room there.
DAEMON_SETS_FIT = "DaemonSetsFit"
#: So long that has to last before the machine is replaced: pods of a rolling update come and go.
DAEMON_SET_ROOM_GRACE_PERIOD = timedelta(minutes=5)

#: Claims younger than that are not asked whether their type is still sold (DIS-345): lists may lag behind launches.
OFFERING_CHECK_MIN_AGE = timedelta(hours=1)


def drift_reason(
    claim: NodeClaim, pool: NodePool, index: TypeIndex | None, now: datetime, provider_reason: str = ""
) -> str:
    """Why a claim is not what its pool asks for, empty where it is (DIS-341 to DIS-345).

    ``index``: the prepared types of the pool, None where they are not known now. ``of_provider``: what the cloud itself says,
    which counts last.
    """
    if not is_true(claim.status.conditions, "Launched"):
        return ""
    if _differs_from_template(claim, pool):
        return NODE_POOL_DRIFTED
    if not meets_requirements(claim, pool):
        return REQUIREMENTS_DRIFTED
    created = claim.metadata.creation_timestamp
    if (
        index is not None
        and created is not None
        and now - created > OFFERING_CHECK_MIN_AGE
        and not is_offered(claim, index.types)
    ):
        return INSTANCE_TYPE_NOT_FOUND
    return provider_reason


def daemon_set_replacement_due(claim: NodeClaim, pool: NodePool) -> datetime | None:
    """From when on the machine is to be replaced by one with room for all DaemonSets (DIS-482); None where it stays.

    Only the pool's owner can ask for that.
    """
    found = find_condition(claim.status.conditions, DAEMON_SETS_FIT)
    is_asked = pool.metadata.annotations.get(labels.REPLACE_FOR_DAEMON_SETS) == "true"
    if not is_asked or found is None or found.status != FALSE or found.last_transition_time is None:
        return None
    return found.last_transition_time + DAEMON_SET_ROOM_GRACE_PERIOD


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
    for key, asked in requirements_from_wire(pool.spec.template.spec.requirements).items():
        value = own.get(key)
        if not (asked.accepts_absent if value is None else asked.allows(value)):
            return False
    return True


def is_offered(claim: NodeClaim, types: Iterable[InstanceType]) -> bool:
    """Whether the claim's type is among those a pool lists, the way it was bought, available or not (DIS-345)."""
    own = claim.metadata.labels
    kind = own.get(labels.INSTANCE_TYPE, "")
    return any(_matches_offering(offering, own) for item in types if item.name == kind for offering in item.offerings)


def _matches_offering(offering: Offering, own: Mapping[str, str]) -> bool:
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
