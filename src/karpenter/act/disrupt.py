"""Beginning disruption commands: close the machines, buy what takes their place, and only then take them out (DIS §12).

The order is what keeps pods safe. Replacements are created while the candidates still count as capacity, or provisioning would
buy for their pods a second time; as soon as they exist, the candidates give no capacity any more and their pods are planned on
what was bought. Names of replacements are derived from the pods they are for, so that a creation which is repeated buys nothing
twice. What waits and deletes is ``undertakings``.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

import msgspec
import structlog

from karpenter.act import marking
from karpenter.act.ceiling import Pace
from karpenter.act.creation import Purpose, create
from karpenter.act.drain import pods_on_node
from karpenter.act.events import NORMAL, Happening, about_pod
from karpenter.act.journal import Journal
from karpenter.act.marking import Note
from karpenter.act.undertaking import Undertaking
from karpenter.act.undertakings import Undertakings
from karpenter.act.world import World
from karpenter.api.core import Pod
from karpenter.cluster.nodes import NodeView
from karpenter.decide import static
from karpenter.decide.disrupt.command import Candidate, Command
from karpenter.decide.plan import PlacedPods, PlannedClaim
from karpenter.kube.errors import KubeError
from karpenter.model import pods

_AT_ONCE = 64
_log = structlog.get_logger()


class _Refused(Exception):
    """The command cannot be begun now."""


class Disruptor:
    """Begins commands, and undoes what an earlier process left half-done."""

    def __init__(self, world: World, undertakings: Undertakings, journal: Journal, pace: Pace) -> None:
        self._world = world
        self._undertakings = undertakings
        self._journal = journal
        self._ceiling = pace.ceiling
        self._window = pace.nomination_window
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def begin(self, command: Command) -> str:
        """Begin a command; its identity, which is to be looked at from now on, or empty where it could not be begun.

        Nothing stays half-done: what was marked is freed, what was bought in vain taken back.
        """
        undertaking = Undertaking(str(uuid.uuid4()), command, asyncio.get_running_loop().time())
        if not self._undertakings.hold(undertaking):
            _log.error(
                "disrupting node(s) failed", error="a node is part of another command", **undertaking.described()
            )
            return ""
        self._journal.begin(undertaking.entry(self._world.clock.now()))
        _log.info("disrupting node(s)", **undertaking.described())
        try:
            await self._begin(undertaking)
        except (_Refused, KubeError) as error:
            await self._undertakings.call_off(undertaking, str(error))
            return ""
        except Exception as error:
            # A mistake of ours must not leave machines held for ever.
            await self._undertakings.call_off(undertaking, repr(error))
            raise
        self._count(undertaking)
        return undertaking.identity

    async def _begin(self, undertaking: Undertaking) -> None:
        """Raises ``_Refused`` and ``KubeError``."""
        if undertaking.command.replacements:
            self._check_room(undertaking.command.replacements)
        else:
            self._undertakings.mark(undertaking)
        await self._close_all(undertaking)
        if undertaking.command.replacements:
            await self._buy(undertaking)
            self._undertakings.mark(undertaking)
        self._expect(undertaking)

    # -- candidates -------------------------------------------------------------------------------------------------------

    async def _close_all(self, undertaking: Undertaking) -> None:
        """Close the machines and say why. One that cannot be closed, or got pods meanwhile, stays; with replacements all do."""
        candidates = tuple(undertaking.remaining.values())
        note = Note(undertaking.command.reason.value, undertaking.notes_on_candidates())
        obstacles = await asyncio.gather(*(self._close(candidate, note) for candidate in candidates))
        staying = [candidate for candidate, obstacle in zip(candidates, obstacles, strict=True) if obstacle]
        if staying and (undertaking.command.replacements or len(staying) == len(candidates)):
            raise _Refused("; ".join(obstacle for obstacle in obstacles if obstacle))
        await self._undertakings.release(undertaking, staying)

    async def _close(self, candidate: Candidate, note: Note) -> str:
        """Close one machine; what prevents it, empty when nothing does."""
        view = candidate.view
        assert view.node is not None
        assert view.claim is not None
        async with self._slots:
            try:
                await marking.close(self._world, view.node)
                if await self._has_new_pods(view):
                    return f"pods have come to node {view.name}"
                await marking.explain(self._world, view.claim, note)
            except KubeError as error:
                return f"node {view.name}: {error}"
        return ""

    async def _has_new_pods(self, view: NodeView) -> bool:
        """Whether pods came that the decision did not see, asked of the API server: the watch may be behind, the taint is not."""
        assert view.node is not None
        known = {pod.metadata.uid for pod in view.pods}
        found = await pods_on_node(self._world, view.node.metadata.name)
        return any(pods.needs_a_place(pod) and pod.metadata.uid not in known for pod in found)

    # -- replacements -----------------------------------------------------------------------------------------------------

    def _check_room(self, replacements: Sequence[PlannedClaim]) -> None:
        """Limits of NodePools (DIS-304), and how many claims may be created a minute. Raises ``_Refused``."""
        views = self._world.state.views()
        for name in sorted({planned.node_pool for planned in replacements}):
            pool = self._world.state.pool(name)
            if pool is None:
                raise _Refused(f"NodePool {name} is gone")
            exceeded = static.exceeded(pool, views)
            if exceeded:
                raise _Refused(f"NodePool {name} is beyond its limits on {', '.join(exceeded)}")
        now = self._world.clock.now()
        if self._ceiling.room(now) < len(replacements):
            raise _Refused(f"no more than {self._ceiling.per_minute} nodeclaims are created within a minute")
        self._ceiling.take(len(replacements), now)

    async def _buy(self, undertaking: Undertaking) -> None:
        """Create all replacements; raises ``_Refused`` if one of them could not be."""
        notes = undertaking.notes_on_replacements()
        reason = undertaking.command.reason.lower()
        created = (self._create(planned, notes, reason) for planned in undertaking.command.replacements)
        faults = [fault for fault in await asyncio.gather(*created) if fault]
        if faults:
            raise _Refused("; ".join(faults))

    async def _create(self, planned: PlannedClaim, notes: dict[str, str], reason: str) -> str:
        claim = planned.claim
        meta = msgspec.structs.replace(claim.metadata, annotations={**claim.metadata.annotations, **notes})
        async with self._slots:
            try:
                await create(
                    self._world,
                    msgspec.structs.replace(claim, metadata=meta),
                    Purpose(reason, planned.instance_types),
                )
            except KubeError as error:
                return f"creating nodeclaim {planned.name}: {error}"
        return ""

    def _expect(self, undertaking: Undertaking) -> None:
        """Plan the candidates' pods where the decision wants them, so that no pass plans them elsewhere (DIS-306)."""
        until = self._world.clock.now() + self._window
        command = undertaking.command
        for planned in command.replacements:
            self._world.state.nominate(planned.name, until)
            self._plan(planned.name, planned.pods)
        for placed in command.placed:
            self._world.state.nominate(placed.key, until)
            self._plan(placed.key, placed.pods)
            self._say_nominated(placed)

    def _plan(self, key: str, meant: Sequence[Pod]) -> None:
        self._world.state.planned.update({pod.metadata.uid: key for pod in meant})

    def _say_nominated(self, placed: PlacedPods) -> None:
        text = f"Pod should schedule on: node/{placed.node}"
        self._world.events.publish(*(Happening(about_pod(pod), NORMAL, "Nominated", text) for pod in placed.pods))

    def _count(self, undertaking: Undertaking) -> None:
        """One decision, counted as a whole and once for every NodePool it concerns (DIS-412, DIS-413)."""
        metrics = self._world.metrics
        metrics.voluntary_disruption_decisions_total.labels(**undertaking.labels).inc()
        for pool in undertaking.command.pools:
            metrics.voluntary_disruption_decisions_by_nodepool_total.labels(nodepool=pool, **undertaking.labels).inc()

    # -- leftovers --------------------------------------------------------------------------------------------------------

    async def tidy(self, views: Sequence[NodeView]) -> int:
        """Free machines an earlier process had chosen and never removed (DIS-054); how many were found."""
        left = [view for view in views if marking.is_left_behind(view) and not self._undertakings.holds(view.key)]
        await asyncio.gather(*(self._undertakings.free(view) for view in left))
        return len(left)
