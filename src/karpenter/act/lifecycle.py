"""The life of a NodeClaim from creation to the removal of its finalizer (OPS §1).

One look takes every step that can be taken: launch, registration, initialisation, liveness, quiet time; then what changed is
written. A look never acts on a picture older than its own last write: it waits until that write has come back through the watch,
which is what the reference's one-second sleep is for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta

import structlog

from karpenter.act import initialise, launch, quiet, register
from karpenter.act.draft import Draft
from karpenter.act.finalise import Finaliser
from karpenter.act.nominate import Nominating
from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.model import labels
from karpenter.providers.contract import ProviderError

LAUNCH_TIMEOUT = timedelta(minutes=5)
REGISTRATION_TIMEOUT = timedelta(minutes=15)
#: How long a look waits to see its own last write before it trusts the watch again.
_OWN_WRITE_SECONDS = 5.0
#: How soon to look again at something another writer changed in between.
_CHANGED_MEANWHILE_SECONDS = 0.2
_log = structlog.get_logger()


class Lifecycle:
    """Takes claims through their life, one look at a time."""

    def __init__(self, world: World, nominator: Nominating) -> None:
        self._world = world
        self._launcher = launch.Launcher(world)
        self._nominator = nominator
        self._finaliser = Finaliser(world)
        self._unseen: dict[str, tuple[str, float]] = {}

    def observed(self, claim: NodeClaim) -> None:
        """The watch delivered this version of a claim."""
        version, _ = self._unseen.get(claim.metadata.name, ("", 0.0))
        if version == claim.metadata.resource_version:
            del self._unseen[claim.metadata.name]

    def forget(self, name: str) -> None:
        """The claim is gone."""
        self._unseen.pop(name, None)
        self._launcher.forget(name)

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
        if labels.TERMINATION_FINALIZER not in claim.metadata.finalizers:
            finalizers = [*claim.metadata.finalizers, labels.TERMINATION_FINALIZER]
            await self._write_finalizers(claim, finalizers)
            return None
        draft = Draft(claim, self._world.clock.now())
        draft.refresh()
        await self._launcher.step(draft)
        if not draft.gone:
            await self._take(draft, register.step(draft, self._world, self._nominator))
            await self._take(draft, initialise.step(draft, self._world))
            await self._take(draft, self._liveness(draft))
            quiet.step(draft, self._world)
        if not draft.gone:
            self._expect(draft.name, await draft.write(self._world))
            if draft.expected_node:
                await self._nominator.nominate_ahead(draft.name, draft.expected_node)
        return _outcome(draft)

    @staticmethod
    async def _take(draft: Draft, step: Awaitable[None]) -> None:
        """Take a step; its failure does not keep the later ones from being taken (OPS-004)."""
        try:
            await step
        except (KubeError, ProviderError) as error:
            draft.errors.append(error)

    async def _write_finalizers(self, claim: NodeClaim, finalizers: list[str]) -> None:
        """No instance before the finalizer is stored, or one could leak (OPS-003)."""
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

    async def _liveness(self, draft: Draft) -> None:
        """A claim that does not launch or register in time is given up (OPS-050, OPS-051); one reason per claim."""
        if not draft.is_true("Launched"):
            await self._give_up_after(draft, "Launched", LAUNCH_TIMEOUT, "launch_timeout")
        elif not draft.is_true("Registered"):
            await self._give_up_after(draft, "Registered", REGISTRATION_TIMEOUT, "registration_timeout")

    async def _give_up_after(self, draft: Draft, kind: str, timeout: timedelta, reason: str) -> None:
        condition = draft.condition(kind)
        since = condition.last_transition_time if condition else None
        left = (since or draft.now) + timeout - draft.now
        if left > timedelta(0):
            draft.look_again(left.total_seconds())
            return
        _log.debug("terminating due to timeout", timeout=str(timeout), reason=reason)
        await launch.give_up(draft, self._world)


def _outcome(draft: Draft) -> float | None:
    """When to look again. A Node that changed or went meanwhile means soon; any other failed step is raised."""
    for error in draft.errors:
        if not isinstance(error, Conflict | NotFound):
            raise error
    if draft.errors:
        draft.look_again(_CHANGED_MEANWHILE_SECONDS)
    return draft.look_again_seconds


def _known(claim: NodeClaim) -> dict[str, object]:
    """What log lines of this claim carry besides its name (OPS-007)."""
    found: dict[str, object] = {}
    if claim.status.provider_id:
        found["provider-id"] = claim.status.provider_id
    if claim.status.node_name:
        found["Node"] = {"name": claim.status.node_name}
    return found
