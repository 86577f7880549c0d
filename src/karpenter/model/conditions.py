"""Status conditions: reading them, and setting one without disturbing the others (API-600 ff., OPS-100 ff.).

A kind has a root condition and the dependents it sums up; other conditions stand beside them. Every function takes the
conditions as they are and returns the conditions as they should be: equal input and output means there is nothing to write.
What a function needs to know about the object beside its conditions is an ``Owner``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from karpenter.api.meta import Condition, ObjectMeta

TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"

AWAITING_RECONCILIATION = "AwaitingReconciliation"
UNHEALTHY_DEPENDENTS = "UnhealthyDependents"
RECONCILING_DEPENDENTS = "ReconcilingDependents"

_AWAITING_MESSAGE = "object is awaiting reconciliation"
_LONGEST_MESSAGE = 32768
_LONGEST_REASON = 1024
_REASON = re.compile(r"[A-Za-z](?:[A-Za-z0-9_,:]*[A-Za-z0-9_])?", re.ASCII)
_BEGINNING = datetime.min.replace(tzinfo=UTC)

Conditions = tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class ConditionTypes:
    """The root condition of a kind and the dependents that make it True."""

    root: str
    dependents: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Dependents, then the root."""
        return (*self.dependents, self.root)


NODE_CLAIM = ConditionTypes("Ready", ("Launched", "Registered", "Initialized"))
NODE_POOL = ConditionTypes("Ready", ("ValidationSucceeded", "NodeClassReady"))
NODE_OVERLAY = ConditionTypes("Ready", ("ValidationSucceeded",))
KWOK_NODE_CLASS = ConditionTypes("Ready")
_NO_ROOT = ConditionTypes("")


@dataclass(frozen=True, slots=True)
class Owner:
    """The object conditions belong to, at one moment: which types it has, its generation, creation time and now."""

    types: ConditionTypes
    generation: int
    created: datetime
    now: datetime
    deleting: bool = False


def owner(types: ConditionTypes, meta: ObjectMeta, now: datetime) -> Owner:
    """The owner an object's metadata describes; one that was never stored counts as created now."""
    return Owner(types, meta.generation, meta.creation_timestamp or now, now, meta.deletion_timestamp is not None)


def find(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """The condition of a type, or None."""
    return next((condition for condition in conditions if condition.type == type_), None)


def status(conditions: Iterable[Condition], type_: str) -> str:
    """``True``, ``False`` or ``Unknown``; an absent condition is Unknown."""
    found = find(conditions, type_)
    return UNKNOWN if found is None else found.status


def is_true(conditions: Iterable[Condition], type_: str) -> bool:
    """Whether the condition is there and True."""
    return status(conditions, type_) == TRUE


def is_false(conditions: Iterable[Condition], type_: str) -> bool:
    """Whether the condition is there and False."""
    return status(conditions, type_) == FALSE


def is_reason(text: str) -> bool:
    """Whether an API server takes the text as the reason of a condition (API-607)."""
    return len(text) <= _LONGEST_REASON and _REASON.fullmatch(text) is not None


def awaiting(type_: str) -> Condition:
    """The wish that a condition be decided anew (OPS-100)."""
    return _wish(type_, UNKNOWN, AWAITING_RECONCILIATION, _AWAITING_MESSAGE)


def initialise(conditions: Sequence[Condition], owner: Owner) -> Conditions:
    """The conditions with every missing root and dependent added as Unknown since the object's creation (API-600).

    A root without dependents has nothing to wait for and is True. An object being deleted has all its conditions lifted
    to its current generation (API-605).
    """
    present = {condition.type for condition in conditions}
    missing = [type_ for type_ in owner.types.all if type_ not in present]
    if not owner.types.dependents and owner.types.root in missing:
        return _ordered([*_lifted(conditions, owner), _changed(None, _wish(owner.types.root, TRUE), owner)], owner)
    return _ordered([*_lifted(conditions, owner), *(_awaiting(type_, owner) for type_ in missing)], owner)


def observe(conditions: Sequence[Condition], owner: Owner) -> Conditions:
    """The conditions with the dependents that are decided lifted to the owner's generation, and the root summed up (OPS-010).

    Nothing else changes: this is how conditions follow an object whose generation grew, and how a root heals that was edited.
    """
    current = initialise(conditions, owner)
    lifted = [_observed(item, owner) for item in current]
    return _recomputed(lifted, owner, "")


def put(conditions: Sequence[Condition], wish: Condition, owner: Owner) -> Conditions:
    """The conditions with one set: type, status, reason and message are taken from ``wish`` (OPS-101).

    A reason that is empty, or that no API server takes, becomes the type (API-601). The transition time moves only with the
    status, the observed generation always becomes the owner's, and the root is recomputed.
    """
    current = initialise(conditions, owner)
    changed = _changed(find(current, wish.type), wish, owner)
    kept = [condition for condition in current if condition.type != wish.type]
    return _recomputed([*kept, changed], owner, wish.type)


def put_true(conditions: Sequence[Condition], type_: str, owner: Owner) -> Conditions:
    """``put`` with status True, the type as reason and no message."""
    return put(conditions, _wish(type_, TRUE), owner)


def put_alone(conditions: Sequence[Condition], wish: Condition, generation: int, now: datetime) -> Conditions:
    """The conditions of an object that has no root, with one set; else as ``put`` does it."""
    owner = Owner(_NO_ROOT, generation, now, now)
    changed = _changed(find(conditions, wish.type), wish, owner)
    return _ordered([*(item for item in conditions if item.type != wish.type), changed], owner)


def clear(conditions: Sequence[Condition], type_: str, owner: Owner) -> Conditions:
    """The conditions without one. Raises ``ValueError`` for the root or a dependent: those are never removed (API-606)."""
    if type_ in owner.types.all:
        raise ValueError(f"condition {type_} is part of {owner.types.root} and cannot be removed")
    current = initialise(conditions, owner)
    return tuple(condition for condition in current if condition.type != type_)


def _wish(type_: str, status: str, reason: str = "", message: str = "") -> Condition:
    return Condition(type=type_, status=status, reason=reason, message=message)


def _awaiting(type_: str, owner: Owner) -> Condition:
    return Condition(
        type=type_,
        status=UNKNOWN,
        reason=AWAITING_RECONCILIATION,
        message=_AWAITING_MESSAGE,
        last_transition_time=owner.created,
        observed_generation=owner.generation,
    )


def _lifted(conditions: Iterable[Condition], owner: Owner) -> Iterable[Condition]:
    if not owner.deleting:
        return conditions
    return (msgspec.structs.replace(item, observed_generation=owner.generation) for item in conditions)


def _observed(condition: Condition, owner: Owner) -> Condition:
    if condition.type not in owner.types.dependents or condition.status == UNKNOWN:
        return condition
    return _changed(condition, condition, owner)


def _changed(before: Condition | None, wish: Condition, owner: Owner) -> Condition:
    moved = before is None or before.status != wish.status
    return Condition(
        type=wish.type,
        status=wish.status,
        reason=wish.reason if is_reason(wish.reason) else wish.type,
        message=_cut(wish.message),
        last_transition_time=owner.now if moved or before is None else before.last_transition_time,
        observed_generation=owner.generation,
    )


def _cut(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 1] + "…"


def _recomputed(conditions: Sequence[Condition], owner: Owner, cause: str) -> Conditions:
    """The conditions with the root summed up again, unless it is the root itself that was set (OPS-102)."""
    root = owner.types.root
    if cause == root:
        return _ordered(conditions, owner)
    wish = _sum_up(conditions, owner)
    kept = [condition for condition in conditions if condition.type != root]
    return _ordered([*kept, _changed(find(conditions, root), wish, owner)], owner)


def _sum_up(conditions: Sequence[Condition], owner: Owner) -> Condition:
    unhealthy = [
        condition
        for condition in conditions
        if condition.type in owner.types.dependents and not _is_current(condition, TRUE, owner)
    ]
    if not unhealthy:
        return _wish(owner.types.root, TRUE)
    newest_first = sorted(unhealthy, key=_since, reverse=True)
    message = ", ".join(f"{condition.type}={condition.status}" for condition in newest_first)
    if any(_is_current(condition, FALSE, owner) for condition in unhealthy):
        return _wish(owner.types.root, FALSE, UNHEALTHY_DEPENDENTS, message)
    return _wish(owner.types.root, UNKNOWN, RECONCILING_DEPENDENTS, message)


def _is_current(condition: Condition, status: str, owner: Owner) -> bool:
    return condition.status == status and condition.observed_generation == owner.generation


def _since(condition: Condition) -> datetime:
    return condition.last_transition_time or _BEGINNING


def _ordered(conditions: Iterable[Condition], owner: Owner) -> Conditions:
    """By transition time, root last (API-604); what changed at one moment keeps its order."""
    return tuple(sorted(conditions, key=lambda item: (item.type == owner.types.root, _since(item))))
