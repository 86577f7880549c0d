"""What there is to say about one pod: as a tree for people, as JSON or YAML for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

from rich.text import Text
from rich.tree import Tree

from karpenter.api.core import Pod
from karpenter.cli import render, render_reasons
from karpenter.cli.render import pod_name
from karpenter.cli.render_reasons import Json
from karpenter.cli.render_table import console_on
from karpenter.decide.explain import hurdle, message, near_machine, sentence
from karpenter.decide.obstacles import Fallen
from karpenter.decide.plan import PlacedPods, Plan, PlannedClaim, UnplacedPod
from karpenter.decide.reasons import Reason
from karpenter.model import pods

_SHOWN = 5
#: Where the output is no terminal every fact has one line, so that it can be searched.
_WIDTH_ELSEWHERE = 4096


class State(StrEnum):
    """What becomes of the pod."""

    UNSCHEDULABLE = "unschedulable"
    NEW_MACHINE = "new-machine"
    EXISTING_MACHINE = "existing-machine"
    BOUND = "bound"
    NOT_WAITING = "not-waiting"


@dataclass(frozen=True)
class Answer:
    """The pod and the part of the plan that is about it; at most one of the last three is given."""

    pod: Pod
    unplaced: UnplacedPod | None = None
    claim: PlannedClaim | None = None
    placed: PlacedPods | None = None

    @property
    def state(self) -> State:
        """What becomes of the pod; one about to leave its node has a part of the plan as well."""
        if self.unplaced is not None:
            return State.UNSCHEDULABLE
        if self.claim is not None:
            return State.NEW_MACHINE
        if self.placed is not None:
            return State.EXISTING_MACHINE
        return State.BOUND if self.pod.spec.node_name else State.NOT_WAITING


def answer(pod: Pod, plan: Plan) -> Answer:
    """What the plan says about the pod."""
    name = pod_name(pod)

    def among(found: Sequence[Pod]) -> bool:
        return any(pod_name(other) == name for other in found)

    return Answer(
        pod,
        unplaced=next((item for item in plan.unplaced if pod_name(item.pod) == name), None),
        claim=next((claim for claim in plan.claims if among(claim.pods)), None),
        placed=next((placed for placed in plan.existing if among(placed.pods)), None),
    )


# -- in words -----------------------------------------------------------------------------------------------------------


def headline(found: Answer) -> str:
    """The one sentence."""
    if found.unplaced is not None:
        known = sentence(found.unplaced.nearest, found.unplaced.beside)
        return f"stays waiting: {known or '; '.join(message(reason) for reason in found.unplaced.reasons)}"
    if found.claim is not None:
        return f"goes to a new machine: {_machine(found.claim)}"
    if found.placed is not None:
        return f"goes to {found.placed.node}, a machine that exists or is on its way: nothing is bought for it"
    node = found.pod.spec.node_name
    return f"is on node {node} and stays there" if node else f"is not planned for: {_why_not_waiting(found.pod)}"


def _machine(claim: PlannedClaim) -> str:
    where = f"{claim.cheapest.zone}, {claim.cheapest.capacity_type}"
    return f"{claim.instance_types[0]} of NodePool {claim.node_pool} in {where}, ${claim.price_per_hour:.4f} per hour"


def _why_not_waiting(pod: Pod) -> str:
    if pods.is_finished(pod):
        return "it has finished"
    if pod.metadata.deletion_timestamp is not None:
        return "it is being deleted"
    if pod.spec.scheduling_gates:
        gates = ", ".join(gate.name for gate in pod.spec.scheduling_gates)
        return f"it is held back by its scheduling gates ({gates})"
    if pods.is_daemon(pod) or pods.is_static(pod):
        return "it belongs to its node, as pods of DaemonSets and static pods do"
    if not pods.is_unschedulable(pod):
        return "no scheduler has said yet that it finds no node (condition PodScheduled, reason Unschedulable)"
    return "the scheduler is making room for it on a node"


# -- the tree -----------------------------------------------------------------------------------------------------------


def write(found: Answer, out: TextIO) -> None:
    """Write the tree."""
    style = "red" if found.unplaced is not None else "green"
    tree = Tree(Text.assemble((f"Pod {pod_name(found.pod)}", "bold"), " ", (headline(found), style)))
    if found.unplaced is not None:
        for reason in found.unplaced.reasons:
            _add_reason(tree, reason)
        if found.unplaced.beside is not None:
            tree.add(Text(f"machines there are: {near_machine(found.unplaced.beside)}"))
    for line in _placed(found):
        tree.add(Text(line))
    console_on(out, _WIDTH_ELSEWHERE).print(tree)


def _placed(found: Answer) -> Iterator[str]:
    if found.placed is not None:
        yield "machines there are come first; this is the first that takes the pod"
        yield _company(found.placed.pods)
    if found.claim is not None:
        types = found.claim.instance_types
        rest = f" and {len(types) - _SHOWN} more" if len(types) > _SHOWN else ""
        yield "no machine there is takes the pod"
        yield f"cheapest of {_counted(len(types), 'type')} that would do: {', '.join(types[:_SHOWN])}{rest}"
        yield _company(found.claim.pods)


def _company(together: Sequence[Pod]) -> str:
    return f"shared with {_counted(len(together) - 1, 'other pod')} of this plan"


def _add_reason(tree: Tree, reason: Reason) -> None:
    pool = f"NodePool {reason.node_pool}: " if reason.node_pool else ""
    branch = tree.add(Text.assemble((pool, "bold"), message(reason)))
    if reason.breakdown is not None:
        known = reason.breakdown
        counts = f"of {_counted(known.types, 'type')} with {_counted(known.offerings, 'offering')}"
        types = branch.add(Text(counts)) if known.fallen else branch
        for item in known.fallen:
            types.add(_fallen(item))
    if reason.miss is not None:
        branch.add(Text(sentence(reason.miss)))


def _fallen(item: Fallen) -> Text:
    offerings = f" with {_counted(item.offerings, 'offering')}" if item.offerings else ""
    alone = "" if item.alone == item.types else f" ({item.alone} to nothing else)"
    return Text(f"{item.types} fall{offerings} to {hurdle(item.obstacle)}{alone}")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


# -- for programs -------------------------------------------------------------------------------------------------------


def document(found: Answer) -> Json:
    """The answer as plain data. ``price`` is USD per hour."""
    data: Json = {"pod": pod_name(found.pod), "state": found.state.value, "text": headline(found)}
    if found.unplaced is not None:
        return data | render_reasons.of_unplaced(found.unplaced)
    if found.claim is not None:
        return data | {"machine": render.claim(found.claim)}
    node = found.placed.node if found.placed is not None else found.pod.spec.node_name
    return data | ({"node": node} if node else {})
