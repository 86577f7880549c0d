"""Which constraint left pods out of a pass: a topology group, or the only domains it leaves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from karpenter.api.core import Pod
from karpenter.scheduling.equivalence_groups import GroupStep
from karpenter.scheduling.failed_filters import TopologyConfinement, TopologyUnsatisfiable
from karpenter.scheduling.offerings.launch_options import LaunchOptionIndex
from karpenter.scheduling.pass_result import UnschedulableGroup
from karpenter.scheduling.pass_state import PassState
from karpenter.scheduling.topology.domain_options import DomainOptions
from karpenter.scheduling.topology.domain_placement import allows_combination
from karpenter.scheduling.topology.host_limits import HostUsage
from karpenter.scheduling.topology.topology import DomainCombination, DomainConstraints
from karpenter.scheduling.topology.topology_groups import TopologyGroup


class TopologyDiagnosis:
    """Finds the constraint that left out pods at the end of a pass."""

    def __init__(self, state: PassState, domain_options: DomainOptions, launch_options: LaunchOptionIndex) -> None:
        self._state = state
        self._domain_options = domain_options
        self._launch_options = launch_options

    def unschedulable(self, step: GroupStep, pods: Sequence[Pod], *, capped: bool) -> UnschedulableGroup:
        """The pods with what left them out. ``capped``: the pass may not request new nodes for the group as it likes."""
        options = self._launch_options.options(step.group.signature, step.relaxation_step)
        if options and capped and not any(option.template.pool.spec.limits for option in options):
            # Only limits and affinity by host leave pods out of a packing.
            affinity = step.host_limits.affinity if step.host_limits is not None else ()
            return (
                self._unschedulable_by(affinity[0][0], step, tuple(pods))
                if affinity
                else UnschedulableGroup(step.group, step.relaxation_step, tuple(pods))
            )
        if not options or capped:
            return UnschedulableGroup(step.group, step.relaxation_step, tuple(pods), limited=capped)
        return self._blocked_by_topology(step, tuple(pods))

    def _blocked_by_topology(self, step: GroupStep, pods: tuple[Pod, ...]) -> UnschedulableGroup:
        """Nodes could be launched, so a topology constraint leaves the pods out."""
        blocked = (
            self._blocked_by_domains(step, step.domain_constraints, pods)
            if step.domain_constraints is not None
            else None
        )
        if blocked is not None:
            return blocked
        topology_group = (
            step.host_limits.blocking_group(HostUsage(), self._state.unmet_affinity)
            if step.host_limits is not None
            else None
        )
        return (
            self._unschedulable_by(topology_group, step, pods)
            if topology_group is not None
            else UnschedulableGroup(step.group, step.relaxation_step, pods)
        )

    def _blocked_by_domains(
        self, step: GroupStep, constraints: DomainConstraints, pods: tuple[Pod, ...]
    ) -> UnschedulableGroup | None:
        """The same where a constraint wider than a host left the pods out; None where none did."""
        topology = self._state.topology
        open_to, closed = topology.open_domains(constraints), topology.closed_domains(constraints)
        for group, _ in constraints.declared:
            domains = open_to[constraints.key_positions[group.topology_key]]
            if not domains & self._domain_options.reachable_domains(constraints, group.topology_key):
                return self._unschedulable_by(group, step, pods, domains)
        combinations = self._domain_options.possible_combinations(step, constraints, open_to)
        allowed = [combination for combination in combinations if allows_combination(combination, open_to, closed)]
        for combination in allowed:
            if not self._domain_options.options_in(step, combination):
                requirements = constraints.as_requirements(combination)
                pinned = self._launch_options.restricted_to(step.relaxation_step, requirements)
                confined = _confining_groups(constraints, combination)
                return UnschedulableGroup(step.group, pinned, pods, confined=confined)
        for group in constraints.repelled_by:
            if topology.owner_counts(group) and not allowed:
                return self._unschedulable_by(group, step, pods)
        return None

    def _unschedulable_by(
        self, group: TopologyGroup, step: GroupStep, pods: tuple[Pod, ...], domains: Iterable[str | None] = ()
    ) -> UnschedulableGroup:
        """The topology group left no domain but ``domains``, where no node can be launched."""
        topology, own = self._state.topology, group in step.group.membership.declared.values()
        if group.is_hostname:
            counts = group.pod_counts if own else group.owner_counts
        else:
            counts = topology.pod_counts(group) if own else topology.owner_counts(group)
        blocked = TopologyUnsatisfiable(
            group.term.topology_type,
            group.topology_key,
            own,
            step.relaxation_step.hard_requirements.requirement_for(group.topology_key),
            topology.known_domains(group),
            {domain: number for domain, number in sorted(counts.items()) if number},
            tuple(sorted(domain for domain in domains if domain is not None)),
        )
        return UnschedulableGroup(step.group, step.relaxation_step, pods, blocked=blocked)


def _confining_groups(
    constraints: DomainConstraints, combination: DomainCombination
) -> tuple[TopologyConfinement, ...]:
    """The constraints that leave only this combination: the group's own, or those of others where it states none."""
    stated = [group for group, _ in constraints.declared] or [*constraints.repelled_by]
    domains = {
        (group.term.topology_type, group.topology_key): combination[constraints.key_positions[group.topology_key]]
        for group in stated
    }
    return tuple(
        TopologyConfinement(relation, key, domain) for (relation, key), domain in domains.items() if domain is not None
    )
