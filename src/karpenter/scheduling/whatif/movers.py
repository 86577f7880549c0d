"""The pods of a what-if question, ready to be placed."""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.scheduling.equivalence_groups import EquivalenceGroup
from karpenter.scheduling.solution import UnschedulablePod


@dataclass(frozen=True, eq=False)
class Movers:
    """The pods of a question as equivalence groups, and those that cannot be planned for."""

    groups: tuple[EquivalenceGroup, ...]
    ineligible: tuple[UnschedulablePod, ...]

    @property
    def depend_on_pods_alone(self) -> bool:
        """Whether nothing but the pods and what they prefer makes the groups: no topology, no volumes, no workload."""
        if self.ineligible or any(group.membership or group.exposed_workload for group in self.groups):
            return False
        return not any(pod.spec.volumes for group in self.groups for pod in group.pods)
