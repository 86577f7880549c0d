"""Collecting what lost its other half: claims whose machine is gone (OPS §1.11). The cloud's half is the provider's."""

from __future__ import annotations

import structlog

from karpenter.act.world import World
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import KubeError
from karpenter.model import conditions
from karpenter.providers.contract import ProviderError

_log = structlog.get_logger()


async def claims_without_instance(world: World) -> int:
    """Delete registered claims whose instance the cloud does not know and whose kubelet is silent; how many (OPS-090).

    Claims are read before instances, so that a machine bought in between is never taken for missing.
    """
    claims = [claim for claim in world.state.claims() if world.manages(claim) and _is_settled(claim)]
    try:
        alive = {instance.provider_id for instance in await world.provider.list() if not instance.terminating}
    except ProviderError as error:
        _log.error("listing instances failed", error=str(error))
        return 0
    collected = 0
    for claim in claims:
        if claim.status.provider_id not in alive and not _kubelet_alive(world, claim):
            collected += await _collect(world, claim)
    return collected


def _is_settled(claim: NodeClaim) -> bool:
    return claim.metadata.deletion_timestamp is None and conditions.is_true(claim.status.conditions, "Registered")


def _kubelet_alive(world: World, claim: NodeClaim) -> bool:
    nodes = world.state.nodes_of(claim.status.provider_id)
    return len(nodes) == 1 and conditions.is_true(nodes[0].status.conditions, "Ready")


async def _collect(world: World, claim: NodeClaim) -> int:
    _log.debug(
        "garbage collecting nodeclaim with no cloudprovider representation",
        NodeClaim={"name": claim.metadata.name},
        **{"provider-id": claim.status.provider_id},
    )
    try:
        await world.kube.delete(NODE_CLAIM, claim.metadata.name, uid=claim.metadata.uid)
    except KubeError as error:
        _log.debug("collecting nodeclaim failed", NodeClaim={"name": claim.metadata.name}, error=str(error))
        return 0
    return 1
