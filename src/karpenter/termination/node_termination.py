"""The node termination reconciler: cordon, drain, wait for volumes, terminate the instance, remove the finalizer (DIS §17.2).

One pass over a deleting Node runs the steps in this order until one has to wait. Blockers are written to the NodeClaim's
conditions at once, and published as events and logged if they last. A pass never waits for evictions: ``NodeDrain`` hands pods to
the ``EvictionQueue``, which calls the Eviction API at its own rate.
"""

from __future__ import annotations

import structlog

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.controller_context import ControllerContext
from karpenter.kube.delete_preconditions import delete_if_present
from karpenter.kube.errors import Conflict, NotFound
from karpenter.model import conditions, labels
from karpenter.model.texts import abbreviated
from karpenter.providers.contract import ProviderError
from karpenter.runtime.events import NORMAL, ObjectEvent, involved_node
from karpenter.runtime.patching import merge_patch, remove_finalizer
from karpenter.termination import blockers, volume_detachment
from karpenter.termination.blockers import BlockerReporter
from karpenter.termination.drain import NodeDrain
from karpenter.termination.instance_termination import INSTANCE_POLL_SECONDS, InstanceTermination
from karpenter.termination.pod_eviction import EvictionQueue
from karpenter.termination.step_conditions import StepConditions
from karpenter.termination.terminating_node import DRAIN_POLL_SECONDS, StepBlocked, TerminatingNode, cordoned_node

_GRACE_PERIOD_ELAPSED = "TerminationGracePeriodElapsed"
_log = structlog.get_logger()


class NodeTermination:
    """Reconciles deleting Nodes by name."""

    def __init__(
        self, context: ControllerContext, eviction_queue: EvictionQueue, instance_termination: InstanceTermination
    ) -> None:
        self._context = context
        self._eviction_queue = eviction_queue
        self._instance_termination = instance_termination
        self._blocker_reporter = BlockerReporter(context)
        self._step_conditions = StepConditions()
        self._drain = NodeDrain(context, eviction_queue, instance_termination, self._step_conditions)
        self._deleted_nodes: dict[str, Node] = {}

    def node_deleted(self, node: Node) -> None:
        """The watch delivered the removal of the Node; the next pass for its name handles it."""
        self._deleted_nodes[node.metadata.name] = node

    async def reconcile(self, name: str) -> float | None:
        """Run the termination steps of one Node; returns seconds until the next pass, None to wait for events.

        Raises ``KubeError`` or ``ProviderError`` when a step failed; the queue retries with backoff.
        """
        if name in self._deleted_nodes:
            await self._handle_deleted_node(self._deleted_nodes[name])
            self._deleted_nodes.pop(name, None)
        node = self._context.state.node(name)
        if node is None or node.metadata.deletion_timestamp is None:
            self._eviction_queue.remove_node(name)
            return None
        claim = self._claim_of(node.spec.provider_id)
        if not self._is_ours(node, claim):
            return None
        log_fields = {"NodeClaim": {"name": claim.metadata.name}} if claim else {}
        with structlog.contextvars.bound_contextvars(Node={"name": name}, **log_fields):
            if labels.TERMINATION_FINALIZER not in node.metadata.finalizers:
                return self._report_foreign_finalizers(node, claim)
            try:
                return await self._reconcile(TerminatingNode(node, claim, self._context.clock.now()))
            except (NotFound, Conflict):
                return DRAIN_POLL_SECONDS

    def _claim_of(self, provider_id: str) -> NodeClaim | None:
        """The Node's claim; None also if several claims have its provider ID (DIS-511)."""
        claims = self._context.state.claims_by_provider_id(provider_id)
        return claims[0] if len(claims) == 1 else None

    def _is_ours(self, node: Node, claim: NodeClaim | None) -> bool:
        """Whether the node class is one the provider serves, according to the claim or the Node's label (DIS-510)."""
        if claim is not None and self._context.is_managed(claim):
            return True
        served = {f"{kind.group}/{kind.name.lower()}" for kind in self._context.provider.node_class_kinds}
        return not served.isdisjoint(node.metadata.labels)

    async def _handle_deleted_node(self, node: Node) -> None:
        """Delete the claim of a removed Node, also when a manually removed finalizer skipped the drain (DIS-S294)."""
        self._blocker_reporter.forget(node.metadata.uid)
        self._step_conditions.forget(node.metadata.uid)
        claim = self._claim_of(node.spec.provider_id)
        if claim is None or not self._context.is_managed(claim) or claim.metadata.deletion_timestamp is not None:
            return
        was_registered = conditions.is_true(claim.status.conditions, conditions.REGISTERED)
        if was_registered and not self._context.state.nodes_by_provider_id(node.spec.provider_id):
            _log.info("deleting nodeclaim whose node is gone", NodeClaim={"name": claim.metadata.name})
            await delete_if_present(self._context.kube, NODE_CLAIM, claim.metadata)

    def _report_foreign_finalizers(self, node: Node, claim: NodeClaim | None) -> float | None:
        """Our finalizer is gone: report the finalizers of other controllers that still hold the Node."""
        self._eviction_queue.remove_node(node.metadata.name)
        if not node.metadata.finalizers:
            return None
        return self._blocker_reporter.report(node, claim, [blockers.finalizer_blocker("Node", node.metadata)])

    async def _reconcile(self, terminating: TerminatingNode) -> float | None:
        claim, node = terminating.claim, terminating.node
        is_new = claim is not None and claim.metadata.deletion_timestamp is None
        if claim is not None and is_new:
            await delete_if_present(self._context.kube, NODE_CLAIM, claim.metadata)
        is_ready = conditions.is_true(node.status.conditions, conditions.READY)
        if not is_ready and await self._instance_termination.is_missing(node.spec.provider_id):
            await self._remove_finalizer(node)
            return None
        await self._cordon(node)
        if is_new:
            # The claim has just changed: writing its conditions in this pass would conflict.
            return DRAIN_POLL_SECONDS
        blocked = (
            (None if is_ready else self._await_instance_lookup(terminating))
            or await self._drain.reconcile(terminating)
            or self._await_volume_detachment(terminating)
            or await self._terminate_instance(terminating)
        )
        await self._write_conditions(terminating)
        if blocked is None:
            await self._remove_finalizer(node)
            return None
        self._blocker_reporter.report(node, claim, blocked.blockers)
        if blocked.error is not None:
            raise blocked.error
        return blocked.requeue_after_seconds

    def _await_instance_lookup(self, terminating: TerminatingNode) -> StepBlocked | None:
        """Wait while the cloud cannot say whether the instance of a Node that is not Ready exists (DIS-512).

        If it is gone, its pods need no eviction: no kubelet could carry it out.
        """
        provider_id = terminating.node.spec.provider_id
        error = self._instance_termination.lookup_error(provider_id)
        if error is None:
            return None
        self._eviction_queue.set_pods(terminating.node, ())
        blocker_texts = (blockers.instance_blocker(provider_id, error),)
        if not terminating.is_true(conditions.DRAINED):
            self._step_conditions.set_waiting(terminating, conditions.DRAINED, "Draining", blocker_texts)
        return StepBlocked(INSTANCE_POLL_SECONDS, blocker_texts)

    async def _cordon(self, node: Node) -> None:
        patch = merge_patch(node, cordoned_node(node))
        if patch:
            await self._context.kube.patch(
                NODE, node.metadata.name, patch, resource_version=node.metadata.resource_version
            )
            taint = labels.DISRUPTED_TAINT
            _log.info(
                "tainted node", **{"taint.Key": taint.key, "taint.Value": taint.value, "taint.Effect": taint.effect}
            )

    async def _write_conditions(self, terminating: TerminatingNode) -> None:
        """Write the claim's conditions; count a completed drain once its condition is stored (DIS-408)."""
        if terminating.draft is None or terminating.claim is None:
            return
        was_drained = conditions.is_true(terminating.claim.status.conditions, conditions.DRAINED)
        await terminating.draft.write(self._context.kube)
        if terminating.is_true(conditions.DRAINED) and not was_drained:
            pool = terminating.node.metadata.labels.get(labels.NODE_POOL, "")
            self._context.metrics.nodes_drained_total.labels(nodepool=pool).inc()

    # -- volumes --------------------------------------------------------------------------------------------------------

    def _await_volume_detachment(self, terminating: TerminatingNode) -> StepBlocked | None:
        """Wait until volumes are detached or the deadline has passed (DIS-540 to DIS-542)."""
        attached = volume_detachment.awaited_attachments(self._context.state, terminating.name, terminating.now)
        if not attached:
            terminating.set_condition(conditions.VOLUMES_DETACHED, conditions.TRUE)
            return None
        if terminating.is_past_deadline():
            terminating.set_condition(
                conditions.VOLUMES_DETACHED, conditions.FALSE, _GRACE_PERIOD_ELAPSED, _GRACE_PERIOD_ELAPSED
            )
            return None
        names = [attachment.metadata.name for attachment in attached]
        text = f"Awaiting volume detachment, {abbreviated(names)}"
        self._context.events.publish(
            ObjectEvent(involved_node(terminating.node.metadata), NORMAL, "AwaitingVolumeDetachment", text)
        )
        blocker_texts = [
            blockers.volume_blocker(attachment, volume_detachment.volume_claim_of(self._context.state, attachment))
            for attachment in attached
        ]
        self._step_conditions.set_waiting(
            terminating, conditions.VOLUMES_DETACHED, "AwaitingVolumeDetachment", blocker_texts
        )
        return StepBlocked(DRAIN_POLL_SECONDS, blocker_texts)

    # -- instance -------------------------------------------------------------------------------------------------------

    async def _terminate_instance(self, terminating: TerminatingNode) -> StepBlocked | None:
        """Terminate the instance and wait until it is gone (DIS-545)."""
        if terminating.draft is None:
            return None
        provider_id = terminating.node.spec.provider_id
        try:
            remaining = await self._instance_termination.terminate(terminating.draft, provider_id)
        except ProviderError as error:
            return StepBlocked(0.0, (blockers.instance_blocker(provider_id, error),), error)
        return StepBlocked(remaining, (blockers.instance_blocker(provider_id, None),)) if remaining > 0 else None

    async def _remove_finalizer(self, node: Node) -> None:
        """Remove the finalizer and record the termination metrics (OPS-418, OPS-419)."""
        meta = node.metadata
        self._eviction_queue.remove_node(meta.name)
        await remove_finalizer(self._context.kube, NODE, meta, labels.TERMINATION_FINALIZER)
        _log.info("deleted node")
        self._instance_termination.forget(node.spec.provider_id)
        now, pool = self._context.clock.now(), meta.labels.get(labels.NODE_POOL, "")
        metrics = self._context.metrics
        metrics.nodes_terminated_total.labels(nodepool=pool, zone=meta.labels.get(labels.ZONE, "")).inc()
        metrics.nodes_termination_duration_seconds.labels(nodepool=pool).observe(
            (now - (meta.deletion_timestamp or now)).total_seconds()
        )
