"""The end of a NodeClaim: its Node goes first, then the instance, then the finalizer (DIS §17.1, OPS §1.8)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import structlog

from karpenter.act.draft import Draft
from karpenter.act.events import WARNING, Happening, about_claim
from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.kube.errors import NotFound
from karpenter.kube.protocol import JsonObject
from karpenter.model import conditions, durations, labels
from karpenter.providers.contract import InstanceNotFound

#: How often the cloud is asked whether an instance is gone (DIS-039).
INSTANCE_POLL_SECONDS = 5.0
_log = structlog.get_logger()


def rfc3339(moment: datetime) -> str:
    """A time as annotations carry it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Finaliser:
    """Takes deleting claims apart."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def look(self, claim: NodeClaim, bought: str = "") -> float | None:
        """One step of the ending; seconds until the next look, None to wait for events.

        ``bought`` is the provider ID of a machine that was bought for the claim, even if the claim does not show it yet.
        """
        if labels.TERMINATION_FINALIZER not in claim.metadata.finalizers:
            return None
        if await self._set_deadline(claim):
            return None
        if self._was_registered(claim) and await self._nodes_remain(claim):
            return None
        provider_id = claim.status.provider_id or bought
        if provider_id and not await self._instance_gone(claim, provider_id):
            return INSTANCE_POLL_SECONDS
        left = [name for name in claim.metadata.finalizers if name != labels.TERMINATION_FINALIZER]
        version = claim.metadata.resource_version
        patch: JsonObject = {"metadata": {"finalizers": left}}
        await self._world.kube.patch(NODE_CLAIM, claim.metadata.name, patch, resource_version=version)
        _log.info("deleted nodeclaim")
        return None

    def _was_registered(self, claim: NodeClaim) -> bool:
        """Whether pods may be on the machine: the claim says so, or its Node does although the claim's status was lost."""
        if conditions.is_true(claim.status.conditions, "Registered"):
            return True
        nodes = self._world.state.nodes_of(claim.status.provider_id)
        return any(node.metadata.labels.get(labels.REGISTERED) == "true" for node in nodes)

    async def _set_deadline(self, claim: NodeClaim) -> bool:
        """Write when the drain must end, once (DIS-501); whether it was written now."""
        period = claim.spec.termination_grace_period
        deleted = claim.metadata.deletion_timestamp
        if not period or deleted is None or labels.TERMINATION_TIMESTAMP in claim.metadata.annotations:
            return False
        deadline = rfc3339(deleted + (durations.parse_or_never(period) or timedelta(0)))
        await self._world.kube.patch(
            NODE_CLAIM,
            claim.metadata.name,
            {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: deadline}}},
            resource_version=claim.metadata.resource_version,
        )
        _log.info("annotated nodeclaim", **{labels.TERMINATION_TIMESTAMP: deadline})
        text = f"All pods will be deleted by {deadline}"
        about = about_claim(claim.metadata)
        self._world.events.publish(Happening(about, WARNING, "TerminationGracePeriodExpiring", text))
        return True

    async def _nodes_remain(self, claim: NodeClaim) -> bool:
        """Delete the claim's Nodes; their own finalizer drains them. Whether any is still there (DIS-502)."""
        nodes = self._world.state.nodes_of(claim.status.provider_id)
        for node in nodes:
            if node.metadata.deletion_timestamp is None:
                try:
                    await self._world.kube.delete(NODE, node.metadata.name, uid=node.metadata.uid)
                except NotFound:
                    continue
        return bool(nodes)

    async def _instance_gone(self, claim: NodeClaim, provider_id: str) -> bool:
        try:
            await self._world.provider.delete(provider_id)
        except InstanceNotFound:
            return True
        await mark_terminating(claim, self._world)
        return False


async def mark_terminating(claim: NodeClaim, world: World) -> None:
    """Record that the cloud was asked to end the instance (DIS-503)."""
    draft = Draft(claim, world.clock.now())
    if not draft.is_true("InstanceTerminating"):
        draft.set("InstanceTerminating", conditions.TRUE)
        await draft.write(world)
