"""What conformance environments on an API server in memory share: the NodePool, and claims that the server stores."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import ClassVar

from karpenter.api.karpenter import (
    NodeClaim,
    NodeClaimResourceRequests,
    NodeClaimSpec,
    NodeClaimTemplate,
    NodeClaimTemplateSpec,
    NodeClassReference,
    NodePool,
    NodePoolSpec,
    NodePoolTaint,
    NodeSelectorRequirementWithMinValues,
)
from karpenter.api.kinds import NODE_CLAIM
from karpenter.api.meta import ObjectMeta
from karpenter.kube.errors import NotFound
from karpenter.model import labels
from karpenter.providers.conformance import LabelRequirements
from karpenter.simulation.apiserver import MemoryKube


def spec_of_claim(
    node_class: NodeClassReference,
    requirements: LabelRequirements,
    requests: Mapping[str, str],
    taints: tuple[NodePoolTaint, ...] = (),
) -> NodeClaimSpec:
    asked = tuple(
        NodeSelectorRequirementWithMinValues(key=key, operator="In", values=values)
        for key, values in requirements.items()
    )
    resources = NodeClaimResourceRequests(requests=requests)
    return NodeClaimSpec(requirements=asked, node_class_ref=node_class, resources=resources, taints=taints)


class StoredClaims:
    """A part of ``ConformanceEnvironment``. ``node_class``: what the NodePool and its claims refer to."""

    node_class: ClassVar[NodeClassReference]
    pool_name: ClassVar[str] = "default"
    kube: MemoryKube

    @property
    def pool(self) -> NodePool:
        template = NodeClaimTemplate(spec=NodeClaimTemplateSpec(requirements=(), node_class_ref=self.node_class))
        return NodePool(metadata=ObjectMeta(name=self.pool_name), spec=NodePoolSpec(template=template))

    async def claim(self, name: str, requirements: LabelRequirements, requests: Mapping[str, str]) -> NodeClaim:
        with suppress(NotFound):
            await self.kube.delete(NODE_CLAIM, name)
        metadata = ObjectMeta(name=name, labels={labels.NODE_POOL: self.pool_name})
        spec = spec_of_claim(self.node_class, requirements, requests)
        return await self.kube.create(NODE_CLAIM, NodeClaim(metadata=metadata, spec=spec))

    async def delete_claim(self, claim: NodeClaim) -> None:
        await self.kube.delete(NODE_CLAIM, claim.metadata.name)

    async def corrupt_claim(self, claim: NodeClaim) -> None:
        server = self.kube.server
        claims = server.resource(NODE_CLAIM.group, NODE_CLAIM.version, NODE_CLAIM.plural)
        server.update_any(claims, "", claim.metadata.name, lambda body: {**body, "status": {"nodeName": 5}})
        assert [bad.name for bad in (await self.kube.list(NODE_CLAIM)).undecodable] == [claim.metadata.name]
