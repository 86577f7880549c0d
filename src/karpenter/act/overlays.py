"""Bringing NodeOverlays into force: all of them, over all pools, at once (SCH-751), and saying of each whether it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import structlog

from karpenter.act.patching import difference
from karpenter.act.world import World
from karpenter.api.kinds import NODE_OVERLAY
from karpenter.api.meta import Condition
from karpenter.api.overlay import NodeOverlay
from karpenter.catalog import overlays
from karpenter.catalog.index import well_known_of
from karpenter.catalog.overlays import Clash, PoolTypes
from karpenter.kube.errors import KubeError, NotFound
from karpenter.model import conditions, labels, validation
from karpenter.providers.contract import ProviderError
from karpenter.providers.overlaid import OverlaidProvider

#: Overlays are judged again this often without news: what clouds offer changes.
LOOK_AGAIN_SECONDS = 6 * 3600.0
_TYPE = "ValidationSucceeded"
_log = structlog.get_logger()


class OverlayKeeper:
    """Judges overlays: all that ``all_overlays`` tells. ``changed`` is called when other prices or capacities are in force."""

    def __init__(
        self,
        world: World,
        provider: OverlaidProvider,
        all_overlays: Callable[[], Iterable[NodeOverlay]],
        changed: Callable[[], None],
    ) -> None:
        self._world = world
        self._provider = provider
        self._all_overlays = all_overlays
        self._changed = changed

    async def look(self, _key: str) -> float:
        """Judge all overlays; seconds until the next look. Raises ``ProviderError`` and ``KubeError`` once all else is done."""
        offered, faults = await self._offered()
        found = [item for item in self._all_overlays() if item.metadata.deletion_timestamp is None]
        well_known = labels.WELL_KNOWN.union(*(well_known_of(item.types) for item in offered))
        findings = {item.metadata.name: validation.overlay(item, well_known) for item in found}
        valid = [overlays.parse(item) for item in found if not findings[item.metadata.name]]
        judgement = overlays.judge(valid, offered)
        if self._provider.put(judgement.accepted, offered):
            self._changed()
        unsaid: list[KubeError] = []
        for item in found:
            name = item.metadata.name
            try:
                await self._say(item, _verdict(findings[name], judgement.clashes.get(name)))
            except KubeError as error:
                unsaid.append(error)
        for fault in (*faults, *unsaid):
            raise fault
        return LOOK_AGAIN_SECONDS

    async def _offered(self) -> tuple[list[PoolTypes], list[ProviderError]]:
        """What is offered to the pools, and what went wrong with the others (SCH-752)."""
        offered: list[PoolTypes] = []
        faults: list[ProviderError] = []
        for pool in self._world.state.pools():
            if self._world.manages(pool) and pool.metadata.deletion_timestamp is None:
                try:
                    offered.append(PoolTypes(pool, await self._provider.plain_types(pool)))
                except ProviderError as error:
                    faults.append(error)
        return offered, faults

    async def _say(self, overlay: NodeOverlay, verdict: Condition) -> None:
        """Write the verdict on the overlay, and log it when it is news that it is not used."""
        meta = overlay.metadata
        owner = conditions.owner(conditions.NODE_OVERLAY, meta, self._world.clock.now())
        found = conditions.put(overlay.status.conditions, verdict, owner)
        wanted = msgspec.structs.replace(overlay.status, conditions=found)
        patch = difference(overlay, msgspec.structs.replace(overlay, status=wanted))
        if not patch:
            return
        if verdict.status == conditions.FALSE:
            _log.error(
                "ignoring nodeoverlay", NodeOverlay={"name": meta.name}, reason=verdict.reason, error=verdict.message
            )
        try:
            await self._world.kube.patch(
                NODE_OVERLAY, meta.name, patch, subresource="status", resource_version=meta.resource_version
            )
        except NotFound:
            return


def _verdict(findings: validation.Findings, clash: Clash | None) -> Condition:
    if findings:
        text = "; ".join(map(str, findings))
        return Condition(type=_TYPE, status=conditions.FALSE, reason="RuntimeValidation", message=text)
    if clash is not None:
        what = "the price" if clash.contested == overlays.PRICE else clash.contested
        text = (
            f"conflict with another overlay: {clash.winner} also sets {what} of instance type {clash.instance_type} "
            f"in NodePool {clash.pool} and has the same weight ({clash.weight}); give one of them another weight"
        )
        return Condition(type=_TYPE, status=conditions.FALSE, reason="Conflict", message=text)
    return Condition(type=_TYPE, status=conditions.TRUE)
