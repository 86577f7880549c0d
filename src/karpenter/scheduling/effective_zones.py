"""The zone a waiting pod will end up in, as far as that is settled before anything is planned (SCH-668).

What the pod requires, where its volumes are and what its own constraints between pods leave are intersected: one zone has its
name, several are `FLEXIBLE`, and where none is left it is `NONE`. Every OR-term and every place of its volumes counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from karpenter.model import labels
from karpenter.model.requirements import Op, Requirement, Requirements
from karpenter.scheduling.equivalence_groups import EquivalenceGroup
from karpenter.scheduling.solution import ZoneBoundPods
from karpenter.scheduling.topology.topology import Topology, domain_constraints_of
from karpenter.scheduling.topology.topology_domains import TopologyDomains
from karpenter.scheduling.topology.topology_groups import TopologyMembership
from karpenter.state.topology_terms import TopologyTerm

FLEXIBLE = "flexible"
NO_ZONE = "none"


def effective_zones(groups: Iterable[EquivalenceGroup], domains: TopologyDomains) -> tuple[ZoneBoundPods, ...]:
    """The pods whose zone is settled, or of which none is left; all others are flexible."""
    finder = _ZoneFinder(Topology(domains))
    zones = ((finder.zone_of(group), group) for group in groups)
    return tuple(ZoneBoundPods(zone, group.pods) for zone, group in zones if zone != FLEXIBLE)


class _ZoneFinder:
    """Answers by what groups have in common. The topology counts are those before any pod is placed."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._zones_left: dict[tuple[TopologyMembership, Requirements, tuple[TopologyTerm, ...]], set[str] | None] = {}

    def zone_of(self, group: EquivalenceGroup) -> str:
        """One zone's name, ``FLEXIBLE`` or ``NO_ZONE``."""
        steps = group.relaxation_steps
        allowed = self._zones_left_to(group) if group.membership.declared else None
        if allowed is None and any(labels.ZONE not in step.requirements for step in steps):
            return FLEXIBLE
        asked = [step.requirements.requirement_for(labels.ZONE) for step in steps]
        if allowed is None:
            return _named_zones(asked)
        return _single_zone(zone for zone in allowed if any(requirement.allows(zone) for requirement in asked))

    def _zones_left_to(self, group: EquivalenceGroup) -> set[str] | None:
        first = group.relaxation_steps[0]
        common = (group.membership, first.requirements, first.terms)
        if common not in self._zones_left:
            self._zones_left[common] = _zones_left_by_topology(*common, self._topology)
        return self._zones_left[common]


def _named_zones(asked: Sequence[Requirement]) -> str:
    """The zones named, where nothing but names is accepted."""
    if any(requirement.operator in (Op.EXISTS, Op.NOT_IN) for requirement in asked):
        return FLEXIBLE
    return _single_zone(zone for requirement in asked for zone in requirement.values)


def _zones_left_by_topology(
    membership: TopologyMembership, asked: Requirements, terms: tuple[TopologyTerm, ...], topology: Topology
) -> set[str] | None:
    """The zones the pod's own constraints leave, also those it would give up; None where it states none by zone."""
    constraints = domain_constraints_of(membership, asked, terms)
    open_to = (
        topology.open_domains(constraints)
        if constraints is not None and labels.ZONE in constraints.key_positions
        else {}
    )
    open_zones = open_to.get(constraints.key_positions[labels.ZONE]) if constraints is not None and open_to else None
    return None if open_zones is None else {zone for zone in open_zones if zone is not None}


def _single_zone(zones: Iterable[str]) -> str:
    distinct = set(zones)
    if not distinct:
        return NO_ZONE
    return distinct.pop() if len(distinct) == 1 else FLEXIBLE
