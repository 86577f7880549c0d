"""The provisioning loop: wait for a batch, take a snapshot, decide, carry out (SCH §§1-2). Passes never overlap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from karpenter.act.provision import Executor, Outcome
from karpenter.act.world import World
from karpenter.api.karpenter import NodePool
from karpenter.catalog.index import TypeIndex, well_known_of
from karpenter.catalog.types import InstanceType
from karpenter.cluster.snapshot import Snapshot
from karpenter.control.batcher import Batcher
from karpenter.control.queue import Singleton
from karpenter.control.wishes import Wishes
from karpenter.decide.buffers import without_virtual
from karpenter.decide.plan import Plan
from karpenter.decide.provision import Options, PreferencePolicy, provision
from karpenter.model import labels
from karpenter.providers.contract import NodeClassNotReady, ProviderError
from karpenter.providers.overlaid import AwaitingOverlays

#: Pods still waiting trigger again after this long (SCH-001), and so does at the latest a pass whose claims failed.
RETRY_SECONDS = 10.0
_FIRST_RETRY_SECONDS = 1.0
_log = structlog.get_logger()


class Indexes:
    """Instance types of each pool, prepared once per distinct list."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._prepared: dict[int, tuple[tuple[InstanceType, ...], TypeIndex]] = {}
        #: What was said of each pool last: it is said again when it changes.
        self._said: dict[str, str] = {}

    async def of_pools(self, pools: tuple[NodePool, ...]) -> dict[str, TypeIndex]:
        """Prepared types by pool name; pools whose types cannot be resolved are left out (SCH-115)."""
        found: dict[str, TypeIndex] = {}
        used: set[int] = set()
        for pool in pools:
            if not self._world.manages(pool):
                continue
            try:
                types = await self._world.provider.instance_types(pool)
            except AwaitingOverlays:
                self._say(pool, "skipping, awaiting nodeoverlay evaluation")
                continue
            except NodeClassNotReady:
                continue  # as every class begins: its own conditions and the pool's say what is missing
            except ProviderError as error:
                self._say(pool, "skipping, unable to resolve instance types", str(error))
                continue
            self._say(pool, "" if types else "skipping, no resolved instance types found")
            found[pool.metadata.name] = self._index(types)
            used.add(id(types))
        self._prepared = {key: value for key, value in self._prepared.items() if key in used}
        return found

    def _say(self, pool: NodePool, what: str, error: str = "") -> None:
        """Say why a pool takes no part, when that is news; nothing where it does."""
        name = pool.metadata.name
        if self._said.get(name, "") != what + error:
            self._said[name] = what + error
            if error:
                _log.error(what, NodePool={"name": name}, error=error)
            elif what:
                _log.info(what, NodePool={"name": name})

    def _index(self, types: tuple[InstanceType, ...]) -> TypeIndex:
        known = self._prepared.get(id(types))
        if known is None or known[0] is not types:
            known = (types, TypeIndex(types, labels.WELL_KNOWN | well_known_of(types)))
            self._prepared[id(types)] = known
        return known[1]


class Provisioner:
    """Runs provisioning passes. ``options`` are the decision's settings; ``tell`` hears of every plan and what it was made of."""

    def __init__(
        self,
        world: World,
        batcher: Batcher,
        executor: Executor,
        options: Options,
        tell: Callable[[Snapshot, Plan], None],
    ) -> None:
        self._world = world
        self._tell = tell
        self._passes = Singleton("provisioner", world.metrics)
        self._batcher = batcher
        self._executor = executor
        self._options = options
        self._indexes = Indexes(world)
        self._wishes = Wishes()
        self.last_plan = Plan()
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._retry_at: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Pass after pass, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._remind())
            while True:
                await self._batcher.wait()
                with self._passes.one_pass():
                    await self.decide_once()

    async def _remind(self) -> None:
        """Whoever waits is looked at again and again, and so are the pods of machines that leave (SCH-001, SCH-002)."""
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            for pod in self._world.state.waiting_pods():
                self._batcher.trigger(pod.metadata.uid)
            for view in self._world.state.views():
                if view.leaving and view.node is not None and view.pods:
                    self._batcher.trigger(view.node.metadata.uid)

    async def decide_once(self) -> Plan:
        """One pass: snapshot, decision, execution."""
        ours = tuple(pool for pool in self._world.state.pools() if self._world.manages(pool))
        indexes = await self._indexes.of_pools(ours)
        # From here to the plan nothing may wait: the snapshot would grow old.
        started = time.perf_counter()
        snapshot = self._world.virtual.into(self._world.state.snapshot())
        waiting = sum(len(group.pods) for group in snapshot.groups)
        _log.debug("computing scheduling decision for provisionable pod(s)", **{"pending-pods": waiting})
        if self._options.preferences is PreferencePolicy.RESPECT:
            self._wishes.hear(snapshot.groups, self._world.clock.now())
        plan = provision(snapshot, indexes, self._world.clock.now(), self._options)
        seconds = time.perf_counter() - started
        self._world.metrics.scheduler_scheduling_duration_seconds.labels(controller="provisioner").observe(seconds)
        outcome = await self._executor.carry_out(without_virtual(plan), seconds)
        self.last_plan = plan
        self._tell(snapshot, plan)
        self._come_back(self._pause(outcome))
        return plan

    def _pause(self, outcome: Outcome) -> float | None:
        """How soon to plan again without further news, in seconds; None when nothing is left to do.

        After failed claims soon, with growing pauses while they keep failing (SCH-008, SCH-630).
        """
        if outcome.failures:
            pause = self._retry_seconds
            self._retry_seconds = min(RETRY_SECONDS, 2 * pause)
            return pause
        self._retry_seconds = _FIRST_RETRY_SECONDS
        return outcome.room_in_seconds if outcome.deferred else None

    def _come_back(self, seconds: float | None) -> None:
        if self._retry_at is not None:
            self._retry_at.cancel()
        loop = asyncio.get_running_loop()
        self._retry_at = (
            None if seconds is None else loop.call_later(seconds, self._batcher.trigger, "claims to create")
        )
