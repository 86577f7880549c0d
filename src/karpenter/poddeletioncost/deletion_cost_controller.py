"""Ranks the nodes once a minute where the cluster has changed, and has the costs of their pods written (K15-345)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import structlog

from karpenter.api.core import Pod
from karpenter.api.kinds import POD
from karpenter.controller_context import ControllerContext
from karpenter.kube.informer import Informer
from karpenter.model.backoff import Backoff
from karpenter.poddeletioncost.deletion_cost_ranking import (
    CostChange,
    NodeRanking,
    cost_changes,
    deletion_costs,
    rank_nodes,
)
from karpenter.poddeletioncost.deletion_cost_writer import DeletionCostWriter
from karpenter.provisioning.provisioner import PoolTypeIndexes
from karpenter.runtime import worker_scaling
from karpenter.runtime.reconciler import Reconciler, SingletonReconciler
from karpenter.runtime.workqueue import WorkQueue

_PERIOD_SECONDS = 60.0
_UNSYNCED_SECONDS = 1.0
_BACKOFF = Backoff(0.1, 10.0)
_log = structlog.get_logger()


class DeletionCostSettings(Protocol):
    """The settings it reads: the CPU requests of the controller in thousandths, and whether CPU beyond a baseline costs money."""

    @property
    def cpu_requests(self) -> int:
        """See `ProcessSettings`."""

    @property
    def cpu_surplus(self) -> bool:
        """See `SchedulingSettings`."""


class PodDeletionCostController:
    """Keeps deletion costs of pods up to date. ``has_watch_faults``: whether the cluster state may be stale.

    ``pods`` knows pods with all their annotations: the cluster state leaves the one this controller writes out, so that no
    decision depends on it (K15-340).
    """

    def __init__(
        self,
        context: ControllerContext,
        pods: Informer[Pod],
        has_watch_faults: Callable[[], bool],
        settings: DeletionCostSettings,
    ) -> None:
        self._context = context
        self._pods = pods
        self._has_watch_faults = has_watch_faults
        self._counts_cpu_surplus = settings.cpu_surplus
        self._type_indexes = PoolTypeIndexes(context)
        self._ranked_revision: int | None = None
        queue = WorkQueue[str](_BACKOFF)
        self._writer = DeletionCostWriter(context, pods.get, queue.add)
        workers = worker_scaling.DELETION_COST_WORKERS.for_cores(worker_scaling.whole_cores(settings.cpu_requests))
        self._ranker = SingletonReconciler("pod.deletioncost", self.reconcile, context.metrics)
        self._queue = Reconciler(
            "pod.deletioncost.queue",
            self._writer.reconcile,
            workers,
            POD,
            context.metrics,
            queue=queue,
        )

    def loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The loops to run, by name."""
        return {self._ranker.name: self._ranker.run, self._queue.name: self._queue.run}

    async def reconcile(self) -> float:
        """One pass; seconds until the next one."""
        if self._has_watch_faults():
            return _UNSYNCED_SECONDS
        state, now = self._context.state, self._context.clock.now()
        if state.revision == self._ranked_revision:
            _log.debug("no changes detected, skipping pod deletion cost update")
            return _PERIOD_SECONDS
        managed = tuple(pool for pool in state.pools() if self._context.is_managed(pool))
        indexes = await self._type_indexes.by_pool(managed)
        revision = state.revision
        ranking = rank_nodes(
            state.snapshot(), indexes, now, state.nominated_nodes(now), counts_cpu_surplus=self._counts_cpu_surplus
        )
        changes, has_more = cost_changes(ranking, deletion_costs(self._pods))
        _log_ranking(ranking, changes)
        self._writer.set_costs(changes)
        self._ranked_revision = None if has_more else revision
        return _PERIOD_SECONDS


def _log_ranking(ranking: NodeRanking, changes: Iterable[CostChange]) -> None:
    """What was decided, in the lines of K15-503."""
    for budget in ranking.exhausted:
        _log.debug(
            "disruption budget already exhausted; clamping to 0",
            nodePool=budget.node_pool,
            reason=budget.reason.value,
            allowed=budget.allowed,
            disrupting=budget.disrupting,
        )
    counts = (len(ranking.leaving), len(ranking.ranked), len(ranking.cleaned))
    _log.debug(
        "completed node ranking",
        totalNodes=sum(counts),
        disruptedNodes=counts[0],
        rankedNodes=counts[1],
        cleanupOnlyNodes=counts[2],
    )
    _log.debug("enqueued pod deletion cost annotation writes", nodeCount=len({change.node for change in changes}))
