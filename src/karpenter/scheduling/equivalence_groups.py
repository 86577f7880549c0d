"""Pods that a pass cannot tell apart, in the order they are placed, with their constraints at each relaxation step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from karpenter.api.core import Pod
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements
from karpenter.scheduling.existing_nodes import ExistingNodeIndex, NodeFitRequest, NodeSet
from karpenter.scheduling.preferences import RelaxationStep
from karpenter.scheduling.topology.host_limits import ExposedWorkload, HostLimits, host_limits_of
from karpenter.scheduling.topology.topology import DomainConstraints, domain_constraints_of
from karpenter.scheduling.topology.topology_groups import TopologyMembership
from karpenter.state.host_ports import HostPort
from karpenter.state.pod_signature import PodSignature
from karpenter.state.pod_volumes import VolumesByDriver
from karpenter.state.snapshot import PodKey, scheduling_order
from karpenter.state.topology_terms import TopologyTerm


@dataclass(frozen=True, eq=False)
class EquivalenceGroup:
    """Waiting pods that scheduling cannot tell apart: equal signatures, the same topology groups, volumes in the same places.

    ``pods`` are in scheduling order; ``mounts`` is what pods with volumes attach. ``virtual``: the pods stand for room that a
    capacity buffer keeps free. ``keeps_placement``: pods stay planned where the last pass placed them, if they may.
    ``exposed_workload``: the workload they are all of, if not all of it should be on one new node.
    """

    signature: PodSignature
    membership: TopologyMembership
    pods: tuple[Pod, ...]
    relaxation_steps: tuple[RelaxationStep, ...]
    mounts: Mapping[PodKey, VolumesByDriver] = field(default_factory=dict)
    virtual: bool = False
    keeps_placement: bool = True
    exposed_workload: ExposedWorkload | None = None


#: Sort key of groups; whether they are virtual comes first.
GroupOrder = tuple[bool, int, int, int, datetime, str, str, str]


def group_order(group: EquivalenceGroup) -> GroupOrder:
    """Groups in Karpenter's order (SCH-231): CPU, then memory, largest first, then whose pod is first in turn.

    Virtual pods come last, so that they never take the place of a real one (§25 Beyond).
    """
    requests = group.signature.requests
    return (group.virtual, -requests.get(res.CPU, 0), -requests.get(res.MEMORY, 0), *scheduling_order(group.pods[0]))


def without_exposure(
    groups: Iterable[EquivalenceGroup], workloads: Container[ExposedWorkload]
) -> list[EquivalenceGroup]:
    """The groups when these workloads may be on one node. Groups that differ only by such a workload are merged."""
    alike: defaultdict[object, list[EquivalenceGroup]] = defaultdict(list)
    for group in groups:
        exposed = group.exposed_workload if group.exposed_workload not in workloads else None
        relaxed = replace(group, exposed_workload=exposed)
        key = (group.signature, group.membership, group.relaxation_steps, group.virtual, group.keeps_placement, exposed)
        alike[key].append(relaxed)
    return sorted((_merged(same) for same in alike.values()), key=group_order)


def _merged(groups: Sequence[EquivalenceGroup]) -> EquivalenceGroup:
    """Merge groups that differ in nothing any more."""
    if len(groups) == 1:
        return groups[0]
    pods = sorted((pod for group in groups for pod in group.pods), key=scheduling_order)
    mounts = {key: volumes for group in groups for key, volumes in group.mounts.items()}
    return replace(groups[0], pods=tuple(pods), mounts=mounts)


class StepConstraints:
    """Constraints of topology memberships at one relaxation step, derived once for all groups alike."""

    def __init__(self) -> None:
        self._by_step: dict[
            tuple[TopologyMembership, tuple[TopologyTerm, ...], tuple[HostPort, ...], Requirements],
            tuple[HostLimits | None, DomainConstraints | None],
        ] = {}
        self._host_limits: dict[
            tuple[TopologyMembership, tuple[TopologyTerm, ...], tuple[HostPort, ...]], HostLimits | None
        ] = {}
        self._domain_constraints: dict[
            tuple[TopologyMembership, tuple[TopologyTerm, ...], Requirements], DomainConstraints | None
        ] = {}

    def of_step(
        self, group: EquivalenceGroup, relaxation_step: RelaxationStep
    ) -> tuple[HostLimits | None, DomainConstraints | None]:
        """What the group asks of a single node, and what of wider domains."""
        membership, ports = group.membership, group.signature.host_ports
        if not membership and not ports:
            return None, None
        key = (membership, relaxation_step.terms, ports, relaxation_step.hard_requirements)
        constraints = self._by_step.get(key)
        if constraints is None:
            constraints = self._by_step[key] = (
                self._host_limits_of(group, relaxation_step),
                self._domain_constraints_of(membership, relaxation_step) if membership else None,
            )
        return constraints

    def _host_limits_of(self, group: EquivalenceGroup, relaxation_step: RelaxationStep) -> HostLimits | None:
        key = (group.membership, relaxation_step.terms, group.signature.host_ports)
        if key not in self._host_limits:
            self._host_limits[key] = host_limits_of(group.signature, group.membership, relaxation_step.terms)
        return self._host_limits[key]

    def _domain_constraints_of(
        self, membership: TopologyMembership, relaxation_step: RelaxationStep
    ) -> DomainConstraints | None:
        key = (membership, relaxation_step.terms, relaxation_step.hard_requirements)
        if key not in self._domain_constraints:
            self._domain_constraints[key] = domain_constraints_of(
                membership, relaxation_step.hard_requirements, relaxation_step.terms
            )
        return self._domain_constraints[key]


class GroupStep:
    """A group at one relaxation step, with all that does not change while it is placed."""

    def __init__(
        self, group: EquivalenceGroup, number: int, existing_nodes: ExistingNodeIndex, step_constraints: StepConstraints
    ) -> None:
        self.group = group
        self.step_number = number
        self.relaxation_step = group.relaxation_steps[number]
        self.host_limits: HostLimits | None
        self.domain_constraints: DomainConstraints | None
        self.host_limits, self.domain_constraints = step_constraints.of_step(group, self.relaxation_step)
        self.fit_request = NodeFitRequest(group.signature, self.relaxation_step, self.host_limits, group.mounts)
        self._existing_nodes = existing_nodes

    def ignore_others_spread(self) -> bool:
        """Heed others' spread no further than the scheduler does itself; whether that makes a difference."""
        by_host, by_domain = self.host_limits, self.domain_constraints
        if by_host is not None and by_host.others_spread:
            self.host_limits = replace(by_host, others_spread=())
            self.fit_request = replace(self.fit_request, host_limits=self.host_limits)
        if by_domain is not None and by_domain.others_spread:
            self.domain_constraints = replace(by_domain, others_spread=())
        return self.host_limits is not by_host or self.domain_constraints is not by_domain

    @cached_property
    def candidates(self) -> NodeSet:
        """Nodes worth asking."""
        return self._existing_nodes.candidates(self.fit_request)
