"""A scheduling pass in counts: for pods that need room alone it gives the result of `SchedulingPass`, without a list of pods.

Most what-if questions end at a price limit, or because not all pods find room. For that it does not matter which pods go where,
only how many of each group. The steps and their order are those of `SchedulingPass`; a property compares both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from karpenter.instancetypes.type_sets import members
from karpenter.model import taints
from karpenter.model.resources import Resources
from karpenter.scheduling.equivalence_groups import GroupOrder
from karpenter.scheduling.existing_nodes import ExistingNode, ExistingNodeIndex, NodeSet, count_fitting
from karpenter.scheduling.offerings.launch_options import LaunchOption, LaunchOptionIndex
from karpenter.scheduling.preferences import RelaxationStep
from karpenter.state.pod_signature import PodSignature

#: Which pod is meant: the number of its group, and its position in it.
PodPosition = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class CountedGroup:
    """So many pods of an equivalence group. ``order``: the place of the group among others (`group_order`)."""

    signature: PodSignature
    relaxation_steps: tuple[RelaxationStep, ...]
    count: int
    order: GroupOrder

    @property
    def is_virtual(self) -> bool:
        """Whether the pods stand for room that a capacity buffer keeps free."""
        return self.order[0]

    def with_more(self, other: CountedGroup) -> CountedGroup:
        """The group together with more of its pods."""
        first = min(self.order, other.order)
        return CountedGroup(self.signature, self.relaxation_steps, self.count + other.count, first)


@dataclass(frozen=True, slots=True, eq=False)
class CountedDemand:
    """So many pods of a group need new nodes. ``options``: launch options, never empty."""

    signature: PodSignature
    count: int
    options: tuple[LaunchOption, ...]

    @property
    def requests(self) -> Resources:
        """Requests of one pod."""
        return self.signature.requests


@dataclass(frozen=True, slots=True, eq=False)
class CountedPass:
    """The outcome. ``hosts``: existing nodes that take pods, each with the first pod that it takes.

    ``has_unplaced``: some pods find neither room nor a new node.
    """

    hosts: tuple[tuple[ExistingNode, PodPosition], ...]
    demands: tuple[CountedDemand, ...]
    has_unplaced: bool


def count_pass(
    groups: Sequence[CountedGroup], nodes: ExistingNodeIndex, open_nodes: NodeSet, options: LaunchOptionIndex
) -> CountedPass:
    """Place the pods of all groups, in their order. They have no topology, and use no ports, volumes or devices."""
    #: Positions of the nodes that were asked, in that order.
    asked: dict[int, None] = {}
    #: By position of a node that takes pods: what is left there, and the first of these pods.
    remaining: dict[int, dict[str, int]] = {}
    first_pods: dict[int, PodPosition] = {}
    demands: list[CountedDemand] = []
    has_unplaced = False
    for number, group in enumerate(groups):
        requests, left = group.signature.requests, group.count
        for step in group.relaxation_steps:
            for position in members(nodes.candidates_for(requests, step) & open_nodes):
                node = nodes.nodes[position]
                asked.setdefault(position)
                count = count_fitting(requests, remaining.get(position, node.free), left)
                if count and _admits(node, step):
                    if position not in first_pods:
                        first_pods[position] = (number, group.count - left)
                        remaining[position] = dict(node.free)
                    _take(remaining[position], requests, count)
                    left -= count
                    if not left:
                        break
            launch_options = options.options(group.signature, step) if left else ()
            if launch_options:
                demands.append(CountedDemand(group.signature, left, launch_options))
                left = 0
            if not left:
                break
        has_unplaced |= left > 0
    hosts = tuple((nodes.nodes[position], first_pods[position]) for position in asked if position in first_pods)
    return CountedPass(hosts, tuple(demands), has_unplaced)


def _take(remaining: dict[str, int], requests: Resources, count: int) -> None:
    for name, amount in requests.items():
        remaining[name] = remaining.get(name, 0) - amount * count


def _admits(node: ExistingNode, step: RelaxationStep) -> bool:
    """Whether taints and labels of the node allow the pods."""
    node_taints = node.view.taints
    if node_taints and taints.untolerated(node_taints, step.tolerations):
        return False
    return not step.requirements or node.satisfies(step.requirements)
