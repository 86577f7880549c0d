"""Collects the history beside the controllers: what they decided, what the cloud took away, and samples of the cluster.

Records are made from frozen data and written in threads. A file that cannot be written is logged once, and costs entries only.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from karpenter.console.console_input import ConsoleInput
from karpenter.console.console_view import ConsoleView
from karpenter.console.decisions import INTERRUPTION_REASONS
from karpenter.disruption.decision_journal import JournalEntry
from karpenter.history.cluster_observer import ClusterObserver
from karpenter.history.decision_records import SETTLING, changed_decisions
from karpenter.history.history_records import (
    DecisionRecord,
    InterruptionRecord,
)
from karpenter.history.history_settings import HistorySettings
from karpenter.history.history_store import HistoryStore
from karpenter.history.sampling import ComparedPrices, cluster_sample, compared_prices
from karpenter.metrics import Metrics
from karpenter.model.clock import Clock
from karpenter.runtime.events import ObjectEvent
from karpenter.runtime.reconciler import SingletonReconciler
from karpenter.state.state_node import StateNode

_DECISION_SECONDS = 5.0
#: The prices to compare with are computed with every so many samples.
_SAMPLES_PER_COMPARISON = 5
_MAX_WAITING_INTERRUPTIONS = 1000
_MAX_REMEMBERED_DECISIONS = 2000
_log = structlog.get_logger()


class HistoryRecorder:
    """Writes the history of one controller process, while it leads."""

    def __init__(
        self,
        store: HistoryStore,
        observer: ClusterObserver,
        journal: Callable[[], tuple[JournalEntry, ...]],
        clock: Clock,
        settings: HistorySettings,
    ) -> None:
        self.store = store
        self._observer = observer
        self._journal = journal
        self._clock = clock
        self._interval = settings.history_interval.total_seconds()
        self._cost_label = settings.history_cost_label
        self._interruptions: deque[InterruptionRecord] = deque(maxlen=_MAX_WAITING_INTERRUPTIONS)
        self._recorded: dict[str, DecisionRecord] = {}
        self._nodes_before: Sequence[StateNode] = ()
        #: Whether what an earlier process recorded was read.
        self._resumed = False
        self._samples = 0
        self._compared = ComparedPrices()
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
        if not self._resumed and not await self._in_thread(self._read_recorded):
            return _DECISION_SECONDS
        given = await self._observer.observe()
        journal, taken = self._journal(), tuple(self._interruptions)
        changed = changed_decisions(given, journal, self._recorded, self._nodes_before)
        self._nodes_before = given.snapshot.nodes
        if (changed or taken) and await self._in_thread(lambda: self._write_decisions(changed, taken)):
            self._remember(changed)
            for _ in taken:
                self._interruptions.popleft()
        return _DECISION_SECONDS

    def _read_recorded(self) -> None:
        """What an earlier process left: decisions that may still change, and those it did not see the end of."""
        limit = _MAX_REMEMBERED_DECISIONS // 2
        recent = self.store.decisions(self._clock.now() - SETTLING, limit)
        self._remember((*reversed(recent), *self.store.decisions_under_way(limit)))
        self._resumed = True

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
        compares = self._samples % _SAMPLES_PER_COMPARISON == 0
        self._samples += 1
        await self._in_thread(lambda: self._write_sample(given, compares=compares))
        return self._interval

    def _write_sample(self, given: ConsoleInput, *, compares: bool) -> None:
        if compares:
            self._compared = compared_prices(given)
        self.store.add_sample(cluster_sample(ConsoleView(given), self._compared, self._cost_label))

    async def _in_thread(self, work: Callable[[], None]) -> bool:
        """Read or write the file in a thread; False where that failed, which is logged when it begins."""
        try:
            await asyncio.to_thread(work)
        except (sqlite3.Error, OSError) as error:
            if str(error) != self._fault:
                _log.error("the history cannot be written", file=str(self.store.file), error=str(error))
            self._fault = str(error)
            return False
        self._fault = ""
        return True
