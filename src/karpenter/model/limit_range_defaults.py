"""What LimitRanges fill into containers that do not state requests or limits, as admission does it.

Sources: the Kubernetes documentation of LimitRanges. Only defaults are applied; minimum, maximum and ratio refuse nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from karpenter.api.limit_range import LimitRange, LimitRangeItem
from karpenter.api.meta import WireResources

_CONTAINER = "Container"


@dataclass(frozen=True)
class ContainerDefaults:
    """Default requests and limits of the containers of a namespace, by resource."""

    requests: WireResources
    limits: WireResources

    def apply_to(self, pod_spec: Mapping[str, Any]) -> None:
        """Fill in what the containers of a decoded pod specification do not state.

        A limit that a container states is also its request, before the default request is.
        """
        for name in ("containers", "initContainers"):
            for container in pod_spec.get(name) or ():
                resources = container.get("resources") or {}
                limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
                container["resources"] = {
                    **resources,
                    "limits": {**self.limits, **limits},
                    "requests": {**self.requests, **limits, **requests},
                }


def container_defaults(limit_ranges: Iterable[LimitRange]) -> ContainerDefaults | None:
    """The defaults of the LimitRanges of one namespace, None if there are none.

    Of several defaults for a resource that of the first LimitRange by name counts.
    """
    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}
    for limit_range in sorted(limit_ranges, key=lambda each: each.metadata.name):
        for limit in limit_range.spec.limits:
            if limit.type == _CONTAINER:
                limits = {**_default_limits(limit), **limits}
                requests = {**limit.min, **_default_limits(limit), **limit.default_request, **requests}
    return ContainerDefaults(requests, limits) if requests or limits else None


def _default_limits(limit: LimitRangeItem) -> dict[str, str | int | float]:
    """A maximum is the default limit where none is stated."""
    return {**limit.max, **limit.default}
