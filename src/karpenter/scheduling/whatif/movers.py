"""The pods of a what-if question, ready to be placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from karpenter.api.storage import Volume
from karpenter.model import labels, pods
from karpenter.scheduling.equivalence_groups import EquivalenceGroup, group_order
from karpenter.scheduling.solution import UnschedulablePod
from karpenter.scheduling.whatif.counted_pass import CountedGroup


@dataclass(frozen=True, eq=False)
class Movers:
    """The pods of a question as equivalence groups, and those that cannot be planned for."""

    groups: tuple[EquivalenceGroup, ...]
    ineligible: tuple[UnschedulablePod, ...]

    @cached_property
    def have_topology(self) -> bool:
        """Whether a topology group counts any of them."""
        return any(group.membership for group in self.groups)

    @cached_property
    def depend_on_pods_alone(self) -> bool:
        """Whether nothing but the pods and what they prefer makes the groups: no topology, no volumes, no workload.

        What else may tell pods apart is in no group: anti-affinity of others (`ReschedulingBase`), default spread and devices
        (`PreparedProblem.groups_depend_on_pods_alone`). A volume without a source that counts, such as a token, tells nothing.
        """
        if self.ineligible or any(group.membership or group.exposed_workload for group in self.groups):
            return False
        volumes = (volume for group in self.groups for pod in group.pods for volume in pod.spec.volumes)
        return all(volume == Volume(name=volume.name) for volume in volumes)

    @cached_property
    def need_room_alone(self) -> bool:
        """Whether of a node with room only its labels and taints count for them: they use no ports, volumes or devices."""
        signatures = (group.signature for group in self.groups)
        return self.depend_on_pods_alone and not any(each.host_ports or each.device_demand for each in signatures)

    @cached_property
    def counts(self) -> tuple[CountedGroup, ...]:
        """The groups in counts."""
        return tuple(
            CountedGroup(group.signature, group.relaxation_steps, len(group.pods), group_order(group))
            for group in self.groups
        )

    @cached_property
    def workload_counts(self) -> Mapping[str, int]:
        """How many of the pods each workload has."""
        owners = Counter(pods.workload_id(pod) for group in self.groups for pod in group.pods)
        del owners[""]
        return owners

    @cached_property
    def have_own_exposure(self) -> bool:
        """Whether a pod says itself how many of its workload may share a node."""
        return any(labels.EXPOSURE in pod.metadata.annotations for group in self.groups for pod in group.pods)


def merged_counts(several: Iterable[Movers]) -> tuple[CountedGroup, ...]:
    """The pods of several nodes together, in counts, where all of them need room alone."""
    merged: dict[tuple[object, bool], CountedGroup] = {}
    for movers in several:
        for group in movers.counts:
            key = (group.signature, group.is_virtual)
            known = merged.get(key)
            merged[key] = group if known is None else known.with_more(group)
    return tuple(sorted(merged.values(), key=lambda group: group.order))


def workload_counts(several: Iterable[Movers]) -> Mapping[str, int]:
    """How many pods of each workload all of them have together."""
    counts: Counter[str] = Counter()
    for movers in several:
        for owner, count in movers.workload_counts.items():
            counts[owner] += count
    return counts
