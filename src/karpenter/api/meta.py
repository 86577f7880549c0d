"""Metadata every object carries, and the pieces shared by several kinds.

Structs are frozen and untracked by the garbage collector: they form trees, never cycles, and a large cluster holds
hundreds of thousands of them. Field names are snake_case here and camelCase on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

#: A quantity as manifests write it: ``"1500m"``, ``2``, ``0.5``. ``model.quantity`` gives it a value.
WireQuantity = str | int | float
#: Resource name to quantity, as in ``resources.requests``.
WireResources = Mapping[str, WireQuantity]


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False, rename="camel"):
    """Base of every wire struct: immutable, camelCase, defaults left out when encoded."""


class OwnerReference(Wire, frozen=True, kw_only=True):
    """The owner of an object."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Wire, frozen=True, kw_only=True):
    """Standard object metadata. ``resource_version`` is opaque text, compared only for equality."""

    name: str = ""
    namespace: str = ""
    generate_name: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class Condition(Wire, frozen=True, kw_only=True):
    """One thing that is or is not the case, and since when (API-600 ff.)."""

    type: str
    status: str
    reason: str = ""
    # Written even when empty, as schemas require it: a default made by a factory always is.
    message: str = msgspec.field(default_factory=str)
    last_transition_time: datetime | None = None
    observed_generation: int = 0


class LabelSelectorRequirement(Wire, frozen=True, kw_only=True):
    """``matchExpressions`` entry of a label selector: In, NotIn, Exists, DoesNotExist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(Wire, frozen=True, kw_only=True):
    """A label selector; empty matches everything, an absent one (``None`` in its owner) matches nothing."""

    match_labels: Mapping[str, str] = {}
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class ObjectReference(Wire, frozen=True, kw_only=True):
    """The object an event is about."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""
