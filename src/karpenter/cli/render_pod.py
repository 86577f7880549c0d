"""The explanation of one pod: a tree for people, data for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

from rich.text import Text
from rich.tree import Tree

from karpenter.api.core import Pod
from karpenter.cli import render_plan_data
from karpenter.cli.render_common import SEARCHABLE_WIDTH, Json, console_for, names_text, pod_name
from karpenter.model import pods
from karpenter.model.texts import count_text
from karpenter.scheduling.explain.heavier_pools import PassedNodePool
from karpenter.scheduling.explain.nearest_fit_messages import filter_noun, nearest_fit_sentence, nearest_node_clause
from karpenter.scheduling.explain.reason_messages import placed_when_message, reason_message, short_reason_message
from karpenter.scheduling.failed_filters import FilteredTypes
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods, Solution, UnschedulablePod
from karpenter.scheduling.unschedulable_reasons import UnschedulableReason

_SHOWN_TYPES = 5


class PodOutcome(StrEnum):
    """The pod's state in the plan."""

    UNSCHEDULABLE = "unschedulable"
    NEW_NODE = "new-node"
    EXISTING_NODE = "existing-node"
    BOUND = "bound"
    NOT_PENDING = "not-pending"


@dataclass(frozen=True)
class PodExplanation:
    """The pod and the part of the plan that is about it; at most one of ``unplaced``, ``claim`` and ``placed`` is given.

    ``passed_pools``: with a claim, the heavier NodePools that have no node for the pod.
    """

    pod: Pod
    unplaced: UnschedulablePod | None = None
    claim: NewNodeClaim | None = None
    placed: PlacedPods | None = None
    passed_pools: tuple[PassedNodePool, ...] = ()

    @property
    def outcome(self) -> PodOutcome:
        """The pod's state; a pod about to leave its node is part of the plan as well."""
        if self.unplaced is not None:
            return PodOutcome.UNSCHEDULABLE
        if self.claim is not None:
            return PodOutcome.NEW_NODE
        if self.placed is not None:
            return PodOutcome.EXISTING_NODE
        return PodOutcome.BOUND if self.pod.spec.node_name else PodOutcome.NOT_PENDING


def explain_pod(pod: Pod, plan: Solution) -> PodExplanation:
    """What the plan says about the pod."""
    name = pod_name(pod)

    def among(others: Sequence[Pod]) -> bool:
        return any(pod_name(other) == name for other in others)

    return PodExplanation(
        pod,
        unplaced=next((left for left in plan.unschedulable if pod_name(left.pod) == name), None),
        claim=next((claim for claim in plan.new_claims if among(claim.pods)), None),
        placed=next((placed for placed in plan.placed_on_existing if among(placed.pods)), None),
    )


# -- in words -----------------------------------------------------------------------------------------------------------


def headline(explanation: PodExplanation) -> str:
    """The one sentence."""
    if explanation.unplaced is not None:
        nearest = nearest_fit_sentence(explanation.unplaced.nearest_fit, explanation.unplaced.nearest_node)
        return f"unschedulable: {nearest or '; '.join(short_reason_message(reason) for reason in explanation.unplaced.reasons)}"
    if explanation.claim is not None:
        return f"new node: {_node_claim_text(explanation.claim)}"
    if explanation.placed is not None:
        when = placed_when_message(explanation.placed)
        return f"fits on existing or in-flight node {explanation.placed.node_name}{when}"
    pod = explanation.pod
    return _where_it_stays(pod) if pod.spec.node_name else f"not planned for: {_why_not_pending(pod)}"


def _where_it_stays(pod: Pod) -> str:
    node = pod.spec.node_name
    if pods.is_finished(pod):
        return f"has finished on node {node}: {pod.status.phase}"
    return f"is being deleted on node {node}" if not pods.is_active(pod) else f"is bound to node {node} and stays there"


def _node_claim_text(claim: NewNodeClaim) -> str:
    where = f"{claim.cheapest_offering.zone}, {claim.cheapest_offering.capacity_type}"
    price = f"${claim.price_per_hour:.4f} per hour"
    if claim.cpu_surplus_per_hour:
        price += f" and ${claim.cpu_surplus_per_hour:.4f} for CPU requests beyond its baseline"
    return f"{claim.instance_types[0]} of NodePool {claim.node_pool} in {where}, {price}"


def _why_not_pending(pod: Pod) -> str:
    if pods.is_finished(pod):
        return "it has finished"
    if pod.metadata.deletion_timestamp is not None:
        return "it is being deleted"
    if pod.spec.scheduling_gates:
        gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
        return f"it has scheduling gates ({gates})"
    if pods.is_daemonset_pod(pod) or pods.is_mirror_pod(pod):
        return "it belongs to its node, as pods of DaemonSets and static pods do"
    if not pods.is_unschedulable(pod):
        return "the scheduler has not marked it unschedulable yet (condition PodScheduled, reason Unschedulable)"
    return "the scheduler is making room for it on a node"


# -- the tree -----------------------------------------------------------------------------------------------------------


def write(
    explanation: PodExplanation,
    price_lines: Iterable[str],
    reason_text: Callable[[UnschedulableReason], str],
    out: TextIO,
) -> None:
    """Write the tree; ``price_lines`` say where prices come from, ``reason_text`` words a reason in short or in full.

    A sentence that stands in the headline is not repeated below it.
    """
    style = "red" if explanation.unplaced is not None else "green"
    tree = Tree(Text.assemble((f"Pod {pod_name(explanation.pod)}", "bold"), " ", (headline(explanation), style)))
    if explanation.unplaced is not None:
        for reason in explanation.unplaced.reasons:
            _add_reason(tree, reason, reason_text(reason), headline(explanation))
        if explanation.unplaced.nearest_node is not None:
            tree.add(Text(f"existing nodes: {nearest_node_clause(explanation.unplaced.nearest_node)}"))
    for line in _placement_lines(explanation):
        tree.add(Text(line))
    tree.add(Text("\n").join(Text(line, style="dim") for line in price_lines))
    console_for(out, SEARCHABLE_WIDTH).print(tree)


def _placement_lines(explanation: PodExplanation) -> Iterator[str]:
    if explanation.placed is not None:
        yield "existing nodes are tried first; this is the first that fits"
        yield _other_pods_text(explanation.placed.pods)
    if explanation.claim is not None:
        types = explanation.claim.instance_types
        yield "no existing node fits"
        yield f"cheapest of {count_text(len(types), 'type')} that fit: {names_text(types, _SHOWN_TYPES)}"
        yield _other_pods_text(explanation.claim.pods)
        yield from map(_passed_pool_text, explanation.passed_pools)


def _passed_pool_text(passed: PassedNodePool) -> str:
    return f"heavier NodePool {passed.node_pool} (weight {passed.weight}) is passed over: {_refusal_text(passed)}"


def _refusal_text(passed: PassedNodePool) -> str:
    refusal = passed.refusal
    if passed.unavailable_offerings:
        return f"none of its {count_text(passed.unavailable_offerings, 'offering')} is available now"
    if refusal is None:
        return "other pods of this plan come first"
    reasons = "; ".join(reason_message(reason) for reason in refusal.reasons)
    return nearest_fit_sentence(refusal.nearest_fit, None) or reasons


def _other_pods_text(pods_together: Sequence[Pod]) -> str:
    return f"shared with {count_text(len(pods_together) - 1, 'other pod')} of this plan"


def _add_reason(tree: Tree, reason: UnschedulableReason, text: str, said: str) -> None:
    """A branch for a reason, with what is not yet ``said``; none at all where that is nothing."""
    pool = f"NodePool {reason.node_pool}: " if reason.node_pool else ""
    branch = Tree(Text.assemble((pool, "bold"), text))
    if reason.filter_breakdown is not None:
        filter_breakdown = reason.filter_breakdown
        counts = (
            f"of {count_text(filter_breakdown.types, 'type')} with {count_text(filter_breakdown.offerings, 'offering')}"
        )
        types = branch.add(Text(counts)) if filter_breakdown.filtered else branch
        for filtered_types in filter_breakdown.filtered:
            types.add(_filtered_types_text(filtered_types))
    nearest = nearest_fit_sentence(reason.nearest_fit)
    if nearest and nearest not in said:
        branch.add(Text(nearest))
    if branch.children or text not in said:
        tree.children.append(branch)


def _filtered_types_text(filtered: FilteredTypes) -> Text:
    offerings = f" with {count_text(filtered.offerings, 'offering')}" if filtered.offerings else ""
    alone = "" if filtered.only_by_this == filtered.types else f" ({filtered.only_by_this} by it alone)"
    return Text(f"{filtered.types} filtered{offerings} by {filter_noun(filtered.failed_filter)}{alone}")


# -- for programs -------------------------------------------------------------------------------------------------------


def _passed_pool(passed: PassedNodePool) -> Json:
    return {"nodePool": passed.node_pool, "weight": passed.weight, "text": _refusal_text(passed)}


def document(explanation: PodExplanation) -> Json:
    """The answer as plain data. ``price`` is USD per hour."""
    data: Json = {"pod": pod_name(explanation.pod), "state": explanation.outcome.value, "text": headline(explanation)}
    if explanation.unplaced is not None:
        return data | render_plan_data.unplaced_data(explanation.unplaced)
    if explanation.claim is not None:
        passed_pools = [_passed_pool(passed) for passed in explanation.passed_pools]
        return data | {
            "nodeClaim": render_plan_data.node_claim_data(explanation.claim),
            "passedNodePools": passed_pools,
        }
    node = explanation.placed.node_name if explanation.placed is not None else explanation.pod.spec.node_name
    return data | ({"node": node} if node else {})
