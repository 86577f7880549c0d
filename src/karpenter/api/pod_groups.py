"""Objects that say which pods belong together: PodGroups and Workloads of the scheduler's API, PodGroups of coscheduling.

Kubernetes 1.35 has `Workload` with its groups inside (``scheduling.k8s.io/v1alpha1``). Since 1.36 a `PodGroup` is an object of
its own (``v1alpha2``, from 1.37 ``v1beta1``), which pods name in ``spec.schedulingGroup``. All are served behind gates only.
"""

from __future__ import annotations

from karpenter.api.meta import ObjectMeta, Wire


class GangSchedulingPolicy(Wire, frozen=True, kw_only=True):
    """All or nothing: so many pods must have a place at once."""

    min_count: int = 0


class PodGroupPolicy(Wire, frozen=True, kw_only=True):
    """How the pods of a group are scheduled: as a gang, or one by one (``basic``, which has no fields)."""

    gang: GangSchedulingPolicy | None = None


class WorkloadPodGroup(Wire, frozen=True, kw_only=True):
    """One group of a Workload of Kubernetes 1.35."""

    name: str = ""
    policy: PodGroupPolicy = PodGroupPolicy()


class GroupedWorkloadSpec(Wire, frozen=True, kw_only=True):
    """The groups of a Workload."""

    pod_groups: tuple[WorkloadPodGroup, ...] = ()


class GroupedWorkload(Wire, frozen=True, kw_only=True):
    """A Workload of Kubernetes 1.35 (``scheduling.k8s.io/v1alpha1``)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: GroupedWorkloadSpec = GroupedWorkloadSpec()


class PodGroupTopologyConstraint(Wire, frozen=True, kw_only=True):
    """All pods of the group in one domain of this label."""

    key: str = ""


class PodGroupSchedulingConstraints(Wire, frozen=True, kw_only=True):
    """Where the pods of a group may be."""

    topology: tuple[PodGroupTopologyConstraint, ...] = ()


class SchedulingPodGroupSpec(Wire, frozen=True, kw_only=True):
    """What a PodGroup asks of the scheduler."""

    scheduling_policy: PodGroupPolicy = PodGroupPolicy()
    scheduling_constraints: PodGroupSchedulingConstraints | None = None
    priority: int | None = None


class SchedulingPodGroup(Wire, frozen=True, kw_only=True):
    """A PodGroup of Kubernetes 1.36 and later (``scheduling.k8s.io``)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: SchedulingPodGroupSpec = SchedulingPodGroupSpec()


class CoschedulingPodGroupSpec(Wire, frozen=True, kw_only=True):
    """How many pods must run together."""

    min_member: int = 0


class CoschedulingPodGroup(Wire, frozen=True, kw_only=True):
    """A PodGroup of the coscheduling plugin (``scheduling.x-k8s.io/v1alpha1``)."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CoschedulingPodGroupSpec = CoschedulingPodGroupSpec()
