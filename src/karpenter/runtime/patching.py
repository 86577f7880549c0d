"""Merge patches from two states of an object: change the frozen struct, then send only what differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec

from karpenter.api.meta import Wire
from karpenter.kube.protocol import Json, JsonObject


def merge_patch(before: Wire, after: Wire) -> JsonObject:
    """The JSON merge patch (RFC 7386) that turns one state into the other; empty when they are equal."""
    if before == after:
        return {}
    old = cast(Mapping[str, Json], msgspec.to_builtins(before))
    new = cast(Mapping[str, Json], msgspec.to_builtins(after))
    return _merge_patch(old, new)


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
