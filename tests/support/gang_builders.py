"""Gangs for tests: PodGroups and their pods."""

from __future__ import annotations

from datetime import datetime

import msgspec

from karpenter.api.core import Pod, PodSchedulingGroup
from karpenter.api.meta import ObjectMeta, WireResources
from karpenter.api.pod_groups import (
    GangSchedulingPolicy,
    PodGroupPolicy,
    PodGroupSchedulingConstraints,
    PodGroupTopologyConstraint,
    SchedulingPodGroup,
    SchedulingPodGroupSpec,
)
from support.builders import NOW, pods


def pod_group(name: str, minimum: int, topology_key: str = "", priority: int | None = None) -> SchedulingPodGroup:
    """A PodGroup of the scheduler's API with a gang policy."""
    constraints = PodGroupSchedulingConstraints(topology=(PodGroupTopologyConstraint(key=topology_key),))
    return SchedulingPodGroup(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=SchedulingPodGroupSpec(
            scheduling_policy=PodGroupPolicy(gang=GangSchedulingPolicy(min_count=minimum)),
            scheduling_constraints=constraints if topology_key else None,
            priority=priority,
        ),
    )


def gang_pods(
    name: str, count: int, requests: WireResources | None = None, created: datetime = NOW, **spec: object
) -> list[Pod]:
    """Pods that name the PodGroup."""
    group = PodSchedulingGroup(pod_group_name=name)
    members = pods(count, requests, prefix=name, scheduling_group=group, **spec)
    return [
        msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, creation_timestamp=created))
        for pod in members
    ]


def gang(name: str, count: int, requests: WireResources | None = None, topology_key: str = "") -> list[object]:
    """A PodGroup with all its pods, of which it needs every one."""
    return [pod_group(name, count, topology_key), *gang_pods(name, count, requests)]
