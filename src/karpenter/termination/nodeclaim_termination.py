"""NodeClaim termination: delete its Nodes, then terminate the instance, then remove the finalizer (DIS §17.1, OPS §1.8)."""

from __future__ import annotations

from datetime import datetime

import structlog

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import NotFound
from karpenter.kube.protocol import JsonObject
from karpenter.model import conditions, durations, labels
from karpenter.model.clock import rfc3339
from karpenter.providers.contract import ProviderError
from karpenter.runtime.events import WARNING, ObjectEvent, involved_claim
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft
from karpenter.runtime.patching import remove_finalizer
from karpenter.termination import blockers
from karpenter.termination.blockers import BlockerReporter
from karpenter.termination.instance_termination import InstanceTermination

_log = structlog.get_logger()


class NodeClaimTermination:
    """Reconciles deleting claims."""

    def __init__(self, context: ControllerContext, instance_termination: InstanceTermination) -> None:
        self._context = context
        self._instances = instance_termination
        self._reporter = BlockerReporter(context)

    async def reconcile(self, claim: NodeClaim, launched_provider_id: str = "") -> float | None:
        """Run the termination steps of one claim; returns seconds until the next pass, None to wait for events.

        ``launched_provider_id`` is the instance launched for the claim, which the claim's status may not show yet.
        """
        if labels.TERMINATION_FINALIZER not in claim.metadata.finalizers:
            return self._report_foreign_finalizers(claim)
        if await self._set_deadline(claim):
            return None
        if self._was_registered(claim) and await self._delete_nodes(claim):
            return None
        provider_id = claim.status.provider_id or launched_provider_id
        if provider_id:
            remaining = await self._terminate_instance(claim, provider_id)
            if remaining > 0:
                return remaining
        await self._remove_finalizer(claim, provider_id)
        return None

    def _report_foreign_finalizers(self, claim: NodeClaim) -> float | None:
        """Our finalizer is gone: report the finalizers of other controllers that still hold the claim."""
        if not claim.metadata.finalizers:
            return None
        return self._reporter.report(None, claim, [blockers.finalizer_blocker("NodeClaim", claim.metadata)])

    def _was_registered(self, claim: NodeClaim) -> bool:
        """Whether pods may run on the node, according to the claim or, if the claim's status was lost, to its Node."""
        if conditions.is_true(claim.status.conditions, conditions.REGISTERED):
            return True
        nodes = self._context.state.nodes_by_provider_id(claim.status.provider_id)
        return any(node.metadata.labels.get(labels.REGISTERED) == "true" for node in nodes)

    async def _set_deadline(self, claim: NodeClaim) -> bool:
        """Annotate the claim with the drain deadline, once (DIS-501); returns whether it was written now."""
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
        involved = involved_claim(claim.metadata)
        self._context.events.publish(ObjectEvent(involved, WARNING, "TerminationGracePeriodExpiring", message))
        return True

    async def _delete_nodes(self, claim: NodeClaim) -> bool:
        """Delete the claim's Nodes, whose finalizer starts the drain; returns whether any Node is left (DIS-502)."""
        nodes = self._context.state.nodes_by_provider_id(claim.status.provider_id)
        for node in nodes:
            if node.metadata.deletion_timestamp is None:
                try:
                    await self._delete_node(node)
                except NotFound:
                    continue
        return bool(nodes)

    async def _delete_node(self, node: Node) -> None:
        """Delete a Node. Restore a missing termination finalizer before: pods run there and must be drained."""
        meta = node.metadata
        if labels.TERMINATION_FINALIZER not in meta.finalizers:
            patch: JsonObject = {"metadata": {"finalizers": [*meta.finalizers, labels.TERMINATION_FINALIZER]}}
            await self._context.kube.patch(NODE, meta.name, patch, resource_version=meta.resource_version)
        await self._context.kube.delete(NODE, meta.name, uid=meta.uid)

    async def _terminate_instance(self, claim: NodeClaim, provider_id: str) -> float:
        """Terminate the instance; returns seconds until the next call, 0 once it is gone (DIS-503)."""
        draft = NodeClaimDraft(claim, self._context.clock.now())
        try:
            remaining = await self._instances.terminate(draft, provider_id)
        except ProviderError as error:
            await draft.write(self._context.kube)
            self._reporter.report(None, claim, [blockers.instance_blocker(provider_id, error)])
            raise
        if remaining > 0:
            await draft.write(self._context.kube)
            self._reporter.report(None, claim, [blockers.instance_blocker(provider_id, None)])
        return remaining

    async def _remove_finalizer(self, claim: NodeClaim, provider_id: str) -> None:
        meta = claim.metadata
        await remove_finalizer(self._context.kube, NODE_CLAIM, meta, labels.TERMINATION_FINALIZER)
        _log.info("deleted nodeclaim")
        self._instances.forget(provider_id)
        self._reporter.forget(meta.uid)
        self._record_metrics(claim, provider_id)

    def _record_metrics(self, claim: NodeClaim, provider_id: str) -> None:
        """Record durations and count of the termination (OPS-412, OPS-416, OPS-417)."""
        now, metrics, claim_labels = self._context.clock.now(), self._context.metrics, claim.metadata.labels
        pool = claim_labels.get(labels.NODE_POOL, "")
        if provider_id:
            terminating = conditions.find_condition(claim.status.conditions, conditions.INSTANCE_TERMINATING)
            since = (
                terminating.last_transition_time
                if terminating is not None and terminating.status == conditions.TRUE
                else None
            )
            metrics.nodeclaims_instance_termination_duration_seconds.labels(nodepool=pool).observe(
                (now - (since or now)).total_seconds()
            )
        deleted = claim.metadata.deletion_timestamp or now
        metrics.nodeclaims_termination_duration_seconds.labels(nodepool=pool).observe((now - deleted).total_seconds())
        metrics.nodeclaims_terminated_total.labels(
            nodepool=pool,
            capacity_type=claim_labels.get(labels.CAPACITY_TYPE, ""),
            zone=claim_labels.get(labels.ZONE, ""),
        ).inc()


def _termination_deadline(claim: NodeClaim) -> datetime | None:
    """When the claim's termination grace period ends; None without one."""
    text, deleted = claim.spec.termination_grace_period, claim.metadata.deletion_timestamp
    period = durations.parse_duration_or_never(text) if text else None
    return None if period is None or deleted is None else deleted + period
