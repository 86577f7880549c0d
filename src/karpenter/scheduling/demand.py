"""What a packing is made of: launch options, pods that want nodes, claims being filled, and the outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from karpenter.api.core import Pod
from karpenter.instancetypes.instance_type import Offering
from karpenter.instancetypes.type_index import OfferingPrices
from karpenter.instancetypes.type_sets import TypeSet, members
from karpenter.model.requirements import Requirements
from karpenter.model.resources import Resources
from karpenter.scheduling.devices.type_devices import TypeDevices
from karpenter.scheduling.node_filling import LaunchChannel
from karpenter.scheduling.offerings.launch_options import LaunchOption
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.solution import PackingFallback
from karpenter.scheduling.topology.host_limits import HostLimits
from karpenter.scheduling.topology.topology_groups import TopologyGroup
from karpenter.state.device_demands import DeviceDemand
from karpenter.state.pod_signature import PodSignature


@dataclass(frozen=True)
class PackingBounds:
    """What packings keep to: what is left of each limited pool's limits, affinities by host that nodes there already satisfy,
    the units left of reservations and stocks, and the devices of types, where pods ask for devices."""

    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    satisfied_affinity: frozenset[TopologyGroup] = frozenset()
    reservation_units: Mapping[str, int] = field(default_factory=dict)
    devices: TypeDevices | None = None


@dataclass(frozen=True, eq=False)
class Demand:
    """Pods of one group that need new nodes. ``options`` are of one relaxation step, in the order of pools, never empty.

    ``host_limits`` say which pods may share a node; None where any pod may.
    """

    signature: PodSignature
    pods: tuple[Pod, ...]
    options: tuple[LaunchOption, ...]
    host_limits: HostLimits | None = None

    @property
    def host_affinity(self) -> tuple[tuple[TopologyGroup, bool], ...]:
        """Affinity by host: pods that must be on the same node, and whether its own are among them."""
        return self.host_limits.affinity if self.host_limits is not None else ()

    @property
    def requests(self) -> Resources:
        """Requests of one pod."""
        return self.signature.requests

    @property
    def device_demand(self) -> DeviceDemand | None:
        """The devices that one pod needs."""
        return self.signature.device_demand

    @property
    def max_per_node(self) -> int:
        """No more of the pods than that should be on one node, whichever it is."""
        exposed = self.host_limits.exposed_workload if self.host_limits is not None else None
        return exposed.lowest_max if exposed is not None else len(self.pods)


@dataclass(frozen=True, eq=False)
class SchedulingNodeClaim:
    """A claim being filled. ``types`` hold everything in it; ``contents`` counts pods by demand position."""

    template: NodePoolTemplate
    requirements: Requirements
    types: TypeSet
    requests: Resources
    contents: tuple[tuple[int, int], ...] = ()
    min_values_relaxed: bool = False
    reservation: str | None = None

    @property
    def channel(self) -> LaunchChannel:
        """The pool, and the reservation if it draws from one."""
        return (self.template.name, self.reservation)

    @property
    def is_prepaid(self) -> bool:
        """Whether it draws from a reservation, not from a stock."""
        return self.template.index.counted.is_prepaid(self.reservation)

    @property
    def pod_count(self) -> int:
        """How many pods it is for."""
        return sum(count for _, count in self.contents)

    def contents_with(self, position: int, count: int) -> tuple[tuple[int, int], ...]:
        """Its contents with so many more pods of one demand."""
        return tuple({**dict(self.contents), position: dict(self.contents).get(position, 0) + count}.items())

    @cached_property
    def prices(self) -> OfferingPrices:
        """Cheapest offerings the claim accepts."""
        return self.template.index.prices(self.requirements)

    @cached_property
    def cheapest_type(self) -> int:
        """The type that costs least with the claim's pods."""
        return self.template.cpu_surpluses.cheapest(self.prices, self.types, self.requests)

    @property
    def cheapest_offering(self) -> Offering:
        """The offering of the cheapest type."""
        return self.prices.cheapest_offering[self.cheapest_type]

    @property
    def cpu_surplus_per_hour(self) -> float:
        """USD per hour for the CPU that pods request beyond the baseline of the cheapest type."""
        return self.template.cpu_surpluses.price_per_hour(self.cheapest_type, self.requests)

    @property
    def price_per_hour(self) -> float:
        """USD per hour of the cheapest type with these pods."""
        return self.cheapest_offering.price_per_hour + self.cpu_surplus_per_hour

    @cached_property
    def worst_launch_prices(self) -> Mapping[int, float]:
        """USD per hour of each type at most, with the CPU that pods request beyond its baseline."""
        known = self.template.index.worst_launch_prices(self.requirements)
        prices = {position: known[position] for position in members(self.types) if position in known}
        for position, surplus in self.template.cpu_surpluses.by_position.items():
            if position in prices:
                prices[position] += surplus.price_per_hour(self.requests)
        return prices

    def at_list_price(self) -> SchedulingNodeClaim:
        """The claim with its cheapest type and those others whose offering price says what they cost with its pods.

        A cloud launches the type with the lowest offering price. It must not be one that costs more with these pods. As many
        types stay as minValues need.
        """
        index = self.template.index
        kept = self.template.cpu_surpluses.types_at_list_price(self.types, self.requests) | 1 << self.cheapest_type
        if kept == self.types:
            return self
        for position in reversed(self.prices.cheapest_first(self.types & ~kept)):
            if index.satisfies_min_values(self.requirements, kept):
                break
            kept |= 1 << position
        return self if kept == self.types else replace(self, types=kept)


@dataclass(frozen=True)
class Packing:
    """The outcome of one packing. ``unpacked`` counts pods by demand position for which limits leave no new node.

    ``objective_value`` is what the claims are valued at (`objective`), ``remaining_limits`` what they leave of the limits of each
    limited pool. ``pods_below_weight`` counts the pods in claims of a lighter pool than the heaviest that could take them.
    ``is_optimal``: no packing of the pods has a lower objective. ``node_share_cost``: USD per hour that it costs more because no
    node has more than its share of the pods, ``node_share_saving`` that it costs less because one has. ``is_cut_short``: it ended
    before all pods were tried, for the sake of time.
    ``pod_values``: what a search found a pod of each demand to be worth, by position; empty without a search. ``bound_values``:
    what each costs at least, about, by the lower bound of the search.
    """

    name: str
    claims: tuple[SchedulingNodeClaim, ...]
    unpacked: Mapping[int, int]
    objective_value: float
    remaining_limits: Mapping[str, Mapping[str, int]]
    pods_below_weight: int = 0
    is_optimal: bool = False
    node_share_cost: float = 0.0
    node_share_saving: float = 0.0
    is_cut_short: bool = False
    fallback: PackingFallback | None = None
    pod_values: Mapping[int, float] = field(default_factory=dict, compare=False)
    bound_values: Mapping[int, float] = field(default_factory=dict, compare=False)

    @property
    def is_searched(self) -> bool:
        """Whether a search proposed its nodes."""
        return bool(self.pod_values)

    @property
    def sort_key(self) -> tuple[int, int, float, int]:
        """Smaller is better: pods left over, pods below the weight they could have, the objective, the number of claims."""
        left = sum(self.unpacked.values())
        return (left, self.pods_below_weight, round(self.objective_value, 9), len(self.claims))


def at_list_price(claims: Iterable[SchedulingNodeClaim]) -> list[SchedulingNodeClaim]:
    """Each claim with only the types that cost what their offering says; equal claims stay one object."""
    kept = list(claims)
    narrowed = {key: claim.at_list_price() for key, claim in {id(claim): claim for claim in kept}.items()}
    return [narrowed[id(claim)] for claim in kept]


def sum_of_prices(claims: Iterable[SchedulingNodeClaim]) -> float:
    """USD per hour of the claims, each as its cheapest type."""
    return sum(claim.price_per_hour for claim in claims)


def is_about_as_cheap(packing: Packing, other: Packing, extra: float) -> bool:
    """Whether the nodes of a packing cost no more than this share above those of the other."""
    if packing is other:
        return True
    return sum_of_prices(packing.claims) <= sum_of_prices(other.claims) * (1 + extra)
