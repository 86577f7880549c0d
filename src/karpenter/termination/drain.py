"""The drain step of node termination: which pods must leave the node, in which order, and when the drain is complete
(DIS-520 to DIS-525).

Pods are evicted in tiers: ordinary pods before DaemonSet pods, each group with critical pods last. A tier is handed to the
``EvictionQueue``; pods that cannot finish before the node's deadline are deleted instead. Only the API server's own list of pods
completes a drain: the informer may lag behind. That list is requested once per drain, when the informer shows no pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from karpenter.api.core import Node, Pod
from karpenter.controller_context import ControllerContext
from karpenter.model import conditions, pod_disruption, pods
from karpenter.model.clock import rfc3339
from karpenter.runtime.events import WARNING, ObjectEvent, involved_node
from karpenter.termination import blockers, pod_eviction
from karpenter.termination.instance_termination import InstanceTermination
from karpenter.termination.pod_eviction import EvictionQueue, PodForceDeletion, first_eviction_tier, must_delete_pod
from karpenter.termination.step_conditions import StepConditions
from karpenter.termination.terminating_node import DRAIN_POLL_SECONDS, StepBlocked, TerminatingNode, pods_on_node

#: The shortest drain: pods may still be arriving (DIS-524).
MIN_DRAIN_DURATION = timedelta(seconds=5)


class NodeDrain:
    """Drains terminating nodes."""

    def __init__(
        self,
        context: ControllerContext,
        eviction_queue: EvictionQueue,
        instance_termination: InstanceTermination,
        step_conditions: StepConditions,
    ) -> None:
        self._context = context
        self._eviction_queue = eviction_queue
        self._instance_termination = instance_termination
        self._step_conditions = step_conditions
        self._pod_deletion = PodForceDeletion(context)

    async def reconcile(self, terminating: TerminatingNode) -> StepBlocked | None:
        """Request eviction of the next tier and wait while any pod is left (DIS-520 to DIS-525)."""
        self._publish_deadline(terminating)
        waiting = await self._pods_to_drain(terminating)
        forced = [pod for pod in waiting if must_delete_pod(pod, terminating.deadline, terminating.now)]
        # A forced pod keeps its tier until it is gone: otherwise DNS and CNI pods would go before the workload.
        tier = [pod for pod in first_eviction_tier(waiting) if pod not in forced]
        self._eviction_queue.set_pods(terminating.node, self._evictable(tier, terminating.now))
        if forced and terminating.deadline is not None:
            await self._pod_deletion.delete(forced, terminating.node, terminating.deadline)
        if not waiting:
            return self._finish_drain(terminating)
        text = f"{len(waiting)} pods are waiting to be evicted"
        blocker_texts = self._drain_blockers(terminating, waiting)
        self._publish_failed_draining(
            terminating.node, f"Failed to drain node, {blockers.join_blockers((text, *blocker_texts))}"
        )
        if not terminating.is_true(conditions.DRAINED):
            self._step_conditions.set_waiting(terminating, conditions.DRAINED, "Draining", blocker_texts)
        return StepBlocked(DRAIN_POLL_SECONDS, blocker_texts or (text,))

    async def _pods_to_drain(self, terminating: TerminatingNode) -> list[Pod]:
        """The pods that must leave the node. Only the API server's list can show that there is none."""
        now = self._context.clock.now()
        bound: Iterable[Pod] = self._context.state.pods_on(terminating.name)
        waiting = [pod for pod in bound if pod_disruption.needs_draining(pod, now)]
        if waiting or terminating.is_true(conditions.DRAINED) or not _may_finish(terminating):
            return waiting
        return [
            pod
            for pod in await pods_on_node(self._context, terminating.name)
            if pod_disruption.needs_draining(pod, now)
        ]

    def _evictable(self, tier: Iterable[Pod], now: datetime) -> list[Pod]:
        """The pods of a tier that may be evicted now, lowest eviction cost first."""
        for pod in tier:
            pod_eviction.publish_pod_protection(self._context, pod)
        evictable = [pod for pod in tier if pods.is_active(pod) and not pod_disruption.is_protected(pod, now)]
        return sorted(
            evictable, key=lambda pod: (pod_disruption.eviction_cost(pod), pod.metadata.namespace, pod.metadata.name)
        )

    def _finish_drain(self, terminating: TerminatingNode) -> StepBlocked | None:
        """Complete the drain once no pod is left, unless pods may still be arriving (DIS-524)."""
        if terminating.draft is None or terminating.is_true(conditions.DRAINED):
            return None
        if _may_finish(terminating):
            terminating.set_condition(conditions.DRAINED, conditions.TRUE)
            return None
        self._step_conditions.set_waiting(terminating, conditions.DRAINED, "Draining", ())
        return StepBlocked(DRAIN_POLL_SECONDS, ("pods may still be arriving",))

    def _drain_blockers(self, terminating: TerminatingNode, waiting: Sequence[Pod]) -> tuple[str, ...]:
        """Blockers of the pods, preceded by an invalid deadline and followed by an instance error."""
        eviction_errors = self._eviction_queue.eviction_errors(terminating.name)
        budgets = self._context.state.pdbs() if eviction_errors else ()
        drain_state = blockers.DrainState(waiting, budgets, eviction_errors, terminating.now)
        blocker_texts = blockers.pod_blockers(drain_state)
        if terminating.invalid_deadline:
            blocker_texts = (blockers.deadline_blocker(terminating.invalid_deadline), *blocker_texts)
        provider_id = terminating.node.spec.provider_id
        instance_error = self._instance_termination.last_error(provider_id)
        if instance_error is not None:
            blocker_texts = (*blocker_texts, blockers.instance_blocker(provider_id, instance_error))
        return blocker_texts

    def _publish_deadline(self, terminating: TerminatingNode) -> None:
        """Publish the node's deadline, or that its annotation is invalid (DIS-513)."""
        if terminating.invalid_deadline:
            self._publish_failed_draining(
                terminating.node,
                f"Failed to drain node, {blockers.deadline_blocker(terminating.invalid_deadline)}",
                "deadline",
            )
        if terminating.deadline is not None:
            text = f"All pods will be deleted by {rfc3339(terminating.deadline)}"
            involved = involved_node(terminating.node.metadata)
            self._context.events.publish(ObjectEvent(involved, WARNING, "TerminationGracePeriodExpiring", text))

    def _publish_failed_draining(self, node: Node, text: str, *values: str) -> None:
        self._context.events.publish(ObjectEvent(involved_node(node.metadata), WARNING, "FailedDraining", text, values))


def _may_finish(terminating: TerminatingNode) -> bool:
    """Whether the shortest drain duration has passed (DIS-524), so that the drain may complete."""
    if terminating.draft is None:
        return True
    drained = terminating.draft.condition(conditions.DRAINED)
    since = drained.last_transition_time if drained is not None else None
    return since is not None and terminating.now - since >= MIN_DRAIN_DURATION
