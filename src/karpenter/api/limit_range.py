"""LimitRanges (``v1``): what admission fills into the containers of a namespace."""

from __future__ import annotations

from karpenter.api.meta import ObjectMeta, Wire, WireResources


class LimitRangeItem(Wire, frozen=True, kw_only=True):
    """The bounds and defaults for one type of thing: ``Container``, ``Pod`` or ``PersistentVolumeClaim``."""

    type: str = ""
    max: WireResources = {}
    min: WireResources = {}
    default: WireResources = {}
    default_request: WireResources = {}


class LimitRangeSpec(Wire, frozen=True, kw_only=True):
    """All items count."""

    limits: tuple[LimitRangeItem, ...] = ()


class LimitRange(Wire, frozen=True, kw_only=True):
    """A LimitRange of a namespace."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LimitRangeSpec = LimitRangeSpec()
