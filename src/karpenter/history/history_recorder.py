"""Collects the history beside the controllers: what they decided, what the cloud took away, and samples of the cluster.

Records are made from frozen data and written in threads. A file that cannot be written is logged once, and costs entries only.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

import structlog

from karpenter.console.console_input import ConsoleInput
from karpenter.console.console_view import ConsoleView
from karpenter.console.decisions import INTERRUPTION_REASONS
from karpenter.console.node_rows import NodeRow
from karpenter.console.pending_pods import PendingPod
from karpenter.console.price_bound import price_bound_per_hour
from karpenter.disruption.decision_journal import JournalEntry
from karpenter.history.cluster_observer import ClusterObserver
from karpenter.history.decision_records import changed_decisions
from karpenter.history.history_records import (
    ClusterSample,
    DecisionRecord,
    InterruptionRecord,
    PendingReason,
    SpendingPart,
)
from karpenter.history.history_store import HistoryStore
from karpenter.metrics import Metrics
from karpenter.model import resources as res
from karpenter.model.clock import Clock
from karpenter.runtime.events import ObjectEvent
from karpenter.runtime.reconciler import SingletonReconciler

_DECISION_SECONDS = 5.0
#: The price bound is a linear program, and changes slowly: it is computed with every so many samples.
_SAMPLES_PER_BOUND = 5
_MAX_WAITING_INTERRUPTIONS = 1000
#: So many reasons are stored of a sample; the pods of all others count together.
_MAX_REASONS = 50
_MAX_REASON_LENGTH = 500
_MAX_REMEMBERED_DECISIONS = 2000
_log = structlog.get_logger()


def cluster_sample(view: ConsoleView, bound_per_hour: float | None) -> ClusterSample:
    """A sample of the cluster as it is in the view."""
    parts = (
        SpendingPart(dimension.value, row.name, row.price_per_hour, row.count)
        for dimension, rows in view.spending.rows.items()
        for row in rows
    )
    return ClusterSample(
        at=view.now,
        price_per_hour=view.price_per_hour,
        managed_price_per_hour=view.managed_price_per_hour,
        bound_per_hour=bound_per_hour,
        nodes=len(view.nodes),
        pending_pods=len(view.pending),
        cpu_fill=_fill(view.nodes, res.CPU),
        memory_fill=_fill(view.nodes, res.MEMORY),
        parts=tuple(parts),
        pending=tuple(pending_reasons(view.pending)),
    )


def _fill(nodes: Iterable[NodeRow], resource: str) -> float:
    existing = [row for row in nodes if not row.planned]
    allocatable = sum(row.allocatable.get(resource, 0) for row in existing)
    return sum(row.requested.get(resource, 0) for row in existing) / allocatable if allocatable else 0.0


def pending_reasons(pending: Iterable[PendingPod]) -> Iterable[PendingReason]:
    """How many pods wait for which reason, most frequent first; rare ones beyond fifty count as ``other``."""
    counts = Counter(pod.reason[:_MAX_REASON_LENGTH] for pod in pending).most_common()
    yield from (PendingReason(reason, count) for reason, count in counts[:_MAX_REASONS])
    if others := sum(count for _, count in counts[_MAX_REASONS:]):
        yield PendingReason("other", others)


class HistoryRecorder:
    """Writes the history of one controller process, while it leads."""

    def __init__(
        self,
        store: HistoryStore,
        observer: ClusterObserver,
        journal: Callable[[], tuple[JournalEntry, ...]],
        clock: Clock,
        interval: timedelta,
    ) -> None:
        self.store = store
        self._observer = observer
        self._journal = journal
        self._clock = clock
        self._interval = interval.total_seconds()
        self._interruptions: deque[InterruptionRecord] = deque(maxlen=_MAX_WAITING_INTERRUPTIONS)
        self._recorded: dict[str, DecisionRecord] = {}
        self._samples = 0
        self._bound: float | None = None
        self._fault = ""

    def loops(self, metrics: Metrics) -> Mapping[str, SingletonReconciler]:
        """What has to run, by name."""
        return {
            "history.decisions": SingletonReconciler("history.decisions", self.record_decisions, metrics),
            "history.samples": SingletonReconciler("history.samples", self.record_sample, metrics),
        }

    def on_event(self, event: ObjectEvent) -> None:
        """An event was published; those about interruptions are recorded with the next decisions."""
        if event.reason in INTERRUPTION_REASONS and event.involved_object.kind.name == "NodeClaim":
            name = event.involved_object.metadata.name
            self._interruptions.append(InterruptionRecord(self._clock.now(), event.reason, name, event.message))

    async def record_decisions(self) -> float:
        """Record decisions and interruptions that are new or changed; seconds until the next time."""
        given = await self._observer.observe()
        journal, taken = self._journal(), tuple(self._interruptions)
        changed = changed_decisions(given, journal, self._recorded)
        if (changed or taken) and await self._write(lambda: self._write_decisions(changed, taken)):
            self._remember(changed)
            for _ in taken:
                self._interruptions.popleft()
        return _DECISION_SECONDS

    def _write_decisions(self, changed: tuple[DecisionRecord, ...], taken: tuple[InterruptionRecord, ...]) -> None:
        self.store.add_decisions(changed)
        self.store.add_interruptions(taken)

    def _remember(self, records: Iterable[DecisionRecord]) -> None:
        for record in records:
            self._recorded.pop(record.decision_id, None)
            self._recorded[record.decision_id] = record
        while len(self._recorded) > _MAX_REMEMBERED_DECISIONS:
            del self._recorded[next(iter(self._recorded))]

    async def record_sample(self) -> float:
        """Record a sample of the cluster; seconds until the next time."""
        given = await self._observer.observe()
        with_bound = self._samples % _SAMPLES_PER_BOUND == 0
        self._samples += 1
        await self._write(lambda: self._write_sample(given, with_bound=with_bound))
        return self._interval

    def _write_sample(self, given: ConsoleInput, *, with_bound: bool) -> None:
        if with_bound:
            self._bound = price_bound_per_hour(given) or None if given.indexes else None
        self.store.add_sample(cluster_sample(ConsoleView(given), self._bound))

    async def _write(self, write: Callable[[], None]) -> bool:
        """Write in a thread; False where that failed, which is logged when it begins."""
        try:
            await asyncio.to_thread(write)
        except (sqlite3.Error, OSError) as error:
            if str(error) != self._fault:
                _log.error("the history cannot be written", file=str(self.store.file), error=str(error))
            self._fault = str(error)
            return False
        self._fault = ""
        return True
