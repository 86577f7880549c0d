"""PriorityClasses (``scheduling.k8s.io/v1``): names for the priorities of pods."""

from __future__ import annotations

from karpenter.api.meta import ObjectMeta, Wire


class PriorityClass(Wire, frozen=True, kw_only=True):
    """A PriorityClass; the global default is for pods that name no class."""

    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    global_default: bool = False
