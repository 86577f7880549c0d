"""Builders and steps for tests of NodePools that sleep by a CapacitySchedule."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from karpenter.api import kinds
from karpenter.api.capacity_schedule import (
    CapacitySchedule,
    CapacityScheduleSpec,
    NodePoolSelection,
    ScheduleHolidays,
    ScheduleWindow,
    SleepSettings,
    WakeSettings,
)
from karpenter.api.karpenter import NodeClaim
from karpenter.api.meta import ObjectMeta
from karpenter.model import labels
from karpenter.model.feature_gate_flags import ParsedFeatureGates
from karpenter.model.feature_gates import DEFAULT_FEATURE_GATES, FeatureGate
from karpenter.settings import Settings
from support.fake_cloud import TYPES
from support.virtual_cluster import VirtualCluster

GATES = DEFAULT_FEATURE_GATES | {FeatureGate.CAPACITY_SCHEDULE}
WORK = ScheduleWindow(name="work", days="mon-fri", begin="07:00", until="22:00")


def settings_with_schedules(**fields: object) -> Settings:
    """Settings of a controller with the gate on."""
    return Settings(feature_gates=ParsedFeatureGates(GATES), **fields)


def capacity_schedule(name: str = "office", **spec: object) -> CapacitySchedule:
    """Office hours in Seoul for the pool ``np``."""
    fields: dict[str, object] = {
        "node_pools": NodePoolSelection(names=("np",)),
        "time_zone": "Asia/Seoul",
        "windows": (WORK,),
        "holidays": ScheduleHolidays(country="KR"),
        "on_holidays": "Asleep",
        "sleep": SleepSettings(grace="10m", deadline="30m"),
        "wake": WakeSettings(ahead="1m"),
        **spec,
    }
    return CapacitySchedule(metadata=ObjectMeta(name=name), spec=CapacityScheduleSpec(**fields))


class WriteTimes:
    """When the controller evicted pods and ordered nodes."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.evictions: list[datetime] = []
        self.orders: list[datetime] = []
        self.count = 0
        self._world = cluster
        cluster.connection.after = self._record

    def _record(self, write: object) -> None:
        verb, kind = write.verb, write.kind  # type: ignore[attr-defined]
        self.count += 1
        if verb == "evict":
            self.evictions.append(self._world.clock.now())
        elif (verb, kind) == ("create", "NodeClaim"):
            self.orders.append(self._world.clock.now())


async def sleep_until(cluster: VirtualCluster, moment: datetime) -> None:
    """Let virtual time pass until a moment."""
    import asyncio

    await asyncio.sleep(max(0.0, (moment - cluster.clock.now()).total_seconds()))


async def running_pods(cluster: VirtualCluster) -> int:
    """How many pods run."""
    pods = await cluster.all(kinds.POD)
    return sum(pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None for pod in pods)


async def price_per_hour(cluster: VirtualCluster) -> float:
    """USD per hour of all nodes there are."""
    return sum(map(_price, await cluster.all(kinds.NODE_CLAIM)))


def _price(claim: NodeClaim) -> float:
    own = claim.metadata.labels
    named = next((kind for kind in TYPES if kind.name == own.get(labels.INSTANCE_TYPE)), None)
    offers: Iterable[float] = (
        offering.price_per_hour
        for offering in (named.offerings if named is not None else ())
        if offering.zone == own.get(labels.ZONE) and offering.capacity_type == own.get(labels.CAPACITY_TYPE)
    )
    return next(iter(offers), 0.0)


async def annotate(
    cluster: VirtualCluster,
    kind: kinds.Kind[msgspec.Struct],
    name: str,
    key: str,
    value: str | None,
    namespace: str = "",
) -> None:
    """Set or remove one annotation."""
    await cluster.kube.patch(kind, name, {"metadata": {"annotations": {key: value}}}, namespace)


MINUTE = timedelta(minutes=1)
