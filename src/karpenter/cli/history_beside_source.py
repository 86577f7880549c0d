"""A cluster together with the decisions that a controller's history tells of."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from karpenter.cli.top_history import HistorySource, HistoryUnavailable
from karpenter.console.console_input import ConsoleInput
from karpenter.console.decision_rows import RecordedDecisions
from karpenter.console.viewer_source import ViewerSource

_HISTORY_SECONDS = 10.0


class HistoryBesideSource:
    """A source whose input has the recorded decisions of the last day; where they cannot be had, the last of them, and why.

    The cluster is current all the same, so that is no fault of the source.
    """

    def __init__(self, source: ViewerSource, history: HistorySource) -> None:
        self._source = source
        self._history = history
        self._recorded: RecordedDecisions | None = None
        self._history_fault = ""
        #: The input as the source gave it and as it was handed on: equal input stays the same object.
        self._given: ConsoleInput | None = None
        self._handed: ConsoleInput | None = None

    @property
    def title(self) -> str:
        """See ``ViewerSource.title``."""
        return self._source.title

    def current(self) -> ConsoleInput | None:
        """The cluster now, with the decisions of the history."""
        given = self._source.current()
        if given is None or (self._recorded is None and not self._history_fault):
            return given
        handed = self._handed
        if (
            handed is None
            or given is not self._given
            or handed.recorded is not self._recorded
            or handed.history_fault != self._history_fault
        ):
            handed = replace(given, recorded=self._recorded, history_fault=self._history_fault)
            self._given, self._handed = given, handed
        return handed

    def fault(self) -> str:
        """What is wrong with the cluster."""
        return self._source.fault()

    async def run(self) -> None:
        """Keep both current until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._source.run())
            group.create_task(self._keep_history())

    async def _keep_history(self) -> None:
        while True:
            try:
                self._recorded = (await asyncio.to_thread(self._history.recent)).decisions
                self._history_fault = ""
            except HistoryUnavailable as error:
                self._history_fault = str(error)
            await asyncio.sleep(_HISTORY_SECONDS)
