"""Deletes Nodes whose instance is gone, in clusters without a cloud controller that does it (AWS-933)."""

from __future__ import annotations

import structlog

from karpenter.api.core import Node
from karpenter.api.kinds import NODE
from karpenter.kube.errors import Conflict, NotFound
from karpenter.kube.protocol import Kube
from karpenter.model import conditions, labels
from karpenter.providers.aws.aws_context import AwsClusterView
from karpenter.providers.aws.instance import instance_info
from karpenter.providers.aws.instance.instance_provider import InstanceProvider
from karpenter.providers.contract import InstanceNotFound

_PERIOD_SECONDS = 300.0
_log = structlog.get_logger()


class LostNodeCollector:
    """Looks at Nodes of NodePools only. While a NodeClaim has the instance, its own garbage collection deletes the Node."""

    def __init__(self, kube: Kube, view: AwsClusterView, instances: InstanceProvider) -> None:
        self._kube = kube
        self._view = view
        self._instances = instances

    async def reconcile(self) -> float:
        """Collect once; returns the seconds until the next pass. Raises ``KubeError`` and ``ProviderError``."""
        for node in (await self._kube.list(NODE, label_selector=labels.NODE_POOL)).items:
            if _may_be_lost(node) and await self._is_instance_gone(node):
                await self._delete(node)
        return _PERIOD_SECONDS

    async def _is_instance_gone(self, node: Node) -> bool:
        try:
            instance_id = instance_info.parse_instance_id(node.spec.provider_id)
        except instance_info.InvalidProviderId:
            return False
        if self._view.claim_of(instance_id) is not None:
            return False
        try:
            return instance_info.is_terminating(await self._instances.describe(instance_id))
        except InstanceNotFound:
            return True

    async def _delete(self, node: Node) -> None:
        meta = node.metadata
        try:
            await self._kube.delete(NODE, meta.name, uid=meta.uid)
        except (NotFound, Conflict):
            return
        _log.info("deleted node of a terminated instance", Node={"name": meta.name})


def _may_be_lost(node: Node) -> bool:
    is_ready = conditions.is_true(node.status.conditions, "Ready")
    return not is_ready and bool(node.spec.provider_id) and node.metadata.deletion_timestamp is None
