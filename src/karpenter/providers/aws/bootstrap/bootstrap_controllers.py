"""The controllers of self-managed clusters: tokens, provider IDs, serving certificates and Nodes without an instance.

Two of them are short and stand here: Nodes get the provider ID of their instance where neither the kubelet nor a cloud controller
gives it (AWS-927), and Nodes whose instance is gone are deleted where no cloud controller does it (AWS-933).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import cast

import structlog

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.kube.errors import Conflict, NotFound
from karpenter.kube.protocol import Kube
from karpenter.metrics import Metrics
from karpenter.model import conditions, labels
from karpenter.providers.aws.aws_context import AwsClusterView, AwsContext
from karpenter.providers.aws.bootstrap import join_rules
from karpenter.providers.aws.bootstrap.bootstrap_objects import ADDRESSED_NODE, AddressedNode
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapSettings
from karpenter.providers.aws.bootstrap.join_resolver import JoinResolver
from karpenter.providers.aws.bootstrap.token_issuer import TokenIssuer
from karpenter.providers.aws.ec2_descriptions import InstanceInfo
from karpenter.providers.aws.instance import instance_info
from karpenter.providers.aws.instance.instance_provider import InstanceProvider
from karpenter.providers.contract import InstanceNotFound
from karpenter.runtime.events import ObjectKind
from karpenter.runtime.reconciler import Reconciler, SingletonReconciler

_SWEEP_SECONDS = 300.0


class BootstrapControllers:
    """Tokens and what depends on them. ``join`` is what launches ask."""

    def __init__(self, context: AwsContext, instances: InstanceProvider) -> None:
        self._context = context
        self._instances = instances
        settings, cluster = context.settings.bootstrap, context.current_cluster().name
        self._issuer = TokenIssuer(context.kube, settings, cluster, context.clock)
        self.join = JoinResolver(self._issuer, context.services.ssm, settings, cluster)
        self._revocation: Reconciler[str] = Reconciler(
            "nodeclaim.bootstraptoken", self._revoke, 1, cast(ObjectKind, NODE_CLAIM), context.metrics
        )
        self._provider_ids = ProviderIdController(
            context.kube, context.cluster_view, instances, settings, context.metrics
        )

    def on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """Informer handler: a claim that is registered or gone needs its token no longer (AWS-911)."""
        claim = new or old
        is_done = new is None or conditions.is_true(new.status.conditions, conditions.REGISTERED)
        if claim is not None and is_done and self._issuer.holds_token(claim.metadata.name):
            self._revocation.add(claim.metadata.name)

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """Informer handler: a Node that joined without a provider ID gets that of its instance (AWS-927)."""
        if self._context.settings.bootstrap.set_provider_id:
            self._provider_ids.on_node(old, new)

    def controllers(self) -> tuple[Reconciler[str], ...]:
        """What runs while this process leads."""
        singletons = (SingletonReconciler(name, run, self._context.metrics) for name, run in self._passes().items())
        return (self._revocation, self._provider_ids.reconciler, *singletons)

    def _passes(self) -> Mapping[str, Callable[[], Awaitable[float]]]:
        context, settings = self._context, self._context.settings.bootstrap
        kube, view, instances = context.kube, context.cluster_view, self._instances
        passes: dict[str, Callable[[], Awaitable[float]]] = {"bootstraptoken.garbagecollection": self._sweep}
        if settings.is_kubeadm:
            passes["node.instancegone"] = LostNodeCollector(kube, view, instances).reconcile
        if settings.is_kubeadm and settings.approve_kubelet_serving:
            from karpenter.providers.aws.bootstrap.certificate_approver import CertificateApprover

            approver = CertificateApprover(kube, view, instances, context.clock)
            passes["certificatesigningrequest.approval"] = approver.reconcile
        return passes

    async def _revoke(self, name: str) -> None:
        await self.join.revoke(name)

    async def _sweep(self) -> float:
        """Delete tokens that no claim needs, and make those of the next window.

        Without a class that joins with kubeadm, nothing is asked.
        """
        view = self._context.cluster_view
        if join_rules.uses_kubeadm(self._context.settings.bootstrap, view.node_classes()):
            await self._issuer.sweep(view.claims())
            await self._issuer.prepare_next_window([node_class.metadata.name for node_class in view.node_classes()])
        return _SWEEP_SECONDS


_PERIOD_SECONDS = 300.0
_log = structlog.get_logger()


class LostNodeCollector:
    """Reconciles Nodes of NodePools only. While a NodeClaim has the instance, its own garbage collection deletes the Node."""

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


_RETRY_SECONDS = 10.0


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
