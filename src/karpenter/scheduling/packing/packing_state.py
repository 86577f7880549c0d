"""What is packed so far during one packing: pods left, limits and reservations left, claims chosen."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from karpenter.instancetypes.type_sets import TypeSet
from karpenter.model import resources as res
from karpenter.model.resources import Resources
from karpenter.scheduling.demand import Demand, PackingBounds, SchedulingNodeClaim
from karpenter.scheduling.node_filling import DemandSet, LaunchChannel, demand_set
from karpenter.scheduling.offerings.launch_options import LaunchOption
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.offerings.remaining_capacity import max_capacity, types_within_limits
from karpenter.scheduling.packing.affinity_groups import AffinityGraph, ConnectedGroups
from karpenter.scheduling.packing.limit_reservations import ReservationPolicy, reserved_types
from karpenter.scheduling.topology.topology_groups import TopologyGroup

MAX_TARGET_TYPES_USUALLY = 4
#: Up to so many demands as many types are filled as said above.
MANY_DEMANDS = 100
#: All of them are filled for so many nodes, then again each time the number of nodes has doubled.
THOROUGH_NODES = 8
#: So often the value packing tries whether a demand fits on a node; a thousand pods, no two alike, stay well below.
MAX_FILL_STEPS = 400_000


#: For each demand its options of the heaviest pools with their affordable types, and the same by launch channel.
AllowedOptions = tuple[list[tuple[tuple[LaunchOption, TypeSet], ...]], list[dict[LaunchChannel, LaunchOption]]]


class PackingBasis:
    """What all packings of the same demands begin with; worked out once."""

    def __init__(self, demands: Sequence[Demand], bounds: PackingBounds, *, relax_min_values: bool) -> None:
        self.demands = demands
        self.bounds = bounds
        self.relax_min_values = relax_min_values
        self.affinity_graph = AffinityGraph(demands)
        templates = {option.template.name: option.template for demand in demands for option in demand.options}
        self.limited = {name: template for name, template in templates.items() if name in bounds.limits}
        self.types_within = {
            name: types_within_limits(template, bounds.limits[name]) for name, template in self.limited.items()
        }
        self._allowed: dict[bool, AllowedOptions] = {}
        self.asked_labels = asked_labels(demands)

    def allowed(self, *, weights_bind: bool) -> AllowedOptions:
        """The options of all demands at the beginning."""
        if weights_bind not in self._allowed:
            units = self.bounds.reservation_units
            self._allowed[weights_bind] = self.allowed_now(self.types_within, units, weights_bind=weights_bind)
        return self._allowed[weights_bind]

    def allowed_now(
        self, types_within: Mapping[str, TypeSet], reservation_units: Mapping[str, int], *, weights_bind: bool
    ) -> AllowedOptions:
        """The options of all demands with what limits and reservations leave."""
        allowed = [
            self._options_of_heaviest(demand, types_within, reservation_units, weights_bind) for demand in self.demands
        ]
        return allowed, [{option.channel: option for option, _ in options} for options in allowed]

    def _options_of_heaviest(
        self,
        demand: Demand,
        types_within: Mapping[str, TypeSet],
        reservation_units: Mapping[str, int],
        weights_bind: bool,
    ) -> tuple[tuple[LaunchOption, TypeSet], ...]:
        options: list[tuple[LaunchOption, TypeSet]] = []
        for option in demand.options:
            if weights_bind and options and options[0][0].template.weight != option.template.weight:
                break
            if option.reservation is not None and reservation_units.get(option.reservation, 0) <= 0:
                continue
            types = option.types & types_within.get(option.template.name, option.types)
            if types and (self.relax_min_values or option.satisfies_min_values(types)):
                options.append((option, types))
        return tuple(options)


class PackingState:
    """One packing under way: pods left by demand, what is left of limits, and the options those still allow."""

    def __init__(
        self,
        basis: PackingBasis,
        reservation_policy: ReservationPolicy = ReservationPolicy.CHEAPEST,
        *,
        weights_bind: bool = True,
    ) -> None:
        bounds = basis.bounds
        self.reservation_policy = reservation_policy
        self._basis = basis
        self._weights_bind = weights_bind
        self.unstarted_affinity = UnstartedAffinity(bounds.satisfied_affinity)
        self._demands = basis.demands
        self.pods_left = [len(demand.pods) for demand in basis.demands]
        #: The demands of which pods are left; each has some at first.
        self._waiting: DemandSet = (1 << len(basis.demands)) - 1
        self.limits = {pool: dict(amounts) for pool, amounts in bounds.limits.items()}
        self._reservation_units = dict(bounds.reservation_units)
        #: What is left of the work the packing may do, and how often each type was chosen so far.
        self.steps = MAX_FILL_STEPS
        self.times_chosen: Counter[int] = Counter()
        self._nodes_started = 0
        self._affinity_graph = basis.affinity_graph
        self._within = dict(basis.types_within)
        self._allowed, self.option_by_channel = basis.allowed(weights_bind=weights_bind)

    def allowed(self, position: int) -> tuple[tuple[LaunchOption, TypeSet], ...]:
        """Options of the heaviest pools the demand can still use, with their affordable types."""
        return self._allowed[position]

    @property
    def has_reserved_options(self) -> bool:
        """Whether an allowed option of some demand is a capacity reservation."""
        return any(map(self.has_reserved_option, range(len(self._demands))))

    def are_left(self, claims: Iterable[SchedulingNodeClaim]) -> bool:
        """Whether reservations and stocks have enough left for all of these claims together."""
        drawn = Counter(claim.reservation for claim in claims if claim.reservation is not None)
        return all(count <= self._reservation_units[name] for name, count in drawn.items())

    def has_reserved_option(self, position: int) -> bool:
        """Whether an allowed option of the demand is a capacity reservation."""
        return any(option.is_prepaid for option, _ in self._allowed[position])

    def distinct_options(self, positions: Iterable[int]) -> dict[int, tuple[tuple[LaunchOption, TypeSet], ...]]:
        """The allowed options of these demands; of channels that are alike for all of them only those of the first.

        Such channels differ in nothing but the name of their NodePool. A NodePool with limits is like no other: what they leave
        differs as soon as a claim is taken.
        """
        uses: dict[LaunchChannel, list[object]] = {}
        templates: dict[LaunchChannel, NodePoolTemplate] = {}
        allowed = {position: self._allowed[position] for position in positions}
        for position, options in allowed.items():
            for option, types in options:
                templates[option.channel] = option.template
                use = (position, types, option.relaxation_step.requirements, self._exposure(position, option.template))
                uses.setdefault(option.channel, []).append(use)
        first: dict[object, LaunchChannel] = {}
        for (pool, reservation), use_of_channel in uses.items():
            key = templates[pool, reservation].equivalence_key(self._basis.asked_labels)
            limited = pool if pool in self.limits else None
            first.setdefault((key, reservation, limited, tuple(use_of_channel)), (pool, reservation))
        kept = frozenset(first.values())
        return {
            position: tuple((option, types) for option, types in options if option.channel in kept)
            for position, options in allowed.items()
        }

    def _exposure(self, position: int, template: NodePoolTemplate) -> int | None:
        """How many pods of the demand's workload a node of the NodePool should take; None: any number."""
        limits = self._demands[position].host_limits
        exposed = limits.exposed_workload if limits is not None else None
        return None if exposed is None else exposed.max_in_pool(template.name)

    def types_within(self, template: NodePoolTemplate) -> TypeSet | None:
        """Types the pool's limits still allow; None when it has no limits."""
        return self._within.get(template.name)

    def types_within_by_pool(self) -> Mapping[str, TypeSet | None]:
        """The types that limits leave of each NodePool."""
        templates = {option.template.name: option.template for demand in self._demands for option in demand.options}
        return {name: self.types_within(template) for name, template in templates.items()}

    def limited_types(self, claim: SchedulingNodeClaim) -> SchedulingNodeClaim:
        """Under limits a claim keeps only the types that it reserves for."""
        limits = self.limits.get(claim.template.name)
        if limits is None:
            return claim
        return replace(claim, types=reserved_types(claim, limits, self.reservation_policy))

    def target_types(self, worthwhile: Sequence[int]) -> Sequence[int]:
        """The types to fill for the next node: now and then all, else few that were chosen before; none without work left."""
        self._nodes_started += 1
        if self.steps <= 0:
            return ()
        if self._nodes_started <= THOROUGH_NODES or not self._nodes_started & (self._nodes_started - 1):
            return worthwhile
        often = sorted(worthwhile, key=lambda target: -self.times_chosen[target])
        return often[: scaled_down_count(MAX_TARGET_TYPES_USUALLY, len(self._demands))]

    def commit(self, claim: SchedulingNodeClaim, most_times: int = sys.maxsize) -> int:
        """Commit as many claims like this as its pods and limits suggest, at most so many; how many."""
        most = max_capacity(claim.template, claim.types) if claim.template.name in self.limits else {}
        times = min(most_times, *(self.pods_left[position] // count for position, count in claim.contents))
        if self._affinity_graph:
            inside = [self._demands[position] for position, _ in claim.contents]
            times = 1 if self.unstarted_affinity.start_affinities(inside) else times
        if claim.template.name in self.limits:
            times = min(times, self._affordable_times(claim.template, most))
        if claim.reservation is not None:
            times = min(times, self._reservation_units[claim.reservation])
        for position, count in claim.contents:
            self.pods_left[position] -= count * times
            if not self.pods_left[position]:
                self._waiting &= ~(1 << position)
        self._reserve_limits(claim.template, most, times)
        self._use_reservation(claim.reservation, times)
        return times

    def _use_reservation(self, reservation: str | None, times: int) -> None:
        """Take units of a reservation; one that is used up sells nothing more."""
        if reservation is not None:
            self._reservation_units[reservation] -= times
            if not self._reservation_units[reservation]:
                self._refresh_options()

    def _affordable_times(self, template: NodePoolTemplate, most: Resources) -> int:
        """How many such claims limits allow while they rule out no further type; at least the one that was chosen."""
        left = self.limits[template.name]
        times = []
        for name, amount in left.items():
            spent = res.taken_of_limit(name, most)
            if spent > 0:
                needed = res.ONE_UNIT if name == res.NODES else template.index.largest_capacity_within(name, amount)
                times.append((amount - needed) // spent + 1)
        return max(1, min(times, default=sum(self.pods_left)))

    def _reserve_limits(self, template: NodePoolTemplate, most: Resources, times: int) -> None:
        """Take from limits what the claims may become at most (SCH-384)."""
        if template.name not in self.limits:
            return
        left = self.limits[template.name]
        for name in left:
            left[name] -= times * res.taken_of_limit(name, most)
        self._refresh_limited(template)

    def may_open(self, empty: SchedulingNodeClaim) -> bool:
        """Whether limits and reservations allow one more such claim."""
        if empty.reservation is not None and self._reservation_units.get(empty.reservation, 0) <= 0:
            return False
        return self.limits.get(empty.template.name, {}).get(res.NODES, res.ONE_UNIT) >= res.ONE_UNIT

    def reserve_node(self, opened: SchedulingNodeClaim) -> None:
        """One more claim is open; what its types take of limits comes with its pods."""
        self._reserve_limits(opened.template, {}, 1)
        self._use_reservation(opened.reservation, 1)

    def exchange_reservation(self, template: NodePoolTemplate, before: Resources, after: Resources) -> None:
        """A claim may become something else than before."""
        left = self.limits.get(template.name)
        if left is None:
            return
        for name in left:
            if name != res.NODES:
                left[name] += before.get(name, 0) - after.get(name, 0)
        self._refresh_limited(template)

    def _refresh_limited(self, template: NodePoolTemplate) -> None:
        within = types_within_limits(template, self.limits[template.name])
        if within != self._within[template.name]:
            self._within[template.name] = within
            self._refresh_options()

    def give_up(self, seed: int) -> int:
        """No node can be launched for the demand any more; how many of its pods are left out."""
        count, self.pods_left[seed] = self.pods_left[seed], 0
        self._waiting &= ~(1 << seed)
        return count

    def collect_joining(self) -> None:
        """Note which demands still wait; called before a node is opened."""
        self.connected = self._connected_groups()
        members = self.connected.members
        self._unconnected = self._waiting & ~demand_set(list(members)) if members else self._waiting

    def fillers(self, seed: int) -> DemandSet:
        """Demands that may fill up a node which was opened for the seed, pods of its own among them where some were held back."""
        bit = 1 << seed
        return self._unconnected | bit if seed in self.connected.members else self._unconnected & ~bit

    def seeds(self) -> list[int]:
        """Demands in the order nodes are opened for them: those that others must be beside first, while there is room for all."""
        roots = self._connected_groups().roots
        return sorted(range(len(self.pods_left)), key=lambda position: (position not in roots, position))

    def _connected_groups(self) -> ConnectedGroups:
        graph = self._affinity_graph
        first = [at for at, count in enumerate(self.pods_left) if count and self.can_be_first(at)] if graph else []
        return ConnectedGroups(graph, self.pods_left, frozenset(first))

    def can_be_first(self, position: int) -> bool:
        """Whether pods of the demand may be the first on a node."""
        return all(
            itself and constraint in self.unstarted_affinity
            for constraint, itself in self._demands[position].host_affinity
        )

    def _refresh_options(self) -> None:
        self._allowed, self.option_by_channel = self._basis.allowed_now(
            self._within, self._reservation_units, weights_bind=self._weights_bind
        )


def pods_below_weight(demands: Sequence[Demand], claims: Iterable[SchedulingNodeClaim]) -> int:
    """Pods in claims of a lighter pool than the first that could take them."""
    heaviest = [demand.options[0].template.weight for demand in demands]
    return sum(
        count for claim in claims for position, count in claim.contents if claim.template.weight < heaviest[position]
    )


class UnstartedAffinity:
    """The affinities by host that a node may still begin: none where a pod is already, and each only once."""

    def __init__(self, satisfied: Iterable[TopologyGroup]) -> None:
        self._started = set(satisfied)

    def __contains__(self, constraint: object) -> bool:
        return constraint not in self._started

    def start_affinities(self, inside: Iterable[Demand]) -> bool:
        """A node with these is settled; whether it began an affinity, so that no second one may be like it."""
        topology_groups = {
            c for demand in inside for c in (demand.host_limits.counted_by if demand.host_limits is not None else ())
        } - self._started
        wanted = {c for demand in inside for c, itself in demand.host_affinity if itself}
        self._started |= topology_groups
        return bool(topology_groups & wanted)


def scaled_down_count(most: int, demands: int) -> int:
    """As many of something as the work allows: with many demands each node is filled for fewer types, at least half."""
    return max(most // 2, min(most, most * MANY_DEMANDS // max(1, demands)))


def asked_labels(demands: Sequence[Demand]) -> frozenset[str]:
    """The labels for which some demand asks of its node."""
    asked = {id(option.pod_requirements): option.pod_requirements for demand in demands for option in demand.options}
    return frozenset(key for requirements in asked.values() for key in requirements)


def template_equivalence(demands: Sequence[Demand], asked: frozenset[str]) -> dict[str, int]:
    """Numbers of templates by name; equal numbers differ in nothing that matters but their pools' names and limits.

    ``asked``: the labels for which some demand asks.
    """
    templates = {option.template.name: option.template for demand in demands for option in demand.options}
    taken: dict[str, list[TypeSet]] = {name: [] for name in templates}
    for demand in demands:
        types: dict[str, TypeSet] = {}
        for option in demand.options:
            types.setdefault(option.template.name, option.types)
        for name, types_by_demand in taken.items():
            types_by_demand.append(types.get(name, 0))
    numbers: dict[object, int] = {}
    keys = {name: (template.equivalence_key(asked), tuple(taken[name])) for name, template in templates.items()}
    return {name: numbers.setdefault(key, len(numbers)) for name, key in keys.items()}
