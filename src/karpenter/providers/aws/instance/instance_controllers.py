"""Controllers of instances: garbage collection and tags (AWS-535 to AWS-537, OPS-093).

Garbage collection lists instances before claims, so that a claim made in between is seen. An instance of a batch in which a claim
still waits is kept however old it is (see ``fleet_launcher``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta

import structlog

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.kube.errors import KubeError, NotFound
from karpenter.kube.protocol import Kube, Listing, Writer
from karpenter.model.clock import Clock
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_context import AwsClusterView
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.aws_types import tag_map
from karpenter.providers.aws.ec2_descriptions import InstanceInfo
from karpenter.providers.aws.instance import instance_info, launch_batches
from karpenter.providers.aws.instance.instance_provider import InstanceProvider
from karpenter.providers.contract import InstanceNotFound, ProviderError

#: Instances younger than this are left alone.
MIN_GARBAGE_AGE = timedelta(seconds=30)
_STARTUP_PERIOD_SECONDS = 10.0
_STARTUP_PASSES = 20
_COLLECTION_PERIOD = timedelta(minutes=2)
_MAX_CONCURRENT = 100
_log = structlog.get_logger()


class InstanceGarbageCollector:
    """Terminates instances that belong to this cluster and to no NodeClaim."""

    def __init__(
        self,
        instances: InstanceProvider,
        kube: Kube,
        cluster_view: AwsClusterView,
        clock: Clock,
        period_seconds: float = _COLLECTION_PERIOD.total_seconds(),
    ) -> None:
        self._period_seconds = period_seconds
        self._instances = instances
        self._kube = kube
        self._cluster_view = cluster_view
        self._clock = clock
        self._passes = 0

    async def reconcile(self) -> float:
        """Collect; returns the seconds until the next pass. Raises ``ProviderError``.

        Passes are frequent at first, because a restart may have left instances behind, and rare later (AWS-537).
        """
        await self.collect()
        self._passes += 1
        if self._passes > _STARTUP_PASSES:
            return self._period_seconds
        return min(_STARTUP_PERIOD_SECONDS, self._period_seconds)

    async def collect(self) -> tuple[str, ...]:
        """Terminate orphans once; returns their provider IDs. Raises ``ProviderError``.

        The API server is asked only if the watched NodeClaims leave an instance without an owner.
        """
        now = self._clock.now()
        old = [
            info
            for info in await self._instances.list()
            if not instance_info.is_terminating(info) and _age(info, now) > MIN_GARBAGE_AGE
        ]
        if not any(self._cluster_view.claim_of(info.instance_id) is None for info in old):
            return ()
        orphans = _orphans(old, await self._claims())
        slots = asyncio.Semaphore(_MAX_CONCURRENT)

        async def end(info: InstanceInfo) -> bool:
            async with slots:
                return await self._terminate(info)

        ended = await asyncio.gather(*map(end, orphans))
        return tuple(
            instance_info.provider_id_of(info) for info, is_ended in zip(orphans, ended, strict=True) if is_ended
        )

    async def _claims(self) -> Listing[NodeClaim]:
        try:
            return await self._kube.list(NODE_CLAIM)
        except KubeError as error:
            raise ProviderError(f"listing claims, {error}") from error

    async def _terminate(self, info: InstanceInfo) -> bool:
        provider_id = instance_info.provider_id_of(info)
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
        node = self._cluster_view.node_of(info.instance_id)
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


def _orphans(instances: Iterable[InstanceInfo], claims: Listing[NodeClaim]) -> tuple[InstanceInfo, ...]:
    """Instances that no claim names or waits for. An undecodable claim may own any that names no other."""
    owned = {claim.status.provider_id for claim in claims.items}
    living = {claim.metadata.name for claim in claims.items}
    unsettled = launch_batches.unsettled_batches(claims.items)
    has_unreadable = bool(claims.undecodable)

    def is_orphan(info: InstanceInfo) -> bool:
        batch = instance_info.tag_value(info, aws_labels.LAUNCH_BATCH)
        if instance_info.provider_id_of(info) in owned or batch in unsettled:
            return False
        return not has_unreadable or instance_info.tag_value(info, aws_labels.NODE_CLAIM_TAG) in living

    return tuple(info for info in instances if is_orphan(info))


#: At most one CreateTags a second (AWS-532).
TAG_PAUSE_SECONDS = 1.0
_TAGGED_ANNOTATIONS = (aws_labels.TAGGED, aws_labels.CLUSTER_NAME_TAGGED)


def needs_tags(claim: NodeClaim) -> bool:
    """Whether a claim's instance is still to be tagged (AWS-530)."""
    is_joined = bool(claim.status.node_name) and claim.metadata.deletion_timestamp is None
    return is_joined and any(claim.metadata.annotations.get(key) != "true" for key in _TAGGED_ANNOTATIONS)


class InstanceTagger:
    """Tags instances, one after another. To be given every managed claim that changes, by one worker."""

    def __init__(self, instances: InstanceProvider, kube: Writer, cluster: AwsClusterInfo) -> None:
        self._instances = instances
        self._kube = kube
        self._cluster = cluster

    async def reconcile(self, claim: NodeClaim) -> None:
        """Tag the claim's instance if it lacks tags, and note that it is done. Raises ``ProviderError``: to be tried again."""
        if not needs_tags(claim):
            return
        try:
            instance_id = instance_info.parse_instance_id(claim.status.provider_id)
        except instance_info.InvalidProviderId as error:
            _log.error("tagging an instance failed", NodeClaim={"name": claim.metadata.name}, error=str(error))
            return
        try:
            await self._tag(claim, instance_id)
        except InstanceNotFound:
            return
        await self._record_tagged(claim)

    async def _tag(self, claim: NodeClaim, instance_id: str) -> None:
        info = await self._instances.describe(instance_id)
        tags = {
            aws_labels.NAME_TAG: claim.status.node_name,
            aws_labels.NODE_CLAIM_TAG: claim.metadata.name,
            aws_labels.CLUSTER_TAG: self._cluster.name,
        }
        # What the instance has is kept: a Name of the class's own tags is the user's.
        missing = {key: value for key, value in tags.items() if key not in tag_map(info.tags)}
        if missing:
            await self._instances.tag(info, missing)
            await asyncio.sleep(TAG_PAUSE_SECONDS)

    async def _record_tagged(self, claim: NodeClaim) -> None:
        patch = {"metadata": {"annotations": dict.fromkeys(_TAGGED_ANNOTATIONS, "true")}}
        try:
            await self._kube.patch(NODE_CLAIM, claim.metadata.name, patch)
        except NotFound:
            return
        except KubeError as error:
            raise ProviderError(
                f"noting that the instance of claim {claim.metadata.name} is tagged, {error}"
            ) from error
