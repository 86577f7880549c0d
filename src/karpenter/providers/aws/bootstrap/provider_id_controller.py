"""Gives Nodes the provider ID of their instance, where neither the kubelet nor a cloud controller does (AWS-927)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import cast

import structlog

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE
from karpenter.kube.errors import NotFound
from karpenter.kube.protocol import Kube
from karpenter.metrics import Metrics
from karpenter.model import conditions
from karpenter.providers.aws.aws_context import AwsClusterView
from karpenter.providers.aws.bootstrap import join_rules
from karpenter.providers.aws.bootstrap.bootstrap_objects import ADDRESSED_NODE, AddressedNode
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapSettings
from karpenter.providers.aws.ec2_descriptions import InstanceInfo
from karpenter.providers.aws.instance import instance_info
from karpenter.providers.aws.instance.instance_provider import InstanceProvider
from karpenter.providers.contract import InstanceNotFound
from karpenter.runtime.events import ObjectKind
from karpenter.runtime.reconciler import Reconciler

_RETRY_SECONDS = 10.0
_log = structlog.get_logger()


class ProviderIdController:
    """Writes ``spec.providerID`` of Nodes that joined without one. A provider ID cannot be changed once it is set."""

    def __init__(
        self,
        kube: Kube,
        view: AwsClusterView,
        instances: InstanceProvider,
        settings: BootstrapSettings,
        metrics: Metrics | None = None,
    ) -> None:
        self._kube = kube
        self._view = view
        self._instances = instances
        self._settings = settings
        self.reconciler: Reconciler[str] = Reconciler(
            "node.providerid", self.reconcile, 1, cast(ObjectKind, NODE), metrics
        )

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """Informer handler: a Node without a provider ID joined."""
        if old is None and new is not None and not new.spec.provider_id:
            self.reconciler.add(new.metadata.name)

    async def reconcile(self, name: str) -> float | None:
        """Match one Node; returns when to try again. Raises ``KubeError`` and ``ProviderError``."""
        try:
            node = await self._kube.get(ADDRESSED_NODE, name)
        except NotFound:
            return None
        if node.spec.provider_id:
            return None
        waiting = [claim for claim in self._claims() if may_be_node_of(claim, node)]
        instances = await asyncio.gather(*map(self._instance_of, waiting))
        info = matching_instance(node, [info for info in instances if info is not None])
        if info is not None and self._view.node_of(info.instance_id) is None:
            await self._write(node, instance_info.provider_id_of(info))
            return None
        # Addresses may follow later, and so may the status of the NodeClaim.
        return _RETRY_SECONDS if waiting else None

    def _claims(self) -> Iterable[NodeClaim]:
        """NodeClaims whose Nodes may come without a provider ID."""
        if self._settings.is_kubeadm:
            return self._view.claims()
        return (claim for claim in self._view.claims() if self._joins(claim))

    def _joins(self, claim: NodeClaim) -> bool:
        node_class = self._view.node_class_named(claim.spec.node_class_ref.name)
        return node_class is not None and join_rules.joins_with_kubeadm(node_class, self._settings)

    async def _instance_of(self, claim: NodeClaim) -> InstanceInfo | None:
        if not claim.status.provider_id:
            return None
        try:
            return await self._instances.describe(instance_info.parse_instance_id(claim.status.provider_id))
        except (InstanceNotFound, instance_info.InvalidProviderId):
            return None

    async def _write(self, node: AddressedNode, provider_id: str) -> None:
        meta = node.metadata
        patch = {"spec": {"providerID": provider_id}}
        try:
            await self._kube.patch(NODE, meta.name, patch, resource_version=meta.resource_version)
        except NotFound:
            return
        _log.info("set provider ID of node", Node={"name": meta.name}, **{"provider-id": provider_id})


_INTERNAL_IP = "InternalIP"


def may_be_node_of(claim: NodeClaim, node: AddressedNode) -> bool:
    """Whether a NodeClaim waits for its Node, and is not younger than this one."""
    meta = claim.metadata
    if meta.deletion_timestamp is not None or conditions.is_true(claim.status.conditions, conditions.REGISTERED):
        return False
    claim_created, node_created = meta.creation_timestamp, node.metadata.creation_timestamp
    return claim_created is None or node_created is None or claim_created <= node_created


def matching_instance(node: AddressedNode, instances: Iterable[InstanceInfo]) -> InstanceInfo | None:
    """The one instance with the Node's name or internal address; None where there is none or more than one."""
    matches = [info for info in instances if _runs_on(node, info)]
    return matches[0] if len(matches) == 1 else None


def _runs_on(node: AddressedNode, info: InstanceInfo) -> bool:
    names = {info.instance_id, info.private_dns_name} - {""}
    internal = {address.address for address in node.status.addresses if address.type == _INTERNAL_IP}
    return node.metadata.name in names or (info.private_ip_address != "" and info.private_ip_address in internal)
