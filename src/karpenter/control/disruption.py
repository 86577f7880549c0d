"""The disruption loop: so far emptiness. Look every ten seconds, wait a quarter of a minute, look again, act (DIS §3, §11)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from karpenter.act.disrupt import Disruptor
from karpenter.act.world import World
from karpenter.control.queue import Singleton
from karpenter.decide.disrupt import Removal, empty_nodes

#: Pause between passes that found nothing (DIS-020), and between choosing and acting (DIS-023).
POLL_SECONDS = 10.0
VALIDATION_SECONDS = 15.0
_log = structlog.get_logger()


class DisruptionLoop:
    """Removes empty nodes, within budgets. ``is_blind`` tells whether some watch is failing now."""

    def __init__(self, world: World, is_blind: Callable[[], bool]) -> None:
        self._world = world
        self._is_blind = is_blind
        self._disruptor = Disruptor(world)

    async def run(self) -> None:
        """Pass after pass, until cancelled."""
        passes = Singleton("disruption", self._world.metrics)
        while True:
            with passes.one_pass():
                has_removed = await self.pass_once()
            if not has_removed:
                await asyncio.sleep(POLL_SECONDS)

    async def pass_once(self) -> bool:
        """One pass; whether it removed anything. Nothing is judged while a watch brings no news: the picture may be old."""
        if self._is_blind():
            return False
        await self._disruptor.tidy(self._world.state.views())
        chosen = self._choose()
        if not chosen:
            return False
        await asyncio.sleep(VALIDATION_SECONDS)
        names = {removal.view.key for removal in chosen}
        still = [removal for removal in self._choose() if removal.view.key in names]
        if not still or self._is_blind():
            self._world.metrics.voluntary_disruption_failed_validations_total.labels(consolidation_type="empty").inc()
            _log.debug("abandoning empty node consolidation attempt due to pod churn, command is no longer valid")
            return False
        return await self._disruptor.remove(still) > 0

    def _choose(self) -> tuple[Removal, ...]:
        started = time.perf_counter()
        now = self._world.clock.now()
        state = self._world.state
        found = empty_nodes(self._world.virtual.into(state.snapshot()), now, lambda key: state.is_nominated(key, now))
        metrics = self._world.metrics
        metrics.voluntary_disruption_decision_evaluation_duration_seconds.labels(
            reason="empty", consolidation_type="empty"
        ).observe(time.perf_counter() - started)
        metrics.voluntary_disruption_eligible_nodes.labels(reason="empty").set(found.eligible)
        self._disruptor.say(found)
        return found.removals
