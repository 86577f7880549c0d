"""Launch: exactly one instance per NodeClaim, also after lost writes and restarts (OPS §1.2).

The created instance is cached per claim until the claim's status shows it, so that a lost status write does not launch twice.
After a restart the provider must recognise the claim: ``create`` is idempotent per claim (OPS-211). The same call restores a
provider ID that was removed from the claim or changed to another claim's instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
import structlog

from karpenter.api.karpenter import NodeClaim
from karpenter.controller_context import ControllerContext
from karpenter.model import conditions, labels, pods
from karpenter.model import resources as res
from karpenter.model.texts import truncate_message
from karpenter.model.token_bucket import TokenBucket
from karpenter.nodeclaim.node_ownership import other_owner
from karpenter.nodeclaim.subreconciler import NodeClaimSubreconciler
from karpenter.providers.contract import Instance, InsufficientCapacity, LaunchFailed, NodeClassNotReady, ProviderError
from karpenter.runtime.backoff_schedules import NodeClaimBackoff
from karpenter.runtime.events import WARNING, ObjectEvent, involved_claim, involved_pod
from karpenter.runtime.nodeclaim_deletion import delete_claim
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft

#: Events on pods whose NodeClaim failed to launch (K15-380).
_POD_EVENTS_PER_SECOND, _POD_EVENTS_BURST = 5.0, 10
_log = structlog.get_logger()


class NodeClaimLaunch(NodeClaimSubreconciler):
    """Launches instances; caches created instances and launch errors per claim."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._launched_instances: dict[str, tuple[str, Instance]] = {}
        self._launch_errors: dict[str, tuple[str, str, str]] = {}
        self._backoff = NodeClaimBackoff()
        self._pod_events = TokenBucket(_POD_EVENTS_PER_SECOND, _POD_EVENTS_BURST)

    def forget(self, name: str) -> None:
        """Drop the cached launch result: the claim is gone or its status shows the instance."""
        self._launched_instances.pop(name, None)
        self._launch_errors.pop(name, None)
        self._backoff.forget(name)

    def launched_provider_id(self, claim: NodeClaim) -> str:
        """Provider ID of an instance launched for the claim that may not be in its status yet; empty when there is none."""
        uid, instance = self._launched_instances.get(claim.metadata.name, ("", None))
        return instance.provider_id if instance is not None and uid == claim.metadata.uid else ""

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Launch the claim unless Launched is already decided (OPS-010)."""
        if not self._needs_launch(draft):
            self._complete(draft)
            return
        delay = self._backoff.remaining_seconds(draft.claim)
        if delay > 0:
            self._set_launch_error(draft)
            draft.requeue_after(delay)
            return
        try:
            instance = await self._create_instance(draft)
        except (InsufficientCapacity, NodeClassNotReady) as error:
            await self._delete_refused(draft, error)
        except ProviderError as error:
            self._launch_errors[draft.name] = (draft.claim.metadata.uid, *_reason_and_message(error))
            self._set_launch_error(draft)
            draft.errors.append(error)
            self._backoff.next_delay(draft.claim)
        else:
            self._record_instance(draft, instance)
            draft.expected_node_name = instance.node_name

    def _set_launch_error(self, draft: NodeClaimDraft) -> None:
        """Set the error of the last attempt again: its status write may have been lost to a conflict with the provider's own."""
        uid, reason, message = self._launch_errors.get(draft.name, ("", "", ""))
        if uid == draft.claim.metadata.uid:
            draft.set_condition(conditions.LAUNCHED, conditions.UNKNOWN, reason, message)

    def _needs_launch(self, draft: NodeClaimDraft) -> bool:
        """Whether the provider must be called. Never relaunch an instance for a registered NodeClaim."""
        claim, is_registered = draft.claim, draft.is_true(conditions.REGISTERED)
        if claim.status.provider_id:
            nodes = self._context.state.nodes_by_provider_id(claim.status.provider_id)
            return not is_registered and any(other_owner(claim, node, self._context.state) for node in nodes)
        launched = conditions.condition_status(claim.status.conditions, conditions.LAUNCHED)
        return launched == conditions.UNKNOWN or (launched == conditions.TRUE and not is_registered)

    def _complete(self, draft: NodeClaimDraft) -> None:
        """Set Launched on a claim that has a provider ID: both are written together, so the condition was removed by an edit."""
        if draft.claim.status.provider_id:
            self.forget(draft.name)
            if not draft.is_true(conditions.LAUNCHED):
                draft.set_condition(conditions.LAUNCHED, conditions.TRUE)

    async def _delete_refused(self, draft: NodeClaimDraft, error: InsufficientCapacity | NodeClassNotReady) -> None:
        """Delete the claim, so that its pods are scheduled anew, instead of retrying the launch (OPS-014, OPS-015)."""
        has_class = isinstance(error, InsufficientCapacity)
        event = "InsufficientCapacityError" if has_class else "NodeClassNotReady"
        text = f"NodeClaim {draft.name} event: {truncate_message(str(error))}"
        _log.error("failed launching nodeclaim", error=str(error))
        self._context.events.publish(ObjectEvent(involved_claim(draft.claim.metadata), WARNING, event, text))
        if has_class:
            self._publish_to_pods(draft.name, str(error))
        await delete_claim(draft, self._context, "insufficient_capacity" if has_class else "nodeclass_not_ready")

    def _publish_to_pods(self, name: str, error: str) -> None:
        """Publish events on the pods that were planned on the claim (K15-380): users do not look at a deleted NodeClaim."""
        text = truncate_message(f"NodeClaim {name} nominated for this pod failed to launch: {error}")
        planned = self._context.state.planned_nodes
        now = asyncio.get_running_loop().time()
        for pod in self._context.state.pending_pods():
            uid = pod.metadata.uid
            if planned.get(uid) != name or not pods.is_active(pod) or pod.spec.node_name:
                continue
            if not self._pod_events.try_take(now):
                return
            self._context.events.publish(
                ObjectEvent(involved_pod(pod), WARNING, "InsufficientCapacityError", text, (uid,))
            )

    async def _create_instance(self, draft: NodeClaimDraft) -> Instance:
        uid, instance = self._launched_instances.get(draft.name, ("", None))
        if instance is None or uid != draft.claim.metadata.uid:
            instance = await self._context.provider.create(draft.claim)
            self._launched_instances[draft.name] = (draft.claim.metadata.uid, instance)
        return instance

    def _record_instance(self, draft: NodeClaimDraft, instance: Instance) -> None:
        """Copy the instance onto the claim (OPS-011): existing labels of the claim win, annotations of the provider win."""
        draft.merge_metadata({**instance.labels, **draft.claim.metadata.labels}, instance.annotations)
        draft.set_status(
            msgspec.structs.replace(
                draft.claim.status,
                provider_id=instance.provider_id,
                image_id=instance.image_id,
                capacity=res.resources_to_wire(instance.capacity),
                allocatable=res.resources_to_wire(instance.allocatable),
            )
        )
        draft.set_condition(conditions.LAUNCHED, conditions.TRUE)
        draft.after_write(self._launch_report(draft.claim.metadata.labels, instance))

    def _launch_report(self, claim_labels: Mapping[str, str], instance: Instance) -> Callable[[], None]:
        """Report a launch: a log line and a count by instance type (OPS-810)."""
        offering = {
            "instance_type": claim_labels.get(labels.INSTANCE_TYPE, ""),
            "zone": claim_labels.get(labels.ZONE, ""),
            "capacity_type": claim_labels.get(labels.CAPACITY_TYPE, ""),
        }
        details = {
            "provider-id": instance.provider_id,
            **{name.replace("_", "-"): value for name, value in offering.items()},
            "allocatable": res.resources_to_wire(instance.allocatable),
        }

        def report() -> None:
            nodepool = claim_labels.get(labels.NODE_POOL, "")
            self._context.metrics.nodeclaims_launched_total.labels(nodepool=nodepool, **offering).inc()
            _log.info("launched nodeclaim", **details)

        return report


def _reason_and_message(error: ProviderError) -> tuple[str, str]:
    """Condition reason and message of a failed launch (OPS-016). A reason invalid for conditions becomes part of the message."""
    if not isinstance(error, LaunchFailed):
        return "LaunchFailed", truncate_message(str(error))
    if conditions.is_reason(error.reason):
        return error.reason, error.message
    return "LaunchFailed", truncate_message(f"{error.reason}: {error.message}")
