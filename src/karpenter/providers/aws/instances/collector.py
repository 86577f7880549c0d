"""Ending machines nobody owns (AWS-535 to AWS-537, OPS-093).

Machines are listed before claims, so that a claim made in between is seen. A machine of a purchase that is not settled yet
belongs to whoever is still owed one of it, and is left alone however old it is (see ``launch.launcher``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta

import structlog

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.kube.errors import KubeError, NotFound
from karpenter.kube.protocol import Kube, Listing
from karpenter.model.clock import Clock
from karpenter.providers.aws import facts, names
from karpenter.providers.aws.instances.reading import Instances
from karpenter.providers.aws.launch import batches
from karpenter.providers.aws.shapes import InstanceInfo
from karpenter.providers.aws.surroundings import Observed
from karpenter.providers.contract import InstanceNotFound, ProviderError

#: Machines younger than this are left alone.
GARBAGE_AGE = timedelta(seconds=30)
_FIRST_PAUSE_SECONDS = 10.0
_FIRST_ROUNDS = 20
_PAUSE_SECONDS = 120.0
_LONGEST_BACKOFF_SECONDS = 60.0
_AT_ONCE = 100
_log = structlog.get_logger()


class Collector:
    """Looks for garbage again and again."""

    def __init__(self, instances: Instances, kube: Kube, observed: Observed, clock: Clock) -> None:
        self._instances = instances
        self._kube = kube
        self._observed = observed
        self._clock = clock

    async def run(self) -> None:
        """Often at first, when a restart may have left something behind; later every two minutes (AWS-537)."""
        rounds, backoff = 0, 1.0
        while True:
            try:
                await self.collect()
            except ProviderError as error:
                _log.error("collecting instances failed", error=str(error))
                pause, backoff = backoff, min(backoff * 2, _LONGEST_BACKOFF_SECONDS)
            else:
                rounds, backoff = rounds + 1, 1.0
                pause = _FIRST_PAUSE_SECONDS if rounds <= _FIRST_ROUNDS else _PAUSE_SECONDS
            await asyncio.sleep(pause)

    async def collect(self) -> tuple[str, ...]:
        """One round; the provider IDs of the machines that were ended. Raises ``ProviderError``.

        Only where the watched claims leave a machine without an owner the API server is asked.
        """
        now = self._clock.now()
        old = [
            info for info in await self._instances.list() if not facts.is_going(info) and _age(info, now) > GARBAGE_AGE
        ]
        if not any(self._observed.claim_of(info.instance_id) is None for info in old):
            return ()
        orphans = _orphans(old, await self._claims())
        slots = asyncio.Semaphore(_AT_ONCE)

        async def end(info: InstanceInfo) -> bool:
            async with slots:
                return await self._end(info)

        ended = await asyncio.gather(*map(end, orphans))
        return tuple(facts.own_provider_id(info) for info, is_ended in zip(orphans, ended, strict=True) if is_ended)

    async def _claims(self) -> Listing[NodeClaim]:
        try:
            return await self._kube.list(NODE_CLAIM)
        except KubeError as error:
            raise ProviderError(f"listing claims, {error}") from error

    async def _end(self, info: InstanceInfo) -> bool:
        provider_id = facts.own_provider_id(info)
        try:
            await self._instances.delete(provider_id)
        except InstanceNotFound:
            return False
        except ProviderError as error:
            _log.error("ending an instance without nodeclaim failed", error=str(error), **{"provider-id": provider_id})
            return False
        _log.debug("garbage collected cloudprovider instance", **{"provider-id": provider_id})
        await self._delete_node(info)
        return True

    async def _delete_node(self, info: InstanceInfo) -> None:
        node = self._observed.node_of(info.instance_id)
        if node is None:
            return
        try:
            await self._kube.delete(NODE, node.metadata.name, uid=node.metadata.uid)
        except NotFound:
            return
        except KubeError as error:
            _log.error(
                "deleting the node of a lost instance failed", Node={"name": node.metadata.name}, error=str(error)
            )
            return
        _log.debug("garbage collected node", Node={"name": node.metadata.name})


def _age(info: InstanceInfo, now: datetime) -> timedelta:
    return now - info.launch_time if info.launch_time is not None else timedelta()


def _orphans(machines: Iterable[InstanceInfo], claims: Listing[NodeClaim]) -> tuple[InstanceInfo, ...]:
    """Machines no claim names and nobody is owed. A claim that cannot be read may own any machine that names no other."""
    owned = {claim.status.provider_id for claim in claims.items}
    living = {claim.metadata.name for claim in claims.items}
    unsettled = batches.unsettled(claims.items)
    has_unreadable = bool(claims.rejected)

    def is_orphan(info: InstanceInfo) -> bool:
        if facts.own_provider_id(info) in owned or facts.tag(info, names.BATCH) in unsettled:
            return False
        return not has_unreadable or facts.tag(info, names.CLAIM_TAG) in living

    return tuple(info for info in machines if is_orphan(info))
