"""Garbage collection: deletes NodeClaims whose instance is gone (OPS §1.11).

Instances without a NodeClaim are collected by the provider.
"""

from __future__ import annotations

import asyncio

import structlog

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import KubeError, NotFound
from karpenter.model import conditions
from karpenter.providers.contract import ProviderError
from karpenter.runtime import nodeclaim_deletion

#: How many claims are processed concurrently (OPS-090).
_MAX_CONCURRENT = 20
_log = structlog.get_logger()


async def collect_claims_without_instance(context: ControllerContext) -> int:
    """Delete registered claims whose instance the cloud does not know and whose Node is not Ready; returns how many (OPS-090).

    Claims are read before instances, so that an instance launched in between is never considered missing.
    """
    claims = [claim for claim in context.state.claims() if context.is_managed(claim) and _is_collectable(claim)]
    try:
        running_provider_ids = {
            instance.provider_id for instance in await context.provider.list() if not instance.terminating
        }
    except ProviderError as error:
        _log.error("listing instances failed", error=str(error))
        return 0
    slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def collect(claim: NodeClaim) -> bool:
        async with slots:
            return await _collect_claim(context, claim)

    missing = [claim for claim in claims if claim.status.provider_id not in running_provider_ids]
    return sum(await asyncio.gather(*(collect(claim) for claim in missing)))


def _is_collectable(claim: NodeClaim) -> bool:
    return claim.metadata.deletion_timestamp is None and conditions.is_true(
        claim.status.conditions, conditions.REGISTERED
    )


async def _collect_claim(context: ControllerContext, claim: NodeClaim) -> bool:
    """Delete a claim unless its Node is Ready; returns whether it was deleted. After read errors it waits for the next pass."""
    try:
        nodes = await _nodes_of_claim(context, claim)
        if any(conditions.is_true(node.status.conditions, conditions.READY) for node in nodes):
            return False
        await context.kube.delete(NODE_CLAIM, claim.metadata.name, uid=claim.metadata.uid)
    except KubeError as error:
        _log.debug("collecting nodeclaim failed", NodeClaim={"name": claim.metadata.name}, error=str(error))
        return False
    _log.debug(
        "garbage collecting nodeclaim with no cloudprovider representation",
        NodeClaim={"name": claim.metadata.name},
        Node={"name": claim.status.node_name},
        **{"provider-id": claim.status.provider_id},
    )
    nodeclaim_deletion.count_disrupted(context, claim, "garbage_collected")
    return True


async def _nodes_of_claim(context: ControllerContext, claim: NodeClaim) -> list[Node]:
    """The claim's Nodes, read from the API server: the informer may lag behind, and the decision deletes the claim."""
    provider_id = claim.status.provider_id
    names = {node.metadata.name for node in context.state.nodes_by_provider_id(provider_id)} | {claim.status.node_name}
    nodes = []
    for name in sorted(names - {""}):
        try:
            node = await context.kube.get(NODE, name)
        except NotFound:
            continue
        if node.spec.provider_id == provider_id:
            nodes.append(node)
    return nodes
