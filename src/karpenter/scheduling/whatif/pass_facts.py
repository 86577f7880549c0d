"""What is known of scheduling passes of what-if questions, whatever pods it was asked for.

Where pods need nothing of other pods, a pass over them depends on little: on how many there are of each kind, on the nodes that
have room for one of them, in the order they are tried, and on launch options. So what follows from its result outlives the
decision: as long as nothing of that changes it is the same, whatever happens on other nodes. Many nodes have pods of the same
kinds, so one pass gives the answer for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from karpenter.model.requirements import Requirements
from karpenter.scheduling.existing_nodes import ExistingNode
from karpenter.scheduling.offerings.launch_options import LaunchOptionIndex
from karpenter.scheduling.pass_result import PassResult
from karpenter.scheduling.whatif.counted_pass import CountedDemand, CountedGroup, CountedPass, PodPosition
from karpenter.scheduling.whatif.movers import Movers
from karpenter.scheduling.whatif.questions import UnreadyHosts

#: Numbers of the pods and of the nodes with room; between them the identity of the launch options, which are kept with the facts.
FactsKey = tuple[int, int, int]


@dataclass(frozen=True)
class Host:
    """An existing node that takes pods. ``initialized``: it is ready for them now (DIS-165).

    ``first_pod``: the first pod that it takes, where pods need room alone.
    """

    key: str
    name: str
    initialized: bool
    first_pod: PodPosition | None = None


@dataclass(eq=False)
class PassFacts:
    """What follows from the result of a pass with the launch options ``options``.

    ``taking``: the existing nodes that take pods. ``demands`` and ``has_unplaced``: what becomes of the other pods.
    ``have_topology``: some pods have to do with topology. ``need_room_alone``: no pod needs anything but room. The rest is
    worked out when it is asked for: the least that new nodes cost, in USD per hour, and whether all of them could be had in
    some way.
    """

    options: LaunchOptionIndex
    taking: tuple[Host, ...]
    demands: tuple[CountedDemand, ...]
    has_unplaced: bool
    have_topology: bool = False
    need_room_alone: bool = False
    minimum_price: float | None = None
    launches_refused: dict[Requirements, bool] = field(default_factory=dict)

    @cached_property
    def hosts(self) -> tuple[Host, ...] | None:
        """The existing nodes that take pods if all of them fit there, None otherwise."""
        return None if self.demands or self.has_unplaced else self.taking

    @cached_property
    def are_hosts_ready(self) -> bool:
        """Whether all nodes that take pods are ready for them."""
        return all(host.initialized for host in self.taking)


def facts_of(options: LaunchOptionIndex, result: PassResult, movers: Movers) -> PassFacts:
    """What the result of a pass over movers says without further work."""
    taking = tuple(_host(placement.node) for placement in result.placements)
    demands = (keyed_demand.demand for keyed_demand in result.demands)
    counted = tuple(CountedDemand(demand.signature, len(demand.pods), demand.options) for demand in demands)
    has_unplaced = bool(result.unschedulable or movers.ineligible)
    return PassFacts(options, taking, counted, has_unplaced, movers.have_topology)


def facts_of_counts(options: LaunchOptionIndex, result: CountedPass) -> PassFacts:
    """The same, of a pass in counts."""
    taking = tuple(_host(node, first_pod) for node, first_pod in result.hosts)
    return PassFacts(options, taking, result.demands, result.has_unplaced, need_room_alone=True)


def unready_hosts(movers: Movers, facts: PassFacts) -> UnreadyHosts | None:
    """Which pod would have to wait, and for which node, if all get places; None where none has to, or that is not known.

    Only limits of NodePools and stocks leave pods out of new nodes that pass facts say they can get.
    """
    unready = [] if facts.has_unplaced else [host for host in facts.taking if not host.initialized]
    first = unready[0].first_pod if unready else None
    if first is None:
        return None
    group, position = first
    return UnreadyHosts(movers.groups[group].pods[position], min(host.key for host in unready))


def _host(node: ExistingNode, first_pod: PodPosition | None = None) -> Host:
    view = node.view
    return Host(view.key, view.name, view.initialized or not view.managed, first_pod)


def node_content(node: ExistingNode) -> tuple[object, ...]:
    """All that a pass reads of a node for pods that need room alone, and that its facts depend on.

    Instance types and DaemonSets are read through what is free and possible; facts are dropped when types change.
    """
    view = node.view
    return (
        view.key,
        view.name,
        view.pool,
        view.managed,
        view.initialized,
        view.launched,
        frozenset(node.free.items()),
        view.taints,
        view.requirements,
        node.known_labels,
        node.possible_types,
    )


def pod_content(counts: Sequence[CountedGroup]) -> tuple[object, ...]:
    """All that a pass reads of pods that need room alone; their relaxation steps follow from it and from `Preferences`."""
    return tuple((group.signature, group.count, group.is_virtual) for group in counts)
