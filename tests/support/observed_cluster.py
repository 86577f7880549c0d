"""Cluster metrics over objects that a test adds one by one, with a clock that moves only when the test moves it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from karpenter.api.core import Node, Pod
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import EC2_NODE_CLASS, KWOK_NODE_CLASS, Kind
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.api.meta import Wire
from karpenter.clustermetrics.cluster_collector import ClusterCollector
from karpenter.clustermetrics.cluster_metrics import ClusterMetrics, detail_collectors, essential_collectors
from karpenter.controller_context import ControllerContext
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.kube.decoding import metadata_of
from karpenter.metrics import Metrics
from karpenter.metrics.exposition import render_sync
from karpenter.providers.contract import ProviderError
from karpenter.runtime.events import ObjectEvent
from karpenter.scheduling.solution import Solution
from karpenter.state import ClusterState
from karpenter.state.snapshot import pod_key
from support.builders import NOW
from support.instance_types import STD
from support.manual_clock import ManualClock
from support.metrics_scrape import Scrape


class EventList:
    """Keeps published events."""

    def __init__(self) -> None:
        self.recorded: list[ObjectEvent] = []

    def mention(self, *events: ObjectEvent) -> None:
        self.recorded += events

    publish_optional = publish = mention


class ListedTypesProvider:
    """A provider that sells a list of types, or fails."""

    name = "shop"

    def __init__(self, node_class_kinds: tuple[Kind[Any], ...]) -> None:
        self.node_class_kinds = node_class_kinds
        self.types: tuple[InstanceType, ...] = STD
        self.error: ProviderError | None = None

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        if self.error is not None:
            raise self.error
        return self.types


class ObservedCluster:
    """A cluster, its metric collectors, and the metrics and events they emit."""

    def __init__(
        self, *, only_essentials: bool = False, node_class_kinds: tuple[Kind[Any], ...] = (KWOK_NODE_CLASS,)
    ) -> None:
        self.clock = ManualClock(NOW)
        self.metrics = Metrics(now=lambda: (self.clock.time - NOW).total_seconds())
        self.state = ClusterState()
        self.events = EventList()
        self.provider = ListedTypesProvider(node_class_kinds)
        self.lacking = ""
        self._objects: dict[tuple[type, str, str], Any] = {}
        self.context = ControllerContext(None, self.provider, self.state, self.clock, self.events, self.metrics)
        self.parts: tuple[ClusterCollector, ...] = essential_collectors(self.context, lambda: self.lacking)
        if not only_essentials:
            self.parts += detail_collectors(self.context)
        self.observatory = ClusterMetrics(self.context, self, self.parts)

    def __iter__(self) -> Any:
        return (obj for obj in self._objects.values() if isinstance(obj, Pod))

    def put(self, *objects: Wire) -> None:
        """Objects appear or change, as watches tell it."""
        for obj in objects:
            key = self._key(obj)
            old, self._objects[key] = self._objects.get(key), obj
            self._tell(old, obj)

    def gone(self, *objects: Wire) -> None:
        """Objects are gone."""
        for obj in objects:
            self._tell(self._objects.pop(self._key(obj)), None)

    @staticmethod
    def _key(obj: Wire) -> tuple[type, str, str]:
        return type(obj), metadata_of(obj).namespace, metadata_of(obj).name

    def _tell(self, old: Any, new: Any) -> None:
        subject = new or old
        match subject:
            case Pod():
                self.state.set_pod(new) if new else self.state.remove_pod(pod_key(old))
                self.observatory.on_pod(old, new)
            case Node():
                self.state.set_node(new) if new else self.state.remove_node(subject.metadata.name)
                self.observatory.on_node(old, new)
            case NodeClaim():
                self.state.set_claim(new) if new else self.state.remove_claim(subject.metadata.name)
                self.observatory.on_claim(old, new)
            case NodePool():
                self.state.set_pool(new) if new else self.state.remove_pool(subject.metadata.name)
                self.observatory.on_pool(old, new)
            case KWOKNodeClass():
                self.observatory.on_status_object(KWOK_NODE_CLASS.name, old, new)
            case EC2NodeClass():
                self.observatory.on_status_object(EC2_NODE_CLASS.name, old, new)
            case _:
                raise TypeError(subject)

    def passes(self, seconds: float) -> None:
        """Time goes on."""
        self.clock.time += timedelta(seconds=seconds)

    def decided(self, plan: Solution) -> None:
        self.observatory.on_plan(plan)

    async def refresh(self) -> None:
        """What happens every ten seconds."""
        for part in self.parts:
            await part.refresh()

    def scrape(self) -> Scrape:
        return Scrape(render_sync(self.metrics.registry))
