"""Status conditions: reading them, and setting one without disturbing the others (API-600 ff., OPS-100 ff.).

A kind has a root condition and the dependents it sums up; other conditions stand beside them. Every function takes the
conditions as they are and returns the conditions as they should be: equal input and output means there is nothing to write.
What a function needs to know about the object beside its conditions is a ``ConditionedObject``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from karpenter.api.meta import Condition, ObjectMeta
from karpenter.model.texts import shorten

TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"

#: Condition types of NodeClaims: life cycle,
LAUNCHED: Final = "Launched"
REGISTERED: Final = "Registered"
INITIALIZED: Final = "Initialized"
READY: Final = "Ready"
#: disruption,
DRIFTED: Final = "Drifted"
CONSOLIDATABLE: Final = "Consolidatable"
DISRUPTION_REASON: Final = "DisruptionReason"
#: repair by reboot, not part of Ready (K15-004),
REBOOTING: Final = "Rebooting"
#: termination,
DRAINED: Final = "Drained"
VOLUMES_DETACHED: Final = "VolumesDetached"
INSTANCE_TERMINATING: Final = "InstanceTerminating"
#: and checks; the last is False while a DaemonSet that belongs on the node has no room there.
CONSISTENT_STATE_FOUND: Final = "ConsistentStateFound"
DAEMON_SETS_FIT: Final = "DaemonSetsFit"
#: Condition types of NodePools, the first also of NodeOverlays.
VALIDATION_SUCCEEDED: Final = "ValidationSucceeded"
NODE_CLASS_READY: Final = "NodeClassReady"
NODE_REGISTRATION_HEALTHY: Final = "NodeRegistrationHealthy"

AWAITING_RECONCILIATION = "AwaitingReconciliation"
UNHEALTHY_DEPENDENTS = "UnhealthyDependents"
RECONCILING_DEPENDENTS = "ReconcilingDependents"

_AWAITING_MESSAGE = "object is awaiting reconciliation"
_MAX_MESSAGE_LENGTH = 32768
_MAX_REASON_LENGTH = 1024
_REASON = re.compile(r"[A-Za-z](?:[A-Za-z0-9_,:]*[A-Za-z0-9_])?", re.ASCII)
_EARLIEST = datetime.min.replace(tzinfo=UTC)

Conditions = tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class ConditionTypes:
    """The root condition of a kind and the dependents that make it True."""

    root: str
    dependents: tuple[str, ...] = ()

    @property
    def all_types(self) -> tuple[str, ...]:
        """Dependents, then the root."""
        return (*self.dependents, self.root)


NODE_CLAIM = ConditionTypes("Ready", ("Launched", "Registered", "Initialized"))
NODE_POOL = ConditionTypes("Ready", ("ValidationSucceeded", "NodeClassReady"))
NODE_OVERLAY = ConditionTypes("Ready", ("ValidationSucceeded",))
KWOK_NODE_CLASS = ConditionTypes("Ready")
_NO_ROOT = ConditionTypes("")


@dataclass(frozen=True, slots=True)
class ConditionedObject:
    """The object conditions belong to, at one moment: which types it has, its generation, creation time and now."""

    types: ConditionTypes
    generation: int
    created: datetime
    now: datetime
    deleting: bool = False


def conditioned_object(types: ConditionTypes, meta: ObjectMeta, now: datetime) -> ConditionedObject:
    """The owner an object's metadata describes; one that was never stored counts as created now."""
    return ConditionedObject(
        types, meta.generation, meta.creation_timestamp or now, now, meta.deletion_timestamp is not None
    )


def find_condition(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """The condition of a type, or None."""
    for condition in conditions:
        if condition.type == type_:
            return condition
    return None


def condition_status(conditions: Iterable[Condition], type_: str) -> str:
    """``True``, ``False`` or ``Unknown``; an absent condition is Unknown."""
    condition = find_condition(conditions, type_)
    return UNKNOWN if condition is None else condition.status


def is_true(conditions: Iterable[Condition], type_: str) -> bool:
    """Whether the condition is there and True."""
    return condition_status(conditions, type_) == TRUE


def is_false(conditions: Iterable[Condition], type_: str) -> bool:
    """Whether the condition is there and False."""
    return condition_status(conditions, type_) == FALSE


def is_reason(text: str) -> bool:
    """Whether an API server takes the text as the reason of a condition (API-607)."""
    return len(text) <= _MAX_REASON_LENGTH and _REASON.fullmatch(text) is not None


def awaiting_reconciliation(type_: str) -> Condition:
    """The condition as it is before it is decided anew (OPS-100)."""
    return _desired_condition(type_, UNKNOWN, AWAITING_RECONCILIATION, _AWAITING_MESSAGE)


def with_missing_conditions(conditions: Sequence[Condition], owner: ConditionedObject) -> Conditions:
    """The conditions with every missing root and dependent added as Unknown since the object's creation (API-600).

    A root without dependents has nothing to wait for and is True. An object being deleted has all its conditions lifted
    to its current generation (API-605).
    """
    present = {condition.type for condition in conditions}
    missing = [type_ for type_ in owner.types.all_types if type_ not in present]
    if not owner.types.dependents and owner.types.root in missing:
        return _ordered(
            [
                *_with_current_generation(conditions, owner),
                _changed(None, _desired_condition(owner.types.root, TRUE), owner),
            ],
            owner,
        )
    return _ordered(
        [*_with_current_generation(conditions, owner), *(_awaiting(type_, owner) for type_ in missing)], owner
    )


def observe_generation(conditions: Sequence[Condition], owner: ConditionedObject) -> Conditions:
    """The conditions with the dependents that are decided lifted to the owner's generation, and the root summed up (OPS-010).

    Nothing else changes: this is how conditions follow an object whose generation grew, and how a root heals that was edited.
    """
    current = with_missing_conditions(conditions, owner)
    lifted = [_with_observed_generation(condition, owner) for condition in current]
    return _recomputed(lifted, owner, "")


def set_condition(conditions: Sequence[Condition], desired: Condition, owner: ConditionedObject) -> Conditions:
    """The conditions with one set: type, status, reason and message are taken from ``desired`` (OPS-101).

    A reason that is empty, or that no API server takes, becomes the type (API-601). The transition time moves only with the
    status, the observed generation always becomes the owner's, and the root is recomputed.
    """
    current = with_missing_conditions(conditions, owner)
    changed = _changed(find_condition(current, desired.type), desired, owner)
    kept = [condition for condition in current if condition.type != desired.type]
    return _recomputed([*kept, changed], owner, desired.type)


def set_rootless_condition(
    conditions: Sequence[Condition], desired: Condition, generation: int, now: datetime
) -> Conditions:
    """The conditions of an object that has no root, with one set; else as ``set_condition`` does it."""
    owner = ConditionedObject(_NO_ROOT, generation, now, now)
    changed = _changed(find_condition(conditions, desired.type), desired, owner)
    return _ordered([*(condition for condition in conditions if condition.type != desired.type), changed], owner)


def clear(conditions: Sequence[Condition], type_: str, owner: ConditionedObject) -> Conditions:
    """The conditions without one. Raises ``ValueError`` for the root or a dependent: those are never removed (API-606)."""
    if type_ in owner.types.all_types:
        raise ValueError(f"condition {type_} is part of {owner.types.root} and cannot be removed")
    current = with_missing_conditions(conditions, owner)
    return tuple(condition for condition in current if condition.type != type_)


def _desired_condition(type_: str, status: str, reason: str = "", message: str = "") -> Condition:
    return Condition(type=type_, status=status, reason=reason, message=message)


def _awaiting(type_: str, owner: ConditionedObject) -> Condition:
    return Condition(
        type=type_,
        status=UNKNOWN,
        reason=AWAITING_RECONCILIATION,
        message=_AWAITING_MESSAGE,
        last_transition_time=owner.created,
        observed_generation=owner.generation,
    )


def _with_current_generation(conditions: Iterable[Condition], owner: ConditionedObject) -> Iterable[Condition]:
    if not owner.deleting:
        return conditions
    return (msgspec.structs.replace(condition, observed_generation=owner.generation) for condition in conditions)


def _with_observed_generation(condition: Condition, owner: ConditionedObject) -> Condition:
    if condition.type not in owner.types.dependents or condition.status == UNKNOWN:
        return condition
    return _changed(condition, condition, owner)


def _changed(before: Condition | None, desired: Condition, owner: ConditionedObject) -> Condition:
    moved = before is None or before.status != desired.status
    return Condition(
        type=desired.type,
        status=desired.status,
        reason=desired.reason if is_reason(desired.reason) else desired.type,
        message=_truncated(desired.message),
        last_transition_time=owner.now if moved or before is None else before.last_transition_time,
        observed_generation=owner.generation,
    )


def _truncated(message: str) -> str:
    return shorten(message, _MAX_MESSAGE_LENGTH)


def _recomputed(conditions: Sequence[Condition], owner: ConditionedObject, changed_type: str) -> Conditions:
    """The conditions with the root summed up again, unless it is the root itself that was set (OPS-102)."""
    root = owner.types.root
    if changed_type == root:
        return _ordered(conditions, owner)
    computed = _root_condition(conditions, owner)
    kept = [condition for condition in conditions if condition.type != root]
    return _ordered([*kept, _changed(find_condition(conditions, root), computed, owner)], owner)


def _root_condition(conditions: Sequence[Condition], owner: ConditionedObject) -> Condition:
    unhealthy = [
        condition
        for condition in conditions
        if condition.type in owner.types.dependents and not _is_current(condition, TRUE, owner)
    ]
    if not unhealthy:
        return _desired_condition(owner.types.root, TRUE)
    newest_first = sorted(unhealthy, key=_transition_time, reverse=True)
    message = ", ".join(f"{condition.type}={condition.status}" for condition in newest_first)
    if any(_is_current(condition, FALSE, owner) for condition in unhealthy):
        return _desired_condition(owner.types.root, FALSE, UNHEALTHY_DEPENDENTS, message)
    return _desired_condition(owner.types.root, UNKNOWN, RECONCILING_DEPENDENTS, message)


def _is_current(condition: Condition, status: str, owner: ConditionedObject) -> bool:
    return condition.status == status and condition.observed_generation == owner.generation


def _transition_time(condition: Condition) -> datetime:
    return condition.last_transition_time or _EARLIEST


def _ordered(conditions: Iterable[Condition], owner: ConditionedObject) -> Conditions:
    """By transition time, root last (API-604); what changed at one moment keeps its order."""
    return tuple(
        sorted(conditions, key=lambda condition: (condition.type == owner.types.root, _transition_time(condition)))
    )
