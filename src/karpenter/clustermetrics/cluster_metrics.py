"""All collectors of cluster metrics: distributes changes to them and writes their series at a scrape."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from traceback import format_exc

import structlog

from karpenter.api.core import Node, Pod
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.clustermetrics.cluster_collector import ClusterCollector, ClusterMetricsSnapshot, StatusObject
from karpenter.clustermetrics.condition_metrics import StatusConditionMetrics
from karpenter.clustermetrics.node_metrics import NodeLifetimeMetrics, NodeMetrics
from karpenter.clustermetrics.nodepool_metrics import (
    DisruptionBudgetMetrics,
    NodePoolCostMetrics,
    NodePoolResourceMetrics,
)
from karpenter.clustermetrics.pod_metrics import PodDurationMetrics, PodStateMetrics
from karpenter.clustermetrics.scheduling_metrics import (
    ClusterSyncMetrics,
    GangMetrics,
    PlanPriceMetrics,
    UnschedulablePodMetrics,
)
from karpenter.controller_context import ControllerContext
from karpenter.metrics.exposition import SeriesWriter
from karpenter.runtime.events import ObjectKind
from karpenter.scheduling.solution import Solution

_log = structlog.get_logger()


def essential_collectors(context: ControllerContext, unready: Callable[[], str]) -> tuple[ClusterCollector, ...]:
    """Collectors every process has, however large its cluster. ``unready`` says what the cluster state lacks."""
    return (
        ClusterSyncMetrics(context, unready),
        UnschedulablePodMetrics(context),
        PlanPriceMetrics(),
        GangMetrics(context),
        DisruptionBudgetMetrics(),
        NodePoolCostMetrics(context),
        NodeLifetimeMetrics(context.metrics, context.clock),
    )


def detail_collectors(
    context: ControllerContext, further_kinds: tuple[ObjectKind, ...] = ()
) -> tuple[ClusterCollector, ...]:
    """Parts about single pods, Nodes, NodePools and conditions, which a setting takes away (OPS-320).

    ``further_kinds`` have conditions to show beside those kinds that are always there.
    """
    return (
        NodeMetrics(),
        NodePoolResourceMetrics(),
        PodStateMetrics(),
        PodDurationMetrics(context),
        StatusConditionMetrics(context, further_kinds),
    )


class ClusterMetrics:
    """Passes events to its collectors, and takes the snapshot they write from. ``pods`` iterates over all current pods."""

    def __init__(self, context: ControllerContext, pods: Iterable[Pod], collectors: Iterable[ClusterCollector]) -> None:
        self._context = context
        self._pods = pods
        self._collectors = tuple(collectors)
        self._nodes: dict[str, Node] = {}
        context.metrics.registry.sources.append(self)

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """A Node appeared (no old), changed, or is gone (no new)."""
        if new is not None:
            self._nodes[new.metadata.name] = new
        elif old is not None:
            self._nodes.pop(old.metadata.name, None)
        self._notify(lambda part: part.on_node(old, new))

    def on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """A NodeClaim appeared, changed, or is gone."""
        self._notify(lambda part: part.on_claim(old, new))

    def on_pool(self, old: NodePool | None, new: NodePool | None) -> None:
        """A NodePool appeared, changed, or is gone."""
        self._notify(lambda part: part.on_pool(old, new))

    def on_status_object(self, kind: str, old: StatusObject | None, new: StatusObject | None) -> None:
        """A node class, or another object with conditions, appeared, changed, or is gone."""
        self._notify(lambda part: part.on_status_object(kind, old, new))

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """A pod appeared, changed, or is gone."""
        self._notify(lambda part: part.on_pod(old, new))

    def on_plan(self, plan: Solution) -> None:
        """A provisioning pass came to its decision."""
        self._notify(lambda part: part.on_plan(plan))

    def _notify(self, notify: Callable[[ClusterCollector], None]) -> None:
        """A collector that fails on an event loses its own series only; everything else goes on."""
        for part in self._collectors:
            try:
                notify(part)
            except Exception as error:
                _log_collector_failure(part, error)

    async def run(self) -> None:
        """Keep up to date what has to be asked for, until cancelled; not at once, since a start has more urgent questions."""
        while True:
            await asyncio.sleep(self._context.intervals.metrics_refresh.total_seconds())
            for part in self._collectors:
                await part.refresh()

    def prepare(self) -> SeriesWriter:
        """Take a snapshot of the cluster, for all collectors to write from."""
        state = self._context.state
        picture = ClusterMetricsSnapshot(
            now=self._context.clock.now(),
            views=state.state_nodes(),
            nodes=dict(self._nodes),
            claims=state.claims(),
            pools=state.pools(),
            pods=tuple(self._pods),
            freeze=state.freeze,
        )
        return partial(_write_all, [(part, part.prepare(picture)) for part in self._collectors])


def _write_all(writers: Iterable[tuple[ClusterCollector, SeriesWriter]]) -> Iterator[str]:
    """What all parts write. One that breaks off has written whole lines, and the others are there."""
    for part, writing in writers:
        try:
            yield from writing()
        except Exception as error:
            _log_collector_failure(part, error)


def _log_collector_failure(collector: ClusterCollector, error: Exception) -> None:
    _log.error("observing failed", part=type(collector).__name__, error=repr(error), stacktrace=format_exc())
