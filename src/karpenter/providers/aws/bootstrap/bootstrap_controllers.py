"""The controllers of self-managed clusters: tokens are deleted when nobody needs them any more."""

from __future__ import annotations

from typing import cast

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.model import conditions
from karpenter.providers.aws.aws_context import AwsContext
from karpenter.providers.aws.bootstrap import join_rules
from karpenter.providers.aws.bootstrap.join_resolver import JoinResolver
from karpenter.providers.aws.bootstrap.token_issuer import TokenIssuer
from karpenter.runtime.events import ObjectKind
from karpenter.runtime.reconciler import Reconciler, SingletonReconciler

_SWEEP_SECONDS = 300.0


class BootstrapControllers:
    """Tokens and what depends on them. ``join`` is what launches ask."""

    def __init__(self, context: AwsContext) -> None:
        self._context = context
        settings, cluster = context.settings.bootstrap, context.current_cluster().name
        self._issuer = TokenIssuer(context.kube, settings, cluster, context.clock)
        self.join = JoinResolver(self._issuer, context.services.ssm, settings, cluster)
        self._revocation: Reconciler[str] = Reconciler(
            "nodeclaim.bootstraptoken", self._revoke, 1, cast(ObjectKind, NODE_CLAIM), context.metrics
        )

    def on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """Informer handler: a claim that is registered or gone needs its token no longer (AWS-911)."""
        claim = new or old
        is_done = new is None or conditions.is_true(new.status.conditions, conditions.REGISTERED)
        if claim is not None and is_done and self._issuer.holds_token(claim.metadata.name):
            self._revocation.add(claim.metadata.name)

    def controllers(self) -> tuple[Reconciler[str], ...]:
        """What runs while this process leads."""
        sweep = SingletonReconciler("bootstraptoken.garbagecollection", self._sweep, self._context.metrics)
        return (self._revocation, sweep)

    async def _revoke(self, name: str) -> None:
        await self.join.revoke(name)

    async def _sweep(self) -> float:
        """Delete tokens that no claim needs. Without a class that joins with kubeadm, nothing is asked."""
        view = self._context.cluster_view
        if join_rules.uses_kubeadm(self._context.settings.bootstrap, view.node_classes()):
            await self._issuer.sweep(view.claims())
        return _SWEEP_SECONDS
