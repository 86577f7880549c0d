"""Events about disruption: which nodes are about to be disrupted, and why others are not (DIS §19)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

from karpenter.api.core import Node, Pod
from karpenter.controller_context import ControllerContext
from karpenter.disruption.decide.blocker_messages import blocker_message, closed_budget_message
from karpenter.disruption.decide.candidates import BlockedNode
from karpenter.disruption.decide.command import Command, Decision, DisruptionReason, MoveScore
from karpenter.disruption.decide.command_validation import ValidationFailure
from karpenter.disruption.decide.disruption_blockers import TooManyUnhealthy
from karpenter.disruption.queued_command import candidate_summary, command_summary
from karpenter.model import labels, pod_disruption
from karpenter.runtime.events import (
    NORMAL,
    WARNING,
    InvolvedObject,
    ObjectEvent,
    involved_claim,
    involved_node,
    involved_pod,
    involved_pool,
)
from karpenter.state.state_node import StateNode
from karpenter.termination import pod_eviction

#: How long a passing and a lasting obstacle is not said again (DIS-390, DIS-398), and a closed budget (DIS-391).
_BLOCKED_DEDUPE_TIMEOUT, _UNCONSOLIDATABLE_DEDUPE_TIMEOUT, _BUDGET_DEDUPE_TIMEOUT = (
    timedelta(minutes=2),
    timedelta(minutes=15),
    timedelta(minutes=1),
)


def publish_blocked(context: ControllerContext, blocked: Iterable[BlockedNode]) -> None:
    """Publish why nodes are not disrupted, except for nodes that are still starting."""
    for blocked_node in blocked:
        if isinstance(blocked_node.blocker, TooManyUnhealthy):
            _publish_repair_blocked(context, blocked_node.state_node, blocker_message(blocked_node.blocker))
        elif blocked_node.state_node.initialized:
            reason, silence = (
                ("Unconsolidatable", _UNCONSOLIDATABLE_DEDUPE_TIMEOUT)
                if blocked_node.blocker.concerns_consolidation_only
                else ("DisruptionBlocked", _BLOCKED_DEDUPE_TIMEOUT)
            )
            message = blocker_message(blocked_node.blocker)
            for about in involved_objects(blocked_node.state_node):
                context.events.publish(
                    ObjectEvent(about, NORMAL, reason, message, blocked_node.blocker.identity, silence)
                )


def _publish_repair_blocked(context: ControllerContext, view: StateNode, text: str) -> None:
    """The breaker stops the repair of a node (K15-228, K15-490): on the Node, its NodeClaim and its NodePool."""
    pool = context.state.pool(view.pool)
    subjects = [*involved_objects(view), *(() if pool is None else (involved_pool(pool.metadata),))]
    context.events.publish(
        *(
            ObjectEvent(about, WARNING, "NodeRepairBlocked", text, (text,), _UNCONSOLIDATABLE_DEDUPE_TIMEOUT)
            for about in subjects
        )
    )


def publish_pod_protections(context: ControllerContext, views: Iterable[StateNode]) -> None:
    """What the annotations of nodes of ours and of the pods on them do (DIS-092 to DIS-094, API-451)."""
    for view in views:
        if view.managed and view.node is not None:
            _publish_invalid_protection(context, view.node)
        for pod in view.pods_with_eviction_annotation if view.managed else ():
            if labels.DO_NOT_DISRUPT in pod.metadata.annotations:
                pod_eviction.publish_pod_protection(context, pod)
        for unreadable in view.unreadable_costs if view.managed else ():
            _publish_unreadable_cost(context, *unreadable)


def _publish_invalid_protection(context: ControllerContext, node: Node) -> None:
    """A Node's annotation that protects nothing, neither now nor later."""
    protection = pod_disruption.node_disruption_protection(node, context.clock.now())
    if protection is not None and protection.error:
        text = f"Ignoring the annotation {labels.DO_NOT_DISRUPT}: {protection.error}"
        about = involved_node(node.metadata)
        context.events.publish(ObjectEvent(about, WARNING, "InvalidDoNotDisruptAnnotation", text, (protection.error,)))


def _publish_unreadable_cost(context: ControllerContext, pod: Pod, annotation: str, value: str) -> None:
    """A cost annotation that counts for nothing (K15-341): an event, since a log line of each pass would be noise."""
    text = f"Ignoring the annotation {annotation}: {value!r} is not a 32-bit integer"
    context.events.publish(ObjectEvent(involved_pod(pod), WARNING, "InvalidDisruptionCost", text, (annotation, value)))


def publish_closed_budgets(context: ControllerContext, reason: DisruptionReason, pools: Mapping[str, str]) -> None:
    """Pools whose budgets allow nothing at all for a reason, each with the field that says so (DIS-149)."""
    for name, source in pools.items():
        pool = context.state.pool(name)
        if pool is not None:
            text = closed_budget_message(reason, source)
            about = involved_pool(pool.metadata)
            context.events.publish(
                ObjectEvent(about, NORMAL, "DisruptionBlocked", text, (reason.value,), _BUDGET_DEDUPE_TIMEOUT)
            )


def publish_consolidation_candidate(context: ControllerContext, command: Command) -> None:
    """A consolidation waits for its validation (DIS-395, its Beyond: once per command, not for every set that was tried)."""
    if command.decision is Decision.REPLACE:
        text, values = command_summary(command), (command_summary(command),)
        _publish_to_candidates(
            context, command, "ConsolidationCandidate", f"{text}, savings: ${command.saving_per_hour or 0:.2f}", values
        )


def publish_consolidation_approved(context: ControllerContext, command: Command) -> None:
    """What Balanced pools think of it (DIS-260, DIS-264): of one node on that node, of several on the pools."""
    for score in command.scores:
        pool = context.state.pool(score.node_pool)
        if not score.balanced or not score.approved or pool is None:
            continue
        is_single = len(command.candidates) == 1
        about = involved_objects(command.candidates[0].state_node) if is_single else [involved_pool(pool.metadata)]
        context.events.publish(
            *(
                ObjectEvent(involved_object, NORMAL, "ConsolidationApproved", _score_text(score))
                for involved_object in about
            )
        )


def _score_text(score: MoveScore) -> str:
    """The message for a command that passed the threshold: its score, and the two shares it is made of (DIS-261)."""
    return (
        f"Consolidation approved: score {score.score:.2f}, threshold {score.threshold:.2f}, k: {1 / score.threshold:g}, "
        f"savings {100 * score.saving_fraction:.1f}%, disruption {100 * score.disruption_fraction:.1f}%"
    )


def publish_consolidation_rejected(context: ControllerContext, command: Command, refusal: ValidationFailure) -> None:
    """It did not stand the validation (DIS-396)."""
    for candidate in command.candidates:
        text = candidate_summary(command, candidate)
        message = f"{text}, rejected: {refusal}, savings: ${command.saving_per_hour or 0:.2f}"
        for about in involved_objects(candidate.state_node):
            context.events.publish(ObjectEvent(about, NORMAL, "ConsolidationRejected", message, (text, refusal.value)))


def _publish_to_candidates(
    context: ControllerContext, command: Command, reason: str, message: str, values: tuple[str, ...]
) -> None:
    for candidate in command.candidates:
        for about in involved_objects(candidate.state_node):
            context.events.publish(ObjectEvent(about, NORMAL, reason, message, values))


def involved_objects(view: StateNode) -> list[InvolvedObject]:
    """The objects behind a node: its NodeClaim, its Node, whichever there are."""
    involved = [involved_claim(view.claim.metadata)] if view.claim is not None else []
    if view.node is not None:
        involved.append(involved_node(view.node.metadata))
    return involved
