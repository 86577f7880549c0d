"""What admission of a cluster would have filled into pods: the defaults of LimitRanges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar, cast

import msgspec

from karpenter.api.limit_range import LimitRange
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.model.limit_range_defaults import ContainerDefaults, container_defaults
from karpenter.model.pod_defaults import JsonSpec
from karpenter.model.pod_templates import PodCarrier, pod_spec_path

_Carrier = TypeVar("_Carrier", bound=PodCarrier)


def apply_limit_ranges(objects: ClusterObjects) -> None:
    """Give the pods and pod templates of the objects the defaults of the LimitRanges in their namespaces.

    Pods that a server has stored have them already; templates never do.
    """
    admission = _LimitRangeAdmission(objects.limit_ranges)
    objects.pods = [pod if pod.metadata.resource_version else admission.admitted(pod) for pod in objects.pods]
    objects.workloads = [admission.admitted(workload) for workload in objects.workloads]
    objects.daemon_sets = [admission.admitted(daemon_set) for daemon_set in objects.daemon_sets]


class _LimitRangeAdmission:
    def __init__(self, limit_ranges: Iterable[LimitRange]) -> None:
        by_namespace: defaultdict[str, list[LimitRange]] = defaultdict(list)
        for limit_range in limit_ranges:
            by_namespace[limit_range.metadata.namespace].append(limit_range)
        self._defaults: dict[str, ContainerDefaults | None] = {
            namespace: container_defaults(own) for namespace, own in by_namespace.items()
        }

    def admitted(self, carrier: _Carrier) -> _Carrier:
        """The object with the defaults in the containers of its pods."""
        defaults = self._defaults.get(carrier.metadata.namespace)
        if defaults is None:
            return carrier
        content = msgspec.to_builtins(carrier)
        spec = content
        for step in pod_spec_path(type(carrier)):
            spec = cast(JsonSpec, spec.setdefault(step, {}))
        defaults.apply_to(spec)
        return msgspec.convert(content, type(carrier))
