"""The controllers of self-managed clusters: tokens, provider IDs, serving certificates and Nodes without an instance."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.model import conditions
from karpenter.providers.aws.aws_context import AwsContext
from karpenter.providers.aws.bootstrap import join_rules
from karpenter.providers.aws.bootstrap.certificate_approver import CertificateApprover
from karpenter.providers.aws.bootstrap.join_resolver import JoinResolver
from karpenter.providers.aws.bootstrap.lost_nodes import LostNodeCollector
from karpenter.providers.aws.bootstrap.provider_id_controller import ProviderIdController
from karpenter.providers.aws.bootstrap.token_issuer import TokenIssuer
from karpenter.providers.aws.instance.instance_provider import InstanceProvider
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
            approver = CertificateApprover(kube, view, instances, context.clock)
            passes["certificatesigningrequest.approval"] = approver.reconcile
        return passes

    async def _revoke(self, name: str) -> None:
        await self.join.revoke(name)

    async def _sweep(self) -> float:
        """Delete tokens that no claim needs. Without a class that joins with kubeadm, nothing is asked."""
        view = self._context.cluster_view
        if join_rules.uses_kubeadm(self._context.settings.bootstrap, view.node_classes()):
            await self._issuer.sweep(view.claims())
        return _SWEEP_SECONDS
