"""The claim each NodePool would start from, with the instance types it may use and what DaemonSets take of them (SCH §5, §8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from karpenter.api.core import PodSpec
from karpenter.api.karpenter import NodePool
from karpenter.api.scheduling_constraints import Taint, Toleration
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import TypeSet, members
from karpenter.model import conditions, labels, taints
from karpenter.model import resources as res
from karpenter.model.pool_sleep import PoolSleep
from karpenter.model.quantity_checks import check_quantities
from karpenter.model.requirements import (
    Op,
    Requirements,
    compatible,
    requirement,
    requirements_from_labels,
    requirements_from_wire,
)
from karpenter.model.resources import Resources
from karpenter.scheduling.cpu_surplus import CpuSurplus, CpuSurpluses
from karpenter.scheduling.offerings.type_rooms import TypeRooms
from karpenter.scheduling.solution import SkippedNodePool
from karpenter.scheduling.unschedulable_reasons import PoolSkipReason
from karpenter.state.host_ports import HostPort, host_ports_of
from karpenter.state.pod_signature import (
    node_selector_requirements,
    node_selector_term_requirements,
    required_node_affinity_terms,
)
from karpenter.state.snapshot import DaemonSetPod

#: The toleration relaxation adds last (SCH-250f); DaemonSets are always given it (SCH-213).
TOLERATE_PREFER_NO_SCHEDULE = Toleration(operator="Exists", effect="PreferNoSchedule")

#: So few groups of types are asked one after the other.
_FEW_DAEMON_GROUPS = 4


@dataclass(frozen=True)
class DaemonGroup:
    """Types on which the same DaemonSets run, what those request together and the host ports they take (SCH-215)."""

    types: TypeSet
    overhead: Resources
    ports: tuple[HostPort, ...] = ()


@dataclass(frozen=True, eq=False)
class NodePoolTemplate:
    """What a new claim of a pool starts from. ``types`` survive the pool's own requirements (SCH-122).

    ``counts_cpu_surplus``: CPU requests beyond the baseline of burstable types cost money.
    """

    pool: NodePool
    index: TypeIndex
    requirements: Requirements
    taints: tuple[Taint, ...]
    types: TypeSet
    daemons: tuple[DaemonGroup, ...]
    counts_cpu_surplus: bool = False

    @property
    def name(self) -> str:
        """Name of the NodePool."""
        return self.pool.metadata.name

    @property
    def weight(self) -> int:
        """Preference of the NodePool; higher goes first."""
        return self.pool.spec.weight or 0

    def equivalence_key(self, asked: frozenset[str]) -> object:
        """What a claim of the pool depends on where pods ask for these labels; taints decide only which pods may join.

        Its name is left aside, and so are labels that no pod asks for and no type or offering has: many teams have a NodePool
        each that differs from the others in nothing else.
        """
        own = frozenset(
            stated
            for key, stated in self.requirements.items()
            if key != labels.NODE_POOL
            and (key in asked or stated.min_values is not None or self.index.defines_label(key))
        )
        return (id(self.index), self.weight, own, self.types, self._daemons_key)

    @cached_property
    def _daemons_key(self) -> object:
        return tuple((group.types, tuple(sorted(group.overhead.items())), group.ports) for group in self.daemons)

    @cached_property
    def cpu_surpluses(self) -> CpuSurpluses:
        """The types whose price does not include all of their CPU."""
        by_position = {
            position: CpuSurplus.of_type(burstable, self.overhead_of(position))
            for position, instance_type in enumerate(self.index.types if self.counts_cpu_surplus else ())
            if (burstable := instance_type.burstable_cpu) is not None and self.types >> position & 1
        }
        return CpuSurpluses(by_position)

    @cached_property
    def _requirements_cache(self) -> dict[Requirements, Requirements]:
        return {}

    def requirements_with(self, asked: Requirements) -> Requirements:
        """The pool's requirements with those of pods; one object for all that ask the same."""
        cached = self._requirements_cache.get(asked)
        if cached is None:
            cached = self._requirements_cache[asked] = self.requirements.intersect(asked)
        return cached

    @cached_property
    def _rooms(self) -> TypeRooms | None:
        """What types leave to pods; None where DaemonSets take the same of most types."""
        if len(self.daemons) <= _FEW_DAEMON_GROUPS:
            return None
        overheads: dict[int, Resources] = {}
        for group in self.daemons:
            for position in members(group.types):
                overheads.setdefault(position, group.overhead)
        return TypeRooms(self.index.types, overheads)

    def types_fitting(self, requests: Resources, within: TypeSet = -1) -> TypeSet:
        """Types that hold the requests beside their DaemonSets (SCH-216); ``within``: of these types."""
        if self._rooms is not None:
            return self._rooms.fitting(requests, within)
        fitting = 0
        for group in self.daemons:
            types = group.types & within
            if types:
                needed = res.add(requests, group.overhead) if group.overhead else requests
                fitting |= types & self.index.fitting(needed)
        return fitting

    def most_room(self, types: TypeSet) -> Resources:
        """The most that one of the types leaves to pods of each resource."""
        if self._rooms is not None:
            return self._rooms.most(types)
        rooms = []
        for group in self.daemons:
            if types & group.types:
                most = self.index.max_allocatable(types & group.types)
                rooms.append(res.subtract(most, group.overhead) if group.overhead else most)
        return res.maximum(rooms)

    def types_with_free_ports(self, ports: tuple[HostPort, ...]) -> TypeSet:
        """Types none of whose DaemonSets takes one of these host ports (SCH-418)."""
        if not ports:
            return self.types
        types = 0
        for group in self.daemons:
            if not any(held.conflicts_with(port) for held in group.ports for port in ports):
                types |= group.types
        return types

    def label_values(self, key: str) -> frozenset[str]:
        """The values of a label its nodes may have, whatever can be launched now (SCH-490)."""
        own = self.requirements.requirement_for(key)
        allowed = frozenset(value for value in self.index.values(key, self.types) if own.allows(value))
        return allowed or (own.values if own.operator is Op.IN else frozenset())

    def least_overhead(self, types: TypeSet) -> dict[str, int]:
        """What DaemonSets need at least on any of these types (SCH-217; a group without daemons needs nothing)."""
        return res.minimum(group.overhead for group in self.daemons if group.types & types)

    def overhead_of(self, position: int) -> Resources:
        """What DaemonSets take on one type."""
        if self._rooms is not None:
            return self._rooms.overhead_of(position)
        return next((group.overhead for group in self.daemons if group.types >> position & 1), {})


def nodepool_labels(pool: NodePool) -> dict[str, str]:
    """Labels every claim of the pool gets (SCH-120): the template's, the pool's name and its node class."""
    reference = pool.spec.template.spec.node_class_ref
    return {
        **pool.spec.template.metadata.labels,
        labels.NODE_POOL: pool.metadata.name,
        f"{reference.group}/{reference.kind.lower()}": reference.name,
    }


def nodepool_requirements(pool: NodePool) -> Requirements:
    """The pool's requirements with its labels and the two that only DaemonSets select by (SCH-120)."""
    simulated = (requirement(key, Op.IN, ("true",)) for key in sorted(labels.SIMULATION_ONLY))
    own = Requirements((*requirements_from_wire(pool.spec.template.spec.requirements).values(), *simulated))
    return own.intersect(requirements_from_labels(nodepool_labels(pool)))


def usable_templates(
    pools: Iterable[NodePool],
    indexes: Mapping[str, TypeIndex],
    daemons: tuple[DaemonSetPod, ...],
    *,
    min_values: bool,
    cpu_surplus: bool,
    sleeping: Mapping[str, PoolSleep] = {},
) -> tuple[tuple[NodePoolTemplate, ...], tuple[SkippedNodePool, ...]]:
    """Templates in the order pools are tried, and the pools left out with the reason (SCH-110 to SCH-122).

    Order: weight descending, then name descending. ``min_values`` False keeps pools whose minValues cannot be met.
    ``cpu_surplus``: CPU requests beyond the baseline of burstable types cost money. ``sleeping``: pools that sleep, by name.
    """
    nodepool_templates: list[NodePoolTemplate] = []
    skipped: list[SkippedNodePool] = []
    for pool in sorted(pools, key=lambda p: (p.spec.weight or 0, p.metadata.name), reverse=True):
        sleep = sleeping.get(pool.metadata.name)
        reason = _skip_reason(pool, indexes) or (PoolSkipReason.ASLEEP if sleep is not None else None)
        if reason is None:
            template = replace(_template_of(pool, indexes[pool.metadata.name], daemons), counts_cpu_surplus=cpu_surplus)
            if not template.types:
                reason = PoolSkipReason.FILTERED
            elif min_values and not template.index.satisfies_min_values(template.requirements, template.types):
                reason = PoolSkipReason.FILTERED_MIN_VALUES
            else:
                nodepool_templates.append(template)
        if reason is not None:
            detail = _not_ready_detail(pool) if reason is PoolSkipReason.NOT_READY else ""
            detail = str(sleep) if reason is PoolSkipReason.ASLEEP else detail
            skipped.append(SkippedNodePool(pool.metadata.name, reason, detail))
    return tuple(nodepool_templates), tuple(skipped)


def static_templates(
    pools: Iterable[NodePool], indexes: Mapping[str, TypeIndex], daemons: tuple[DaemonSetPod, ...]
) -> tuple[NodePoolTemplate, ...]:
    """What nodes of static pools look like, by name of the pool; for explanations, as no node is launched for pods there."""
    static_pools = (pool for pool in pools if pool.spec.replicas is not None and pool.metadata.name in indexes)
    ordered = sorted(static_pools, key=lambda pool: pool.metadata.name)
    return tuple(_template_of(pool, indexes[pool.metadata.name], daemons) for pool in ordered)


def _skip_reason(pool: NodePool, indexes: Mapping[str, TypeIndex]) -> PoolSkipReason | None:
    if pool.spec.replicas is not None:
        return PoolSkipReason.STATIC
    if pool.metadata.deletion_timestamp is not None:
        return PoolSkipReason.DELETING
    # Ready may still describe the pool before its last change, so its current limits may be unchecked.
    if not conditions.is_true(pool.status.conditions, "Ready") or check_quantities(pool):
        return PoolSkipReason.NOT_READY
    index = indexes.get(pool.metadata.name)
    if index is None:
        return PoolSkipReason.UNRESOLVED
    return None if index.types else PoolSkipReason.NO_TYPES


def _not_ready_detail(pool: NodePool) -> str:
    """What the pool's own conditions say is wrong with it, or what they do not say yet."""
    wrong = (c for c in pool.status.conditions if c.status == "False" and c.type != "Ready")
    said = next((condition.message or condition.reason for condition in wrong), "")
    return said or next(map(str, check_quantities(pool)), "")


def _template_of(pool: NodePool, index: TypeIndex, daemons: tuple[DaemonSetPod, ...]) -> NodePoolTemplate:
    requirements = nodepool_requirements(pool)
    own_taints = tuple(taint.as_taint() for taint in pool.spec.template.spec.taints)
    types = index.matching(requirements) & index.with_available_offering(requirements)
    running = [
        (
            daemon.requests,
            host_ports_of(daemon.spec),
            types & types_running_daemon(daemon.spec, requirements, own_taints, index),
        )
        for daemon in daemons
    ]
    return NodePoolTemplate(pool, index, requirements, own_taints, types, _daemon_groups(types, running))


def daemon_tolerates(spec: PodSpec, node_taints: tuple[Taint, ...]) -> bool:
    """Whether a DaemonSet pod tolerates the taints, soft ones always (SCH-213)."""
    return not taints.untolerated(node_taints, (*spec.tolerations, TOLERATE_PREFER_NO_SCHEDULE))


def daemon_node_terms(spec: PodSpec) -> list[Requirements]:
    """Node selector with each required affinity term: the alternatives a DaemonSet pod accepts. An empty term matches no node."""
    selector = node_selector_requirements(spec)
    terms = required_node_affinity_terms(spec.affinity)
    return (
        [selector.intersect(node_selector_term_requirements(term)) for term in terms if term.match_expressions]
        if terms
        else [selector]
    )


def types_running_daemon(
    spec: PodSpec, requirements: Requirements, own_taints: tuple[Taint, ...], index: TypeIndex
) -> TypeSet:
    """Types on which the DaemonSet runs, given what their nodes offer: all terms count, for every type (SCH-213 Beyond)."""
    if not daemon_tolerates(spec, own_taints):
        return 0
    types = 0
    for term in daemon_node_terms(spec):
        if compatible(requirements, term, index.well_known):
            types |= index.matching(term)
    return types


def _daemon_groups(
    types: TypeSet, running: Iterable[tuple[Resources, tuple[HostPort, ...], TypeSet]]
) -> tuple[DaemonGroup, ...]:
    groups: list[DaemonGroup] = [DaemonGroup(types, {})]
    for requests, ports, on in running:
        split: list[DaemonGroup] = []
        for group in groups:
            if group.types & on:
                overhead = res.add(group.overhead, requests)
                split.append(DaemonGroup(group.types & on, overhead, (*group.ports, *ports)))
            if group.types & ~on:
                split.append(replace(group, types=group.types & ~on))
        groups = split
    return tuple(groups)


def relaxed_min_values(requirements: Requirements, index: TypeIndex, types: TypeSet) -> Requirements:
    """The requirements with every ``minValues`` that is out of reach lowered to what the types offer (SCH-364, BestEffort)."""
    reached = index.min_values_shortages(requirements, types)
    return Requirements(
        replace(requirement, min_values=reached[key] or None) if key in reached else requirement
        for key, requirement in requirements.items()
    )
