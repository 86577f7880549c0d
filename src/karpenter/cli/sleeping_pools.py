"""Which NodePools of a listed cluster sleep: the controller's decision, outside of the controller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from karpenter.api.capacity_schedule import CapacitySchedule
from karpenter.capacityschedule.sleep_decision import ActiveSchedule, UnusableSchedule, decide_sleep, read_schedule
from karpenter.capacityschedule.sleep_overrides import AnnotatedObjects, listed_overrides
from karpenter.cli.cluster_objects import ClusterObjects
from karpenter.model.feature_gates import FeatureGate, FeatureGates
from karpenter.model.pool_sleep import PoolSleep


@dataclass(frozen=True)
class CurrentSleep:
    """The NodePools that sleep at a moment, by name, and the schedules that cannot be used."""

    pools: Mapping[str, PoolSleep]
    unusable: tuple[UnusableSchedule, ...]


def annotated_objects(objects: ClusterObjects) -> AnnotatedObjects:
    """Those of files or of a cluster that was read."""
    return AnnotatedObjects(objects.pools, objects.pods, objects.nodes, objects.namespaces)


def current_sleep(
    schedules: Iterable[CapacitySchedule], gates: FeatureGates, annotated: AnnotatedObjects, moment: datetime
) -> CurrentSleep:
    """What a controller with these gates decides about the sleep of NodePools."""
    has_buffers = FeatureGate.CAPACITY_BUFFER in gates
    read = [
        read_schedule(each, timedelta(seconds=each.status.launch_delay_seconds), has_buffers=has_buffers)
        for each in schedules
        if each.metadata.deletion_timestamp is None
    ]
    active = [each for each in read if isinstance(each, ActiveSchedule)]
    sleeping = decide_sleep(active, annotated.pools, listed_overrides(annotated), moment).sleeping
    return CurrentSleep(sleeping, tuple(each for each in read if isinstance(each, UnusableSchedule)))
