"""HorizontalPodAutoscalers (``autoscaling/v2``), cut down to the range of replicas. ``autoscaling/v1`` has the same fields."""

from __future__ import annotations

from karpenter.api.meta import ObjectMeta, Wire


class ScaleTargetReference(Wire, frozen=True, kw_only=True):
    """The workload whose replicas are set."""

    api_version: str = ""
    kind: str = ""
    name: str = ""


class HorizontalPodAutoscalerSpec(Wire, frozen=True, kw_only=True):
    """The range of replicas; an absent least means 1."""

    scale_target_ref: ScaleTargetReference = ScaleTargetReference()
    min_replicas: int | None = None
    max_replicas: int = 0


class HorizontalPodAutoscaler(Wire, frozen=True, kw_only=True):
    """A HorizontalPodAutoscaler."""

    metadata: ObjectMeta = ObjectMeta()
    spec: HorizontalPodAutoscalerSpec = HorizontalPodAutoscalerSpec()
