"""The life of a NodeClaim from creation to the removal of its finalizer (OPS §1).

One look takes every step that can be taken, in the order of ``Lifecycle._steps``; then what changed is written. A look never acts
on a picture older than its own last write: it waits until that write has come back through the watch, which is what the
reference's one-second sleep is for.

Expiration, hydration, drift and the consistency check are steps here and not controllers of their own: one writer per claim
means that no two of them meet, and that a claim is written once where several things changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import structlog

from karpenter.act import expire, quiet
from karpenter.act.consistency import Consistency
from karpenter.act.daemons import DaemonRoom
from karpenter.act.draft import Draft
from karpenter.act.drift import DriftWatch
from karpenter.act.events import WARNING, Happening, about_claim
from karpenter.act.finalise import Finaliser
from karpenter.act.hydrate import Hydrator
from karpenter.act.initialise import Initialiser
from karpenter.act.launch import Launcher
from karpenter.act.liveness import TIMEOUTS, Liveness, Timeouts
from karpenter.act.nominate import Nominating
from karpenter.act.register import Registrar
from karpenter.act.troubles import Troubles
from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.model import labels, validation
from karpenter.providers.contract import ProviderError

#: How long a look waits to see its own last write before it trusts the watch again.
_OWN_WRITE_SECONDS = 5.0
#: How long a claim that was given up may go on looking as if it had not been.
_OWN_DELETION_SECONDS = 60.0
#: How soon to look again at something another writer changed in between.
_CHANGED_MEANWHILE_SECONDS = 0.2
_log = structlog.get_logger()

_Step = Callable[[Draft], Awaitable[None]]


class Lifecycle:
    """Takes claims through their life, one look at a time."""

    def __init__(self, world: World, nominator: Nominating, timeouts: Timeouts = TIMEOUTS) -> None:
        self._world = world
        self._nominator = nominator
        self._finaliser = Finaliser(world)
        self._launcher = Launcher(world)
        registrar, initialiser = Registrar(world, nominator), Initialiser(world)
        hydrator, consistency, troubles = Hydrator(world), Consistency(world), Troubles(world)
        self._drift = DriftWatch(world)
        self._steps: tuple[_Step, ...] = (
            partial(expire.step, world=world),
            hydrator.claim,
            self._launcher.step,
            registrar.step,
            initialiser.step,
            Liveness(world, timeouts).step,
            hydrator.node,
            consistency.step,
            troubles.step,
            partial(quiet.step, world=world),
            DaemonRoom(world).step,
            self._drift.step,
        )
        self._forgetful = (self._launcher, registrar, initialiser, consistency, troubles, self._drift)
        self._unseen: dict[str, tuple[str, float]] = {}
        self._given_up: dict[str, tuple[str, float]] = {}

    def observed(self, claim: NodeClaim) -> None:
        """The watch delivered this version of a claim."""
        version, _ = self._unseen.get(claim.metadata.name, ("", 0.0))
        if version == claim.metadata.resource_version:
            del self._unseen[claim.metadata.name]

    def class_changed(self) -> None:
        """A node class was edited, of whichever kind."""
        self._drift.class_changed()

    def forget(self, name: str) -> None:
        """The claim is gone."""
        self._unseen.pop(name, None)
        self._given_up.pop(name, None)
        for memory in self._forgetful:
            memory.forget(name)

    async def look(self, name: str) -> float | None:
        """Take the next steps of one claim; seconds until the next look, None to wait for events.

        Raises ``KubeError`` or ``ProviderError`` when a step failed and should be retried with back-off.
        """
        claim = self._world.state.claim(name)
        if claim is None or not self._world.manages(claim):
            return None
        if self._is_behind(name):
            return _OWN_WRITE_SECONDS
        with structlog.contextvars.bound_contextvars(NodeClaim={"name": name}, **_known(claim)):
            try:
                return await self._look(claim)
            except NotFound:
                return None
            except Conflict:
                return _CHANGED_MEANWHILE_SECONDS

    def _is_behind(self, name: str) -> bool:
        _, until = self._unseen.get(name, ("", 0.0))
        if until and until <= asyncio.get_running_loop().time():
            del self._unseen[name]
        return name in self._unseen

    async def _look(self, claim: NodeClaim) -> float | None:
        if claim.metadata.deletion_timestamp is not None:
            return await self._finaliser.look(claim, self._launcher.bought(claim))
        if self._was_given_up(claim):
            return _OWN_DELETION_SECONDS
        if labels.TERMINATION_FINALIZER not in claim.metadata.finalizers:
            finalizers = [*claim.metadata.finalizers, labels.TERMINATION_FINALIZER]
            await self._write_finalizers(claim, finalizers)
            return None
        draft = Draft(claim, self._world.clock.now())
        draft.refresh()
        await self._take_steps(draft)
        if draft.given_up:
            until = asyncio.get_running_loop().time() + _OWN_DELETION_SECONDS
            self._given_up[draft.name] = draft.claim.metadata.uid, until
            return None
        if not draft.gone:
            self._expect(draft.name, await draft.write(self._world))
            if draft.expected_node:
                await self._nominator.nominate_ahead(draft.name, draft.expected_node)
        return _outcome(draft)

    async def _take_steps(self, draft: Draft) -> None:
        """One step's failure does not keep the later ones from being taken (OPS-004); the end of the claim does."""
        for step in self._steps:
            try:
                await step(draft)
            except (KubeError, ProviderError) as error:
                draft.errors.append(error)
            if draft.gone:
                return

    def _was_given_up(self, claim: NodeClaim) -> bool:
        """Whether this claim is deleted although the watch does not say so yet: it must not be counted twice."""
        uid, until = self._given_up.get(claim.metadata.name, ("", 0.0))
        return uid == claim.metadata.uid and asyncio.get_running_loop().time() < until

    async def _write_finalizers(self, claim: NodeClaim, finalizers: list[str]) -> None:
        """No instance before the finalizer is stored, or one could leak (OPS-003).

        Claims of ours are born with it, so whoever wrote this one by hand is told here what in it is probably not meant.
        """
        self._world.events.publish(*_advice(claim))
        stored = await self._world.kube.patch(
            NODE_CLAIM,
            claim.metadata.name,
            {"metadata": {"finalizers": finalizers}},
            resource_version=claim.metadata.resource_version,
        )
        self._expect(claim.metadata.name, stored.metadata.resource_version)

    def _expect(self, name: str, version: str) -> None:
        current = self._world.state.claim(name)
        if version and (current is None or current.metadata.resource_version != version):
            self._unseen[name] = (version, asyncio.get_running_loop().time() + _OWN_WRITE_SECONDS)


def _outcome(draft: Draft) -> float | None:
    """When to look again. A Node that changed or went meanwhile means soon; any other failed step is raised."""
    for error in draft.errors:
        if not isinstance(error, Conflict | NotFound):
            raise error
    if draft.errors:
        draft.look_again(_CHANGED_MEANWHILE_SECONDS)
    return draft.look_again_seconds


def _advice(claim: NodeClaim) -> Iterator[Happening]:
    for finding in validation.advise(claim):
        about, values = about_claim(claim.metadata), (finding.path, finding.code)
        yield Happening(about, WARNING, "NodeClaimAdvice", str(finding), values)


def _known(claim: NodeClaim) -> dict[str, object]:
    """What log lines of this claim carry besides its name (OPS-007)."""
    found: dict[str, object] = {}
    if claim.status.provider_id:
        found["provider-id"] = claim.status.provider_id
    if claim.status.node_name:
        found["Node"] = {"name": claim.status.node_name}
    return found
