"""Writing on machines whose they are, once their Node is known (AWS-530 to AWS-533)."""

from __future__ import annotations

import asyncio

import structlog

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import KubeError, NotFound
from karpenter.kube.protocol import Writer
from karpenter.providers.aws import facts, names
from karpenter.providers.aws.instances.reading import Instances
from karpenter.providers.aws.settings import Cluster
from karpenter.providers.aws.shapes import tag_map
from karpenter.providers.contract import InstanceNotFound, ProviderError

#: At most one CreateTags a second (AWS-532).
PAUSE_SECONDS = 1.0
_DONE = (names.TAGGED, names.CLUSTER_NAME_TAGGED)
_log = structlog.get_logger()


def is_wanting(claim: NodeClaim) -> bool:
    """Whether a claim's machine is still to be tagged (AWS-530)."""
    is_joined = bool(claim.status.node_name) and claim.metadata.deletion_timestamp is None
    return is_joined and any(claim.metadata.annotations.get(key) != "true" for key in _DONE)


class Tagger:
    """Tags machines, one after another. To be given every managed claim that changes, by one worker."""

    def __init__(self, instances: Instances, kube: Writer, cluster: Cluster) -> None:
        self._instances = instances
        self._kube = kube
        self._cluster = cluster

    async def look(self, claim: NodeClaim) -> None:
        """Tag the claim's machine if it lacks tags, and note that it is done. Raises ``ProviderError``: to be tried again."""
        if not is_wanting(claim):
            return
        try:
            instance_id = facts.instance_id(claim.status.provider_id)
        except facts.BadProviderId as error:
            _log.error("tagging an instance failed", NodeClaim={"name": claim.metadata.name}, error=str(error))
            return
        try:
            await self._tag(claim, instance_id)
        except InstanceNotFound:
            return
        await self._note(claim)

    async def _tag(self, claim: NodeClaim, instance_id: str) -> None:
        info = await self._instances.look(instance_id)
        wanted = {
            names.NAME_TAG: claim.status.node_name,
            names.CLAIM_TAG: claim.metadata.name,
            names.CLUSTER_TAG: self._cluster.name,
        }
        # What the machine has is kept: a Name of the class's own tags is the user's.
        missing = {key: value for key, value in wanted.items() if key not in tag_map(info.tags)}
        if missing:
            await self._instances.tag(info, missing)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _note(self, claim: NodeClaim) -> None:
        patch = {"metadata": {"annotations": dict.fromkeys(_DONE, "true")}}
        try:
            await self._kube.patch(NODE_CLAIM, claim.metadata.name, patch)
        except NotFound:
            return
        except KubeError as error:
            raise ProviderError(f"noting that the machine of claim {claim.metadata.name} is tagged, {error}") from error
