"""The history of a manager: made where a file is set, fed by what the controllers publish and remember."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from karpenter.controller_context import ControllerContext
from karpenter.disruption.decision_journal import JournalEntry
from karpenter.history.cluster_observer import ClusterObserver
from karpenter.history.history_recorder import HistoryRecorder
from karpenter.history.history_store import HistoryBounds, HistoryStore
from karpenter.settings import Settings


def history_recorder(
    settings: Settings,
    context: ControllerContext,
    observer: ClusterObserver,
    journal: Callable[[], tuple[JournalEntry, ...]],
) -> HistoryRecorder | None:
    """The recorder of the file that the settings name; None where no history is kept."""
    if not settings.history_file:
        return None
    bounds = HistoryBounds(settings.history_max_age, settings.history_max_bytes)
    store = HistoryStore(Path(settings.history_file), bounds)
    recorder = HistoryRecorder(store, observer, journal, context.clock, settings)
    context.events.subscribe(recorder.on_event)
    return recorder
