"""The end of a NodeClaim: its Node goes first, then the instance, then the finalizer (DIS §17.1, OPS §1.8)."""

from __future__ import annotations

from datetime import datetime

import structlog

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.kube.errors import NotFound
from karpenter.kube.protocol import JsonObject
from karpenter.model import conditions, durations, labels
from karpenter.model.clock import rfc3339
from karpenter.providers.contract import ProviderError
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.events import WARNING, ObjectEvent, involved_claim
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft
from karpenter.termination import blockers
from karpenter.termination.blockers import BlockerReporter
from karpenter.termination.instance_termination import InstanceTermination

_log = structlog.get_logger()


class NodeClaimTermination:
    """Takes deleting claims apart."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._instances = InstanceTermination(context)
        self._reporter = BlockerReporter(context)

    async def reconcile(self, claim: NodeClaim, launched_provider_id: str = "") -> float | None:
        """One step of the ending; seconds until the next look, None to wait for events.

        ``bought`` is the provider ID of a machine that was bought for the claim, even if the claim does not show it yet.
        """
        if labels.TERMINATION_FINALIZER not in claim.metadata.finalizers:
            return self._report_foreign_finalizers(claim)
        if await self._set_deadline(claim):
            return None
        if self._was_registered(claim) and await self._delete_nodes(claim):
            return None
        provider_id = claim.status.provider_id or launched_provider_id
        if provider_id:
            left = await self._terminate_instance(claim, provider_id)
            if left > 0:
                return left
        await self._remove_finalizer(claim, provider_id)
        return None

    def _report_foreign_finalizers(self, claim: NodeClaim) -> float | None:
        """Our part is done; what still keeps the claim is somebody else's."""
        if not claim.metadata.finalizers:
            return None
        return self._reporter.report(None, claim, [blockers.finalizer_blocker("NodeClaim", claim.metadata)])

    def _was_registered(self, claim: NodeClaim) -> bool:
        """Whether pods may be on the machine: the claim says so, or its Node does although the claim's status was lost."""
        if conditions.is_true(claim.status.conditions, "Registered"):
            return True
        nodes = self._context.state.nodes_by_provider_id(claim.status.provider_id)
        return any(node.metadata.labels.get(labels.REGISTERED) == "true" for node in nodes)

    async def _set_deadline(self, claim: NodeClaim) -> bool:
        """Write when the drain must end, once (DIS-501); whether it was written now."""
        deadline = _termination_deadline(claim)
        if deadline is None or labels.TERMINATION_TIMESTAMP in claim.metadata.annotations:
            return False
        text = rfc3339(deadline)
        await self._context.kube.patch(
            NODE_CLAIM,
            claim.metadata.name,
            {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: text}}},
            resource_version=claim.metadata.resource_version,
        )
        _log.info("annotated nodeclaim", **{labels.TERMINATION_TIMESTAMP: text})
        message = f"All pods will be deleted by {text}"
        about = involved_claim(claim.metadata)
        self._context.events.publish(ObjectEvent(about, WARNING, "TerminationGracePeriodExpiring", message))
        return True

    async def _delete_nodes(self, claim: NodeClaim) -> bool:
        """Delete the claim's Nodes; their own finalizer drains them. Whether any is still there (DIS-502)."""
        nodes = self._context.state.nodes_by_provider_id(claim.status.provider_id)
        for node in nodes:
            if node.metadata.deletion_timestamp is None:
                try:
                    await self._delete_node(node)
                except NotFound:
                    continue
        return bool(nodes)

    async def _delete_node(self, node: Node) -> None:
        """A Node without our finalizer, lost to somebody's edit or never had by one that came back, gets it: pods run there."""
        meta = node.metadata
        if labels.TERMINATION_FINALIZER not in meta.finalizers:
            patch: JsonObject = {"metadata": {"finalizers": [*meta.finalizers, labels.TERMINATION_FINALIZER]}}
            await self._context.kube.patch(NODE, meta.name, patch, resource_version=meta.resource_version)
        await self._context.kube.delete(NODE, meta.name, uid=meta.uid)

    async def _terminate_instance(self, claim: NodeClaim, provider_id: str) -> float:
        """Seconds until the cloud is to be asked again, 0 once the instance is gone (DIS-503)."""
        draft = NodeClaimDraft(claim, self._context.clock.now())
        try:
            left = await self._instances.terminate(draft, provider_id)
        except ProviderError as fault:
            await draft.write(self._context)
            self._reporter.report(None, claim, [blockers.instance_blocker(provider_id, fault)])
            raise
        if left > 0:
            await draft.write(self._context)
            self._reporter.report(None, claim, [blockers.instance_blocker(provider_id, None)])
        return left

    async def _remove_finalizer(self, claim: NodeClaim, provider_id: str) -> None:
        meta = claim.metadata
        left = [name for name in meta.finalizers if name != labels.TERMINATION_FINALIZER]
        patch: JsonObject = {"metadata": {"finalizers": left}}
        await self._context.kube.patch(NODE_CLAIM, meta.name, patch, resource_version=meta.resource_version)
        _log.info("deleted nodeclaim")
        self._instances.forget(provider_id)
        self._reporter.forget(meta.uid)
        self._record_metrics(claim, provider_id)

    def _record_metrics(self, claim: NodeClaim, provider_id: str) -> None:
        """How long the ending took (OPS-412, OPS-416, OPS-417)."""
        now, metrics, own = self._context.clock.now(), self._context.metrics, claim.metadata.labels
        pool = own.get(labels.NODE_POOL, "")
        if provider_id:
            asked = conditions.find_condition(claim.status.conditions, "InstanceTerminating")
            since = asked.last_transition_time if asked is not None and asked.status == conditions.TRUE else None
            metrics.nodeclaims_instance_termination_duration_seconds.labels(nodepool=pool).observe(
                (now - (since or now)).total_seconds()
            )
        deleted = claim.metadata.deletion_timestamp or now
        metrics.nodeclaims_termination_duration_seconds.labels(nodepool=pool).observe((now - deleted).total_seconds())
        metrics.nodeclaims_terminated_total.labels(
            nodepool=pool, capacity_type=own.get(labels.CAPACITY_TYPE, ""), zone=own.get(labels.ZONE, "")
        ).inc()


def _termination_deadline(claim: NodeClaim) -> datetime | None:
    """When the claim's grace period ends; None without one."""
    text, deleted = claim.spec.termination_grace_period, claim.metadata.deletion_timestamp
    period = durations.parse_duration_or_never(text) if text else None
    return None if period is None or deleted is None else deleted + period
