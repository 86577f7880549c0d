"""The commands under way: wait for replacements, delete what they replace, or call the whole off (DIS §12).

Work is keyed by the command, not by one of its machines: a machine that goes by itself meanwhile (expired, interrupted, deleted
by hand) takes nothing else with it, and every command ends, one way or the other. Nothing of this outlives the process. A later
one finds tainted machines that nobody pursues and frees them, and replacements as machines like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta

import structlog

from karpenter.act import counting, marking
from karpenter.act.events import NORMAL, Happening, about_claim, about_node
from karpenter.act.journal import Journal, Outcome
from karpenter.act.promises import Promises
from karpenter.act.regrets import Regrets
from karpenter.act.undertaking import Undertaking
from karpenter.act.undone import Undone
from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.cluster.nodes import NodeView
from karpenter.decide.disrupt.command import Candidate, ConsolidationType
from karpenter.kube.errors import KubeError, NotFound
from karpenter.model import conditions, pods

#: How often a command is looked at (DIS-031).
LOOK_SECONDS = 1.0
#: How long a command may take for each machine in all commands, at least and at most (DIS-030).
_SECONDS_PER_MACHINE, _SHORTEST_SECONDS, _LONGEST_SECONDS = 0.08, 600.0, 3600.0
#: How long pods are expected on a replacement after it was last looked at.
_EXPECTED = timedelta(seconds=20)
_AT_ONCE = 64
_FAILED = "failed terminating nodes while executing a disruption command"
_log = structlog.get_logger()


class Memory:
    """What is remembered of commands beyond their end."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.journal = Journal()
        self.regrets = Regrets(now)
        self.undone = Undone(self.regrets, now)


class Undertakings:
    """All commands under way, by identity; and which machines they hold."""

    def __init__(self, world: World, memory: Memory, promises: Promises) -> None:
        self._world = world
        self._promises = promises
        self._journal = memory.journal
        self._regrets = memory.regrets
        self._undone = memory.undone
        self._by_identity: dict[str, Undertaking] = {}
        self._held: dict[str, str] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    # -- who is held ----------------------------------------------------------------------------------------------------

    def holds(self, key: str) -> bool:
        """Whether a machine is part of a command under way (DIS-070)."""
        return key in self._held

    @property
    def held(self) -> frozenset[str]:
        """The machines of all commands under way."""
        return frozenset(self._held)

    def hold(self, undertaking: Undertaking) -> bool:
        """Take the command's machines; False, and nothing is done, where another command has one of them (DIS-300)."""
        if any(key in self._held for key in undertaking.remaining):
            return False
        self._by_identity[undertaking.identity] = undertaking
        self._held.update(dict.fromkeys(undertaking.remaining, undertaking.identity))
        for key in undertaking.remaining:
            self._world.state.choose(key)
        self._journal.begin(undertaking.entry(self._world.clock.now()))
        return True

    def mark(self, undertaking: Undertaking) -> None:
        """From now on the machines give no capacity any more (DIS-305)."""
        for key in undertaking.remaining:
            self._world.state.mark(key)

    def _forget(self, undertaking: Undertaking) -> None:
        self._by_identity.pop(undertaking.identity, None)
        for candidate in undertaking.command.candidates:
            if self._held.get(candidate.key) == undertaking.identity:
                del self._held[candidate.key]

    # -- the worker -----------------------------------------------------------------------------------------------------

    async def look(self, identity: str) -> float | None:
        """Take a command a step further; seconds until the next look, None when it has ended."""
        undertaking = self._by_identity.get(identity)
        if undertaking is None:
            return None
        if any(not self._is_going(key) for key in undertaking.remaining):
            lost = await self._await_replacements(undertaking)
            if lost:
                await self.call_off(undertaking, lost)
                return None
            if any(undertaking.awaited()):
                return await self._wait(undertaking)
        self._expect_pods(undertaking)
        if not undertaking.is_promised:
            undertaking.is_promised = True
            self._promises.make(undertaking.command)
        await self._delete_all(undertaking)
        if undertaking.remaining:
            return await self._wait(undertaking)
        self._succeed(undertaking)
        return None

    async def _wait(self, undertaking: Undertaking) -> float | None:
        if asyncio.get_running_loop().time() - undertaking.began <= patience_seconds(len(self._held)):
            return LOOK_SECONDS
        await self.call_off(undertaking, "command reached its timeout")
        return None

    async def _await_replacements(self, undertaking: Undertaking) -> str:
        """Look at the replacements (DIS-310); what makes the command hopeless, empty when nothing does.

        One that was ready and goes meanwhile counts, too: the candidates' pods would have nowhere to go.
        """
        for name in undertaking.replacements:
            claim = self._world.state.claim(name) or await self._read(name)
            if claim is None or claim.metadata.deletion_timestamp is not None:
                return f"replacement nodeclaim {name} is gone"
            if name in undertaking.ready:
                continue
            reason = undertaking.command.reason.value
            about = about_claim(claim.metadata)
            self._world.events.publish(
                Happening(about, NORMAL, "DisruptionLaunching", f"Launching NodeClaim: {reason}", (reason,))
            )
            self._world.state.nominate(name, self._world.clock.now() + _EXPECTED)
            if conditions.is_true(claim.status.conditions, "Initialized"):
                undertaking.ready.add(name)
            else:
                text = "Waiting on readiness to continue disruption"
                self._world.events.publish(Happening(about, NORMAL, "DisruptionWaitingReadiness", text))
        return ""

    async def _read(self, name: str) -> NodeClaim | None:
        try:
            return await self._world.kube.get(NODE_CLAIM, name)
        except NotFound:
            return None

    def _is_going(self, key: str) -> bool:
        """Whether a claim is on its way out for good, or gone."""
        claim = self._world.state.claim(key)
        return claim is None or claim.metadata.deletion_timestamp is not None

    def _expect_pods(self, undertaking: Undertaking) -> None:
        """The pods come only now: machines meant for them are not taken for empty."""
        until = self._world.clock.now() + _EXPECTED
        for name in (*undertaking.replacements, *(placed.key for placed in undertaking.command.placed)):
            self._world.state.nominate(name, until)

    # -- the end of a command ---------------------------------------------------------------------------------------------

    async def _delete_all(self, undertaking: Undertaking) -> None:
        """Delete the claims of all candidates; those that cannot be deleted now are left for the next look (DIS-311)."""
        await asyncio.gather(
            *(self._delete(undertaking, candidate) for candidate in tuple(undertaking.remaining.values()))
        )

    async def _delete(self, undertaking: Undertaking, candidate: Candidate) -> None:
        claim = candidate.view.claim
        assert claim is not None
        if self._is_going(candidate.key):
            undertaking.remaining.pop(candidate.key, None)
            return
        async with self._slots:
            try:
                await self._world.kube.delete(NODE_CLAIM, candidate.key, uid=claim.metadata.uid)
            except NotFound:
                self._world.state.unmark(candidate.key)
                undertaking.remaining.pop(candidate.key, None)
                return
            except KubeError as error:
                _log.debug("deleting nodeclaim failed", NodeClaim={"name": candidate.key}, error=str(error))
                return
        undertaking.remaining.pop(candidate.key, None)
        self._tell(undertaking, candidate, claim)

    def _tell(self, undertaking: Undertaking, candidate: Candidate, claim: NodeClaim) -> None:
        """A machine's end has begun: counted and said (DIS-401, DIS-402, DIS-394)."""
        command = undertaking.command
        pool = self._world.state.pool(candidate.pool)
        is_consolidation = command.consolidation_type is not ConsolidationType.NONE
        policy = pool.spec.disruption.consolidation_policy if pool is not None and is_consolidation else ""
        counting.disrupted(self._world, claim, counting.snake_case(command.reason), policy)
        text = f"Disrupting Node: {command.reason}"
        subjects = [about_claim(claim.metadata)]
        if candidate.view.node is not None:
            subjects.append(about_node(candidate.view.node.metadata))
        self._world.events.publish(
            *(Happening(about, NORMAL, "DisruptionTerminating", text, (command.reason.value,)) for about in subjects)
        )

    def _succeed(self, undertaking: Undertaking) -> None:
        command = undertaking.command
        self._forget(undertaking)
        self._regrets.forgive(command.reason, (*(item.key for item in command.candidates), *pool_names(command.pools)))
        self._journal.end(undertaking.identity, Outcome.SUCCEEDED, self._world.clock.now())
        self._undone.moved(command)
        _log.debug("command succeeded", **undertaking.described())

    async def call_off(self, undertaking: Undertaking, cause: str) -> None:
        """Give a command up: free its machines, take back replacements nobody needs, remember not to try that soon (DIS-314)."""
        command = undertaking.command
        failed = sum(1 for _ in undertaking.awaited()) or 1
        self._world.metrics.voluntary_disruption_queue_failures_total.labels(**undertaking.labels).inc(failed)
        _log.error(_FAILED, error=cause, **undertaking.described())
        self._regrets.note(command.reason, (candidate.key for candidate in command.candidates), cause)
        if command.replacements:
            self._regrets.note(command.reason, pool_names(command.pools), cause)
        self._journal.end(undertaking.identity, Outcome.FAILED, self._world.clock.now(), cause)
        await self.release(undertaking, undertaking.remaining.values())
        await asyncio.gather(*(self._take_back(undertaking, name) for name in undertaking.replacements))
        self._forget(undertaking)

    async def release(self, undertaking: Undertaking, candidates: Iterable[Candidate]) -> None:
        """These stay: unmark and untaint them. What cannot be written now is done by the next pass (DIS-054)."""
        staying = [candidate for candidate in candidates if not self._is_going(candidate.key)]
        for candidate in staying:
            self._world.state.unmark(candidate.key)
        await asyncio.gather(*(self.free(candidate.view) for candidate in staying))
        undertaking.drop([candidate.key for candidate in staying])
        for candidate in staying:
            self._held.pop(candidate.key, None)

    async def free(self, view: NodeView) -> None:
        """Undo taint and reason; a failure is only told."""
        async with self._slots:
            try:
                await marking.free(self._world, view)
            except KubeError as error:
                _log.debug("freeing node failed", Node={"name": view.name}, error=str(error))

    async def _take_back(self, undertaking: Undertaking, name: str) -> None:
        """Delete a replacement unless somebody else is meant for it by now (DIS §12 Beyond)."""
        claim = self._world.state.claim(name)
        if claim is None or claim.metadata.deletion_timestamp is not None or self._is_used(undertaking, claim):
            return
        async with self._slots:
            try:
                await self._world.kube.delete(NODE_CLAIM, name, uid=claim.metadata.uid)
            except KubeError as error:
                _log.debug("deleting nodeclaim failed", NodeClaim={"name": name}, error=str(error))
                return
        counting.disrupted(self._world, claim, "unused_replacement")

    def _is_used(self, undertaking: Undertaking, claim: NodeClaim) -> bool:
        """Whether pods run on a replacement, or others are planned there than those that stay where they are."""
        state = self._world.state
        if any(pods.needs_a_place(pod) for pod in state.pods_on(claim.status.node_name)):
            return True
        staying = (item for item in undertaking.command.candidates if not self._is_going(item.key))
        own = {pod.metadata.uid for candidate in staying for pod in candidate.pods}
        return any(key == claim.metadata.name and uid not in own for uid, key in state.planned.items())


def patience_seconds(machines: int) -> float:
    """How long a command may take while there are so many machines in all commands (DIS-030)."""
    return min(_LONGEST_SECONDS, max(_SHORTEST_SECONDS, _SECONDS_PER_MACHINE * machines))


def pool_names(pools: Iterable[str]) -> tuple[str, ...]:
    """Under which names regrets remember pools."""
    return tuple(f"nodepool/{pool}" for pool in pools)
