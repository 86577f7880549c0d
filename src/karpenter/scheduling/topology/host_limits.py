"""What constraints by host name and host ports ask of a single node: plain arithmetic on counts per node (SCH-900.4).

Every node is a domain of its own, and another empty one can always be launched, so the smallest count is taken as none (SCH-541).
`HostLimits` belong to a group and say how many of its pods one node may take; `HostUsage` belongs to a node and counts the pods
on it. Both serve existing nodes and nodes of a packing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

from karpenter.scheduling.topology.topology_groups import TopologyGroup, TopologyMembership
from karpenter.state.host_ports import HostPort
from karpenter.state.pod_signature import PodSignature
from karpenter.state.topology_terms import TopologyTerm, TopologyType


@dataclass(frozen=True, eq=False)
class ExposedWorkload:
    """A workload of which no more than ``max_per_node`` pods should be on one new node, unless its NodePool says otherwise.

    ``name`` is how users know it, ``replicas`` how many pods it has, waiting or bound.
    """

    name: str
    replicas: int
    max_per_node: int
    max_per_node_by_pool: Mapping[str, int] = field(default_factory=dict)

    @property
    def lowest_max(self) -> int:
        """The fewest that any NodePool says."""
        return min((self.max_per_node, *self.max_per_node_by_pool.values()))

    def max_in_pool(self, pool: str) -> int:
        """How many a node of the NodePool should take."""
        return self.max_per_node_by_pool.get(pool, self.max_per_node)


class HostUsage:
    """The pods on one node, counted. ``host`` is its Node's name, empty for one without Node, on which no pod is bound yet.

    ``pool``: the NodePool of a new node.
    """

    __slots__ = ("_exposed", "_matching", "_node_name", "_node_pool", "_owners", "ports")

    def __init__(self, host: str = "", ports: tuple[HostPort, ...] = (), pool: str = "") -> None:
        self._node_name = host
        self._node_pool = pool
        self._exposed: dict[ExposedWorkload, int] = {}
        self._matching: dict[TopologyGroup, int] = {}
        self._owners: dict[TopologyGroup, int] = {}
        self.ports = ports

    def copy(self) -> HostUsage:
        """The same counts, to try further pods on."""
        other = HostUsage(self._node_name, self.ports, self._node_pool)
        other._exposed = dict(self._exposed)
        other._matching = dict(self._matching)
        other._owners = dict(self._owners)
        return other

    def matching_count(self, constraint: TopologyGroup) -> int:
        """How many pods the constraint means are here."""
        cached = self._matching.get(constraint)
        if cached is not None:
            return cached
        return constraint.pod_counts.get(self._node_name, 0) if self._node_name else 0

    def owner_count(self, constraint: TopologyGroup) -> int:
        """How many pods that repel by the constraint are here."""
        owner = self._owners.get(constraint)
        if owner is not None:
            return owner
        return constraint.owner_counts.get(self._node_name, 0) if self._node_name else 0

    def add_matching(self, constraint: TopologyGroup, number: int) -> None:
        """So many pods the constraint means have come."""
        self._matching[constraint] = self.matching_count(constraint) + number

    def add_owners(self, constraint: TopologyGroup, number: int) -> None:
        """So many pods that repel by it have come."""
        self._owners[constraint] = self.owner_count(constraint) + number

    def exposure_left(self, exposed_workload: ExposedWorkload) -> int:
        """How many more pods of a workload should come here."""
        return max(0, exposed_workload.max_in_pool(self._node_pool) - self._exposed.get(exposed_workload, 0))

    def add_exposed(self, exposed_workload: ExposedWorkload, number: int) -> None:
        """So many pods of the workload have come."""
        self._exposed[exposed_workload] = self._exposed.get(exposed_workload, 0) + number

    def port_conflict(self, ports: Iterable[HostPort]) -> tuple[HostPort, HostPort] | None:
        """The first pair of a taken and an asked port that collide."""
        return next(((held, port) for port in ports for held in self.ports if held.conflicts_with(port)), None)


@dataclass(frozen=True, eq=False)
class HostLimits:
    """What one group asks of each node, and how it counts for groups placed later.

    The flag beside a topology group says whether it selects the group's own pods. ``counted_by`` and ``owned_anti_affinity`` are
    what its pods add to. ``others_spread``: spreads of others that select these pods. Where a pod that spreads so is planned,
    these keep within its skew, because the order of binding is unknown. ``exposed_workload``: their workload, where not all of it
    should be on one new node.
    """

    spread: tuple[tuple[TopologyGroup, bool], ...] = ()
    anti_affinity: tuple[tuple[TopologyGroup, bool], ...] = ()
    affinity: tuple[tuple[TopologyGroup, bool], ...] = ()
    repelled_by: tuple[TopologyGroup, ...] = ()
    others_spread: tuple[TopologyGroup, ...] = ()
    counted_by: tuple[TopologyGroup, ...] = ()
    owned_anti_affinity: tuple[TopologyGroup, ...] = ()
    ports: tuple[HostPort, ...] = ()
    exposed_workload: ExposedWorkload | None = None

    def count_allowed(self, usage: HostUsage, wanted: int, unmet_affinity: Container[TopologyGroup]) -> int:
        """How many pods a node may take, at most ``wanted``.

        ``unmet_affinity``: affinity that no pod satisfies yet, so that the first may start it.
        """
        if (self.repelled_by or self.affinity or self.ports) and self._excluded(usage, unmet_affinity):
            return 0
        if self.ports:
            wanted = min(wanted, 1)
        if self.exposed_workload is not None:
            wanted = min(wanted, usage.exposure_left(self.exposed_workload))
        for constraint, itself in self.anti_affinity:
            if usage.matching_count(constraint):
                return 0
            wanted = min(wanted, 1) if itself else wanted
        return self._within_skew(usage, wanted)

    def _within_skew(self, usage: HostUsage, wanted: int) -> int:
        """How many of so many pods keep within all skews that matter here."""
        for constraint, itself in self.spread:
            free = constraint.term.max_skew - usage.matching_count(constraint)
            if free < itself:
                return 0
            wanted = min(wanted, free) if itself else wanted
        for constraint in self.others_spread:
            if usage.owner_count(constraint):
                wanted = max(0, min(wanted, constraint.term.max_skew - usage.matching_count(constraint)))
        return wanted

    def _excluded(self, usage: HostUsage, unmet_affinity: Container[TopologyGroup]) -> bool:
        """Whether the pods there, or the lack of pods there, keep all of them away."""
        if self.ports and usage.ports and usage.port_conflict(self.ports):
            return True
        for constraint in self.repelled_by:
            if usage.owner_count(constraint):
                return True
        return any(
            not usage.matching_count(constraint) and not (itself and constraint in unmet_affinity)
            for constraint, itself in self.affinity
        )

    def record(self, usage: HostUsage, number: int) -> None:
        """So many pods have been placed."""
        for constraint in self.counted_by:
            usage.add_matching(constraint, number)
        for constraint in self.owned_anti_affinity:
            usage.add_owners(constraint, number)
        if self.ports:
            usage.ports = (*usage.ports, *self.ports)
        if self.exposed_workload is not None:
            usage.add_exposed(self.exposed_workload, number)

    def blocking_group(self, usage: HostUsage, unmet_affinity: Container[TopologyGroup]) -> TopologyGroup | None:
        """The constraint for which not even one pod may come, ports aside; None when one may."""
        for constraint in self.repelled_by:
            if usage.owner_count(constraint):
                return constraint
        own = (*self.affinity, *self.anti_affinity, *self.spread)
        alone = (
            *(HostLimits(affinity=(limit,)) for limit in self.affinity),
            *(HostLimits(anti_affinity=(limit,)) for limit in self.anti_affinity),
            *(HostLimits(spread=(limit,)) for limit in self.spread),
        )
        pairs = zip(own, alone, strict=True)
        blocking = (limit[0] for limit, rule in pairs if not rule.count_allowed(usage, 1, unmet_affinity))
        return next(blocking, None)


def host_limits_of(
    signature: PodSignature, membership: TopologyMembership, active: Iterable[TopologyTerm]
) -> HostLimits | None:
    """The rules of a group while these terms of it are active; None where nodes need not care."""
    by_relation: dict[TopologyType, list[tuple[TopologyGroup, bool]]] = {relation: [] for relation in TopologyType}
    for term in active:
        if term.is_hostname:
            constraint = membership.declared[term]
            by_relation[term.topology_type].append((constraint, membership.selects_itself(constraint)))
    counted_by = tuple(c for c in membership.selected_by if c.is_hostname)
    spread = tuple(by_relation[TopologyType.SPREAD])
    own = [constraint for constraint, _ in spread]
    host_limits = HostLimits(
        spread=spread,
        anti_affinity=tuple(by_relation[TopologyType.ANTI_AFFINITY]),
        affinity=tuple(by_relation[TopologyType.AFFINITY]),
        repelled_by=tuple(c for c in counted_by if c.required and c.term.topology_type is TopologyType.ANTI_AFFINITY),
        others_spread=tuple(
            c for c in counted_by if c.required and c.term.topology_type is TopologyType.SPREAD and c not in own
        ),
        counted_by=counted_by,
        owned_anti_affinity=tuple(
            c for c in (*membership.inverse_anti_affinity, *own) if c.is_hostname and c in membership.required
        ),
        ports=signature.host_ports,
    )
    return (
        host_limits
        if counted_by or signature.host_ports or host_limits.spread or host_limits.anti_affinity or host_limits.affinity
        else None
    )


def with_exposure_limit(host_limits: HostLimits | None, exposed_workload: ExposedWorkload | None) -> HostLimits | None:
    """The rules of pods on new nodes, their workload's exposure among them; pods that must be together stay together."""
    if exposed_workload is None or (host_limits is not None and host_limits.affinity):
        return host_limits
    return replace(host_limits if host_limits is not None else HostLimits(), exposed_workload=exposed_workload)
