"""Pure drift rules: compare a NodeClaim with its NodePool's template hash, requirements and offerings (DIS-341 to DIS-345)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.instancetypes.instance_type import InstanceType, Offering
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import labels
from karpenter.model.conditions import DAEMON_SETS_FIT, FALSE, LAUNCHED, find_condition, is_true
from karpenter.model.requirements import requirements_from_wire

NODE_POOL_DRIFTED = "NodePoolDrifted"
REQUIREMENTS_DRIFTED = "RequirementsDrifted"
INSTANCE_TYPE_NOT_FOUND = "InstanceTypeNotFound"
DAEMON_SETS_LACK_ROOM = "DaemonSetsLackRoom"
EXPIRES_SOON = "ExpiresSoon"

#: How long the condition must last before the node is replaced: pods of a rolling update come and go.
DAEMON_SET_ROOM_GRACE_PERIOD = timedelta(minutes=5)

#: The offering check skips younger claims (DIS-345): instance type lists may lag behind launches.
OFFERING_CHECK_MIN_AGE = timedelta(hours=1)


def drift_reason(
    claim: NodeClaim, pool: NodePool, index: TypeIndex | None, now: datetime, provider_reason: str = ""
) -> str:
    """Why a claim has drifted from its pool, empty if it has not (DIS-341 to DIS-345).

    ``index`` holds the pool's instance types, None if they are unknown now. ``provider_reason`` is the provider's own drift
    reason, used when no other applies.
    """
    if not is_true(claim.status.conditions, LAUNCHED):
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
    """From when on a node without room for all DaemonSets is to be replaced (DIS-482); None if it is to stay.

    Pools opt in by an annotation.
    """
    fit_condition = find_condition(claim.status.conditions, DAEMON_SETS_FIT)
    is_enabled = pool.metadata.annotations.get(labels.REPLACE_FOR_DAEMON_SETS) == "true"
    if not is_enabled or fit_condition is None or fit_condition.status != FALSE:
        return None
    since = fit_condition.last_transition_time
    return since + DAEMON_SET_ROOM_GRACE_PERIOD if since is not None else None


def _differs_from_template(claim: NodeClaim, pool: NodePool) -> bool:
    """Whether claim and pool carry different template hashes of the same version (DIS-343)."""
    claim_annotations, pool_annotations = claim.metadata.annotations, pool.metadata.annotations
    if claim_annotations.get(labels.NODE_POOL_HASH_VERSION) != pool_annotations.get(labels.NODE_POOL_HASH_VERSION):
        return False
    if labels.NODE_POOL_HASH_VERSION not in claim_annotations:
        return False
    claim_hash, pool_hash = claim_annotations.get(labels.NODE_POOL_HASH), pool_annotations.get(labels.NODE_POOL_HASH)
    return claim_hash is not None and pool_hash is not None and claim_hash != pool_hash


def meets_requirements(claim: NodeClaim, pool: NodePool) -> bool:
    """Whether the claim's labels satisfy every requirement of the pool (DIS-344)."""
    claim_labels = {labels.normalise(key): value for key, value in claim.metadata.labels.items()}
    for key, requirement in requirements_from_wire(pool.spec.template.spec.requirements).items():
        value = claim_labels.get(key)
        if not (requirement.accepts_absent if value is None else requirement.allows(value)):
            return False
    return True


def is_offered(claim: NodeClaim, types: Iterable[InstanceType]) -> bool:
    """Whether the pool's instance types include an offering like the claim's, available or not (DIS-345)."""
    claim_labels = claim.metadata.labels
    type_name = claim_labels.get(labels.INSTANCE_TYPE, "")
    return any(
        _matches_offering(offering, claim_labels)
        for instance_type in types
        if instance_type.name == type_name
        for offering in instance_type.offerings
    )


def _matches_offering(offering: Offering, claim_labels: Mapping[str, str]) -> bool:
    """Whether an offering satisfies the claim's labels. A reserved instance also matches on-demand: reservations end."""
    is_reserved = claim_labels.get(labels.CAPACITY_TYPE) == labels.RESERVED
    for key, requirement in offering.requirements.items():
        if key == labels.RESERVATION_ID or key not in claim_labels:
            continue
        if key == labels.CAPACITY_TYPE and is_reserved:
            if not (requirement.allows(labels.RESERVED) or requirement.allows(labels.ON_DEMAND)):
                return False
        elif not requirement.allows(claim_labels[key]):
            return False
    return True
