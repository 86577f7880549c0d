"""The result of one scheduling pass as data: demand for new nodes, placements, unschedulable pods, and caps for another pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

from karpenter.api.core import Pod
from karpenter.model.resources import Resources
from karpenter.scheduling.demand import Demand
from karpenter.scheduling.equivalence_groups import EquivalenceGroup
from karpenter.scheduling.existing_nodes import ExistingNode, NodeSet
from karpenter.scheduling.failed_filters import TopologyConfinement, TopologyUnsatisfiable
from karpenter.scheduling.preferences import RelaxationStep
from karpenter.scheduling.topology.topology import DomainCombination
from karpenter.scheduling.topology.topology_groups import TopologyGroup

#: Where demand for new nodes comes from: a group, its relaxation step, a domain combination and the number of an option group.
DemandKey = tuple[EquivalenceGroup, int, DomainCombination, int]


@dataclass(frozen=True)
class PlannedPlacements:
    """The node, by key, on which an earlier decision placed each pod, by uid. Only pods planned on one of ``nodes`` stay."""

    node_by_uid: Mapping[str, str] = field(default_factory=dict)
    nodes: NodeSet = 0


class DomainOrder(Enum):
    """Which of the allowed domain combinations the next pod gets on a new node: the skew of a spread leaves a choice."""

    #: The least occupied, of these the cheapest.
    LEAST_OCCUPIED = "least-occupied"
    #: The cheapest.
    CHEAPEST = "cheapest"
    #: One for which nodes are requested already, so that few nodes are too large for their pods.
    FEWEST = "fewest"
    #: The least occupied, of these the one whose values fewest combinations have: it runs into no dead end where zones and
    #: capacity types are not sold in every combination.
    SCARCEST = "scarcest"
    #: The least occupied, of these the cheapest, of these the one for whose values the fewest pods ask so far: the nodes of one
    #: plan are not all in the first zone.
    BALANCED = "balanced"


@dataclass(frozen=True)
class DemandCaps:
    """How many pods may be asked of new nodes: by place, and of a group at a step altogether. Without a cap, any number."""

    per_demand: Mapping[DemandKey, int] = field(default_factory=dict)
    per_step: Mapping[tuple[EquivalenceGroup, int], int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.per_demand or self.per_step)

    def apply_to(self, group: EquivalenceGroup) -> bool:
        """Whether the group may not ask as it likes."""
        return group in self._capped_groups

    @cached_property
    def _capped_groups(self) -> frozenset[EquivalenceGroup]:
        return frozenset((*(place[0] for place in self.per_demand), *(group for group, _ in self.per_step)))


@dataclass(frozen=True, eq=False)
class KeyedDemand:
    """Demand for new nodes and the place it comes from."""

    demand: Demand
    key: DemandKey

    @property
    def group(self) -> EquivalenceGroup:
        """Whose pods they are."""
        return self.key[0]

    @property
    def step_number(self) -> int:
        """Their relaxation step."""
        return self.key[1]

    @property
    def combination(self) -> DomainCombination:
        """The domains chosen for them."""
        return self.key[2]

    @property
    def is_last_step(self) -> bool:
        """Whether the group has no step further down."""
        return self.step_number == len(self.group.relaxation_steps) - 1

    def last_pods(self, count: int) -> tuple[Pod, ...]:
        """So many pods from its end."""
        return self.demand.pods[len(self.demand.pods) - count :]


@dataclass(frozen=True, eq=False)
class UnschedulableGroup:
    """Pods that stay waiting, and the last variant tried. ``blocked`` is the topology constraint that left no place, if it
    was one; ``confined``: the constraints that left only the domains the variant names; ``limited``: new
    nodes could be had but for limits."""

    group: EquivalenceGroup
    last_step: RelaxationStep
    pods: tuple[Pod, ...]
    limited: bool = False
    blocked: TopologyUnsatisfiable | None = None
    confined: tuple[TopologyConfinement, ...] = ()


@dataclass(frozen=True, eq=False)
class NodePlacement:
    """Pods placed on an existing node, and what remains free there."""

    node: ExistingNode
    pods: tuple[Pod, ...]
    remaining: Resources


@dataclass(frozen=True, eq=False)
class PassResult:
    """The outcome of one pass: demand for new nodes, unschedulable pods, and pods placed on existing nodes.

    ``satisfied_affinity``: affinity terms by host that some pod satisfies already, so no new node may be the first for them.
    ``domain_prices_differ``: some pod had a choice of domains whose cheapest nodes do not cost the same.
    """

    demands: tuple[KeyedDemand, ...]
    unschedulable: tuple[UnschedulableGroup, ...]
    placements: tuple[NodePlacement, ...]
    satisfied_affinity: frozenset[TopologyGroup] = frozenset()
    domain_prices_differ: bool = False

    @property
    def pods_needing_nodes(self) -> int:
        """How many pods need new nodes."""
        return sum(len(keyed_demand.demand.pods) for keyed_demand in self.demands)

    @property
    def is_in_domains(self) -> bool:
        """Whether domains were chosen for some of the new nodes."""
        return any(keyed_demand.combination for keyed_demand in self.demands)


def is_same(one: PassResult, other: PassResult) -> bool:
    """Whether two passes request the same new nodes for the same pods, and leave out the same."""
    return (
        [(demand.key, demand.demand.pods) for demand in one.demands]
        == [(demand.key, demand.demand.pods) for demand in other.demands]
        and one.unschedulable == other.unschedulable
        and one.placements == other.placements
    )


def may_stay_left(left: Sequence[tuple[KeyedDemand, int]]) -> bool:
    """Whether no further step could serve these pods, and no other pod counts on them."""
    return all(keyed_demand.is_last_step and not keyed_demand.group.membership for keyed_demand, _ in left)


def with_limited(result: PassResult, left: Sequence[tuple[KeyedDemand, int]]) -> PassResult:
    """The result with pods that limits leave out among the unschedulable."""
    limited = (
        UnschedulableGroup(
            keyed_demand.group, keyed_demand.group.relaxation_steps[-1], keyed_demand.last_pods(count), limited=True
        )
        for keyed_demand, count in left
    )
    return replace(result, unschedulable=(*result.unschedulable, *limited))
