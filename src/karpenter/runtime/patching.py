"""Patches: the difference of two states of an object as a merge patch, and the removal of a finalizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, cast

import msgspec

from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.kube.protocol import Json, JsonObject, Writer

T = TypeVar("T", bound=Wire)


def merge_patch(before: Wire, after: Wire) -> JsonObject:
    """The JSON merge patch (RFC 7386) that turns one state into the other; empty when they are equal."""
    if before == after:
        return {}
    old = cast(Mapping[str, Json], msgspec.to_builtins(before))
    new = cast(Mapping[str, Json], msgspec.to_builtins(after))
    return _merge_patch(old, new)


async def remove_finalizer(kube: Writer, kind: Kind[T], metadata: ObjectMeta, finalizer: str) -> None:
    """Remove one finalizer of an object, against the version that was read. Raises ``KubeError``."""
    remaining = [name for name in metadata.finalizers if name != finalizer]
    patch: JsonObject = {"metadata": {"finalizers": remaining}}
    await kube.patch(kind, metadata.name, patch, resource_version=metadata.resource_version)


def _merge_patch(old: Mapping[str, Json], new: Mapping[str, Json]) -> dict[str, Json]:
    patch: dict[str, Json] = {key: None for key in old if key not in new}
    for key, value in new.items():
        previous = old.get(key)
        if key not in old or previous != value:
            if isinstance(value, Mapping) and isinstance(previous, Mapping):
                patch[key] = _merge_patch(previous, value)
            else:
                patch[key] = value
    return patch
