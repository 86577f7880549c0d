"""Plans for another moment than now: NodePools that sleep then launch nothing (``karpenter plan --at``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from karpenter.cli.terminal import WrongInput

if TYPE_CHECKING:
    from karpenter.cli.cluster_objects import ClusterObjects
    from karpenter.state.snapshot import ClusterSnapshot


def parse_moment(text: str) -> datetime:
    """The moment that ``--at`` names. Raises ``WrongInput``."""
    from karpenter.model import clock

    try:
        return clock.parse_timestamp(text)
    except clock.TimestampError as error:
        raise WrongInput(f"--at: {error}") from None


def asleep_at(snapshot: ClusterSnapshot, objects: ClusterObjects, moment: datetime) -> ClusterSnapshot:
    """The snapshot with the NodePools that CapacitySchedules and annotations put to sleep at a moment.

    CapacityBuffers count in plans whatever gates the controller has, and so do schedules that need them. Raises ``WrongInput``
    for a schedule that cannot be used.
    """
    from karpenter.cli.sleeping_pools import annotated_objects, current_sleep
    from karpenter.model.feature_gates import FeatureGate

    gates = frozenset({FeatureGate.CAPACITY_BUFFER})
    sleep = current_sleep(objects.schedules, gates, annotated_objects(objects), moment)
    for schedule in sleep.unusable:
        raise WrongInput(str(schedule))
    return replace(snapshot, sleeping_pools=sleep.pools)


def passed_over_sleep(objects: ClusterObjects, now: datetime) -> Iterator[str]:
    """A line for each NodePool that was sent to sleep, for plans that take it for awake."""
    from karpenter.capacityschedule.sleep_overrides import sleep_overrides
    from karpenter.model import clock

    for name, until in sorted(sleep_overrides(objects.pools, (), {}).asleep_until.items()):
        if until > now:
            yield (
                f"NodePool {name} is sent to sleep until {clock.rfc3339(until)} and counts as awake here; "
                "with --feature-gates CapacitySchedule=true it sleeps, as with a controller that has the gate"
            )
