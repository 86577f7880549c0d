"""What there is to say about one pod: as a tree for people, as JSON or YAML for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

from rich.text import Text
from rich.tree import Tree

from karpenter.api.core import Pod
from karpenter.cli import render_plan_data
from karpenter.cli.render_common import Json, console_for, pod_name
from karpenter.model import pods
from karpenter.scheduling.explain.nearest_fit_messages import filter_noun, nearest_fit_sentence, nearest_node_clause
from karpenter.scheduling.explain.reason_messages import reason_message
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods, Solution, UnschedulablePod
from karpenter.scheduling.unschedulable_reasons import FilteredTypes, UnschedulableReason

_SHOWN_TYPES = 5
#: Where the output is no terminal every fact has one line, so that it can be searched.
_WIDTH_ELSEWHERE = 4096


class PodOutcome(StrEnum):
    """What becomes of the pod."""

    UNSCHEDULABLE = "unschedulable"
    NEW_NODE = "new-machine"
    EXISTING_NODE = "existing-machine"
    BOUND = "bound"
    NOT_WAITING = "not-waiting"


@dataclass(frozen=True)
class PodExplanation:
    """The pod and the part of the plan that is about it; at most one of the last three is given."""

    pod: Pod
    unplaced: UnschedulablePod | None = None
    claim: NewNodeClaim | None = None
    placed: PlacedPods | None = None

    @property
    def outcome(self) -> PodOutcome:
        """What becomes of the pod; one about to leave its node has a part of the plan as well."""
        if self.unplaced is not None:
            return PodOutcome.UNSCHEDULABLE
        if self.claim is not None:
            return PodOutcome.NEW_NODE
        if self.placed is not None:
            return PodOutcome.EXISTING_NODE
        return PodOutcome.BOUND if self.pod.spec.node_name else PodOutcome.NOT_WAITING


def explain_pod(pod: Pod, plan: Solution) -> PodExplanation:
    """What the plan says about the pod."""
    name = pod_name(pod)

    def among(found: Sequence[Pod]) -> bool:
        return any(pod_name(other) == name for other in found)

    return PodExplanation(
        pod,
        unplaced=next((item for item in plan.unschedulable if pod_name(item.pod) == name), None),
        claim=next((claim for claim in plan.new_claims if among(claim.pods)), None),
        placed=next((placed for placed in plan.placed_on_existing if among(placed.pods)), None),
    )


# -- in words -----------------------------------------------------------------------------------------------------------


def headline(explanation: PodExplanation) -> str:
    """The one sentence."""
    if explanation.unplaced is not None:
        known = nearest_fit_sentence(explanation.unplaced.nearest_fit, explanation.unplaced.nearest_node)
        return f"stays waiting: {known or '; '.join(reason_message(reason) for reason in explanation.unplaced.reasons)}"
    if explanation.claim is not None:
        return f"goes to a new machine: {_node_claim_text(explanation.claim)}"
    if explanation.placed is not None:
        return (
            f"goes to {explanation.placed.node_name}, a machine that exists or is on its way: nothing is bought for it"
        )
    node = explanation.pod.spec.node_name
    return f"is on node {node} and stays there" if node else f"is not planned for: {_why_not_waiting(explanation.pod)}"


def _node_claim_text(claim: NewNodeClaim) -> str:
    where = f"{claim.cheapest_offering.zone}, {claim.cheapest_offering.capacity_type}"
    return f"{claim.instance_types[0]} of NodePool {claim.node_pool} in {where}, ${claim.price_per_hour:.4f} per hour"


def _why_not_waiting(pod: Pod) -> str:
    if pods.is_finished(pod):
        return "it has finished"
    if pod.metadata.deletion_timestamp is not None:
        return "it is being deleted"
    if pod.spec.scheduling_gates:
        gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
        return f"it is held back by its scheduling gates ({gates})"
    if pods.is_daemonset_pod(pod) or pods.is_mirror_pod(pod):
        return "it belongs to its node, as pods of DaemonSets and static pods do"
    if not pods.is_unschedulable(pod):
        return "no scheduler has said yet that it finds no node (condition PodScheduled, reason Unschedulable)"
    return "the scheduler is making room for it on a node"


# -- the tree -----------------------------------------------------------------------------------------------------------


def write(explanation: PodExplanation, out: TextIO) -> None:
    """Write the tree."""
    style = "red" if explanation.unplaced is not None else "green"
    tree = Tree(Text.assemble((f"Pod {pod_name(explanation.pod)}", "bold"), " ", (headline(explanation), style)))
    if explanation.unplaced is not None:
        for reason in explanation.unplaced.reasons:
            _add_reason(tree, reason)
        if explanation.unplaced.nearest_node is not None:
            tree.add(Text(f"machines there are: {nearest_node_clause(explanation.unplaced.nearest_node)}"))
    for line in _placement_lines(explanation):
        tree.add(Text(line))
    console_for(out, _WIDTH_ELSEWHERE).print(tree)


def _placement_lines(explanation: PodExplanation) -> Iterator[str]:
    if explanation.placed is not None:
        yield "machines there are come first; this is the first that takes the pod"
        yield _other_pods_text(explanation.placed.pods)
    if explanation.claim is not None:
        types = explanation.claim.instance_types
        rest = f" and {len(types) - _SHOWN_TYPES} more" if len(types) > _SHOWN_TYPES else ""
        yield "no machine there is takes the pod"
        yield f"cheapest of {_counted(len(types), 'type')} that would do: {', '.join(types[:_SHOWN_TYPES])}{rest}"
        yield _other_pods_text(explanation.claim.pods)


def _other_pods_text(pods_together: Sequence[Pod]) -> str:
    return f"shared with {_counted(len(pods_together) - 1, 'other pod')} of this plan"


def _add_reason(tree: Tree, reason: UnschedulableReason) -> None:
    pool = f"NodePool {reason.node_pool}: " if reason.node_pool else ""
    branch = tree.add(Text.assemble((pool, "bold"), reason_message(reason)))
    if reason.filter_breakdown is not None:
        known = reason.filter_breakdown
        counts = f"of {_counted(known.types, 'type')} with {_counted(known.offerings, 'offering')}"
        types = branch.add(Text(counts)) if known.filtered else branch
        for item in known.filtered:
            types.add(_filtered_types_text(item))
    if reason.nearest_fit is not None:
        branch.add(Text(nearest_fit_sentence(reason.nearest_fit)))


def _filtered_types_text(filtered: FilteredTypes) -> Text:
    offerings = f" with {_counted(filtered.offerings, 'offering')}" if filtered.offerings else ""
    alone = "" if filtered.only_by_this == filtered.types else f" ({filtered.only_by_this} to nothing else)"
    return Text(f"{filtered.types} fall{offerings} to {filter_noun(filtered.failed_filter)}{alone}")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


# -- for programs -------------------------------------------------------------------------------------------------------


def document(explanation: PodExplanation) -> Json:
    """The answer as plain data. ``price`` is USD per hour."""
    data: Json = {"pod": pod_name(explanation.pod), "state": explanation.outcome.value, "text": headline(explanation)}
    if explanation.unplaced is not None:
        return data | render_plan_data.unplaced_data(explanation.unplaced)
    if explanation.claim is not None:
        return data | {"machine": render_plan_data.node_claim_data(explanation.claim)}
    node = explanation.placed.node_name if explanation.placed is not None else explanation.pod.spec.node_name
    return data | ({"node": node} if node else {})
