"""The gang index of the cluster state: which pods name which gang, and the objects that say how many must run together.

Every pod event updates one dictionary. A snapshot visits the gangs that have a pending pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from karpenter.api import kinds
from karpenter.api.core import Pod
from karpenter.api.kinds import Kind
from karpenter.api.pod_groups import CoschedulingPodGroup, GroupedWorkload, SchedulingPodGroup
from karpenter.model import labels, pods
from karpenter.state.gangs import Gang, GangKey, GangSource, gang_key_of

_PodKey = tuple[str, str]
GangObject = GroupedWorkload | SchedulingPodGroup | CoschedulingPodGroup
#: The kinds that say how many pods of a gang must run together.
GANG_KINDS: tuple[Kind[GangObject], ...] = (
    kinds.GROUPED_WORKLOAD,  # type: ignore[assignment]
    kinds.POD_GROUP,
    kinds.POD_GROUP_ALPHA,
    kinds.COSCHEDULING_POD_GROUP,
)


@dataclass(frozen=True)
class GangPolicy:
    """What an object says of a gang. ``minimum`` None: the pods are scheduled one by one."""

    minimum: int | None
    topology_key: str = ""
    priority: int | None = None


class GangIndex:
    """Follows gangs. Until it is enabled, all pods are planned one by one."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._is_enabled = False
        self._pods: dict[GangKey, dict[_PodKey, Pod]] = {}
        self._key_by_pod: dict[_PodKey, GangKey] = {}
        #: Pods that are marked unschedulable, by gang.
        self._marked: dict[GangKey, set[_PodKey]] = {}
        self._workloads: dict[_PodKey, GroupedWorkload] = {}
        self._policies: dict[GangKey, GangPolicy] = {}
        self._indispensable: Mapping[str, str] | None = None
        #: Until when gangs, by name, are not started again; set by the caller that starts them.
        self.paused_until: Mapping[str, datetime] = {}

    def enable(self) -> None:
        """Plan gangs as a whole from now on."""
        self._is_enabled = True
        self._indispensable = None
        self._on_change()

    # -- events -------------------------------------------------------------------------------------------------------

    def set_pod(self, key: _PodKey, pod: Pod) -> None:
        """A pod appeared or changed."""
        self.remove_pod(key)
        gang = gang_key_of(pod)
        if gang is not None:
            self._indispensable = None
            self._key_by_pod[key] = gang
            self._pods.setdefault(gang, {})[key] = pod
            if pods.is_provisionable(pod):
                self._marked.setdefault(gang, set()).add(key)

    def remove_pod(self, key: _PodKey) -> None:
        """A pod is gone."""
        gang = self._key_by_pod.pop(key, None)
        if gang is None:
            return
        self._indispensable = None
        members, marked = self._pods[gang], self._marked.get(gang, set())
        del members[key]
        if not members:
            del self._pods[gang]
        marked.discard(key)
        if not marked:
            self._marked.pop(gang, None)

    def set_object(self, obj: GangObject) -> None:
        """A Workload or PodGroup appeared or changed."""
        self._indispensable = None
        match obj:
            case GroupedWorkload():
                self._workloads[_object_key(obj)] = obj
            case SchedulingPodGroup():
                self._policies[_gang_key(obj)] = _policy_of_pod_group(obj)
            case CoschedulingPodGroup():
                topology = obj.metadata.annotations.get(labels.GANG_TOPOLOGY, "")
                self._policies[_gang_key(obj)] = GangPolicy(obj.spec.min_member, topology)
        self._on_change()

    def remove_object(self, obj: GangObject) -> None:
        """A Workload or PodGroup is gone."""
        self._indispensable = None
        if isinstance(obj, GroupedWorkload):
            self._workloads.pop(_object_key(obj), None)
        else:
            self._policies.pop(_gang_key(obj), None)
        self._on_change()

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def members_not_marked(self) -> Iterator[Pod]:
        """Unbound pods of gangs of which another pod is marked unschedulable.

        The scheduler may hold a place for them on a node there is, but it binds none of them before all have one.
        """
        for gang in self._marked if self._is_enabled else ():
            yield from (pod for pod in self._pods[gang].values() if _waits_for_others(pod))

    def snapshot(self) -> tuple[Gang, ...]:
        """The gangs that have pending pods, by name."""
        if not self._is_enabled:
            return ()
        gangs = (self._gang(key, tuple(self._pods[key].values())) for key in self._marked)
        return tuple(sorted((gang for gang in gangs if gang is not None), key=lambda gang: gang.name))

    def indispensable_gangs(self) -> Mapping[str, str]:
        """By node the gang that runs there and elsewhere and has too few pods without this node. Kept while nothing changes."""
        if self._indispensable is None:
            spread = self._spread_gangs() if self._is_enabled else ()
            self._indispensable = {node: str(key) for key, nodes in spread for node in nodes}
        return self._indispensable

    def _spread_gangs(self) -> Iterator[tuple[GangKey, tuple[str, ...]]]:
        for key, members in self._pods.items():
            placed = [pod for pod in members.values() if _has_place(pod)]
            on_node = Counter(pod.spec.node_name for pod in placed if pods.is_active(pod))
            policy = self._policy_of(key) or GangPolicy(len(placed))
            minimum = policy.minimum
            if len(on_node) > 1 and minimum is not None:
                yield key, tuple(node for node, count in on_node.items() if len(placed) - count < minimum)

    def _gang(self, key: GangKey, members: tuple[Pod, ...]) -> Gang | None:
        pending = [pod for pod in members if pods.is_provisionable(pod) or _waits_for_others(pod)]
        running = [pod for pod in members if _has_place(pod)]
        policy = self._policy_of(key)
        if policy is not None and policy.minimum is None:
            return None
        annotated = (pod.metadata.annotations.get(labels.GANG_TOPOLOGY, "") for pod in pending)
        topology_key = (policy.topology_key if policy is not None else "") or next(filter(None, annotated), "")
        priority = policy.priority if policy is not None else None
        minimum = policy.minimum if policy is not None else None
        return Gang(
            name=str(key),
            members=tuple(sorted(pod.metadata.uid for pod in pending)),
            minimum=len(pending) + len(running) if minimum is None else minimum,
            running=len(running),
            running_on=tuple(sorted({pod.spec.node_name for pod in running if pod.spec.node_name})),
            topology_key=topology_key,
            priority=max(pod.spec.priority or 0 for pod in pending) if priority is None else priority,
            created=min((at for pod in pending if (at := pod.metadata.creation_timestamp)), default=None),
            paused_until=self.paused_until.get(str(key)),
            error=_missing_object(key) if policy is None and key.source in _SCHEDULER_SOURCES else "",
        )

    def _policy_of(self, key: GangKey) -> GangPolicy | None:
        """What the gang's object says; None where there is no such object, or no object is needed."""
        match key.source:
            case GangSource.WORKLOAD:
                return _policy_of_workload(self._workloads.get((key.namespace, key.name)), key.group)
            case GangSource.COSCHEDULING:
                return self._policies.get(key, GangPolicy(None))
            case _:
                return self._policies.get(key)


def _object_key(obj: GangObject) -> _PodKey:
    return (obj.metadata.namespace, obj.metadata.name)


def _gang_key(group: SchedulingPodGroup | CoschedulingPodGroup) -> GangKey:
    source = GangSource.POD_GROUP if isinstance(group, SchedulingPodGroup) else GangSource.COSCHEDULING
    return GangKey(source, *_object_key(group))


#: The scheduler holds back pods of these as long as their object is missing.
_SCHEDULER_SOURCES = (GangSource.WORKLOAD, GangSource.POD_GROUP)


def _missing_object(key: GangKey) -> str:
    return f"{key} does not exist"


def _policy_of_workload(workload: GroupedWorkload | None, group: str) -> GangPolicy | None:
    name = group.partition("/")[0]
    if workload is None:
        return None
    own = next((own for own in workload.spec.pod_groups if own.name == name), None)
    if own is None:
        return None
    topology = workload.metadata.annotations.get(labels.GANG_TOPOLOGY, "")
    return GangPolicy(own.policy.gang.min_count if own.policy.gang is not None else None, topology)


def _policy_of_pod_group(group: SchedulingPodGroup) -> GangPolicy:
    spec = group.spec
    constraints = spec.scheduling_constraints.topology if spec.scheduling_constraints is not None else ()
    annotated = group.metadata.annotations.get(labels.GANG_TOPOLOGY, "")
    gang = spec.scheduling_policy.gang
    if gang is None:
        return GangPolicy(None)
    return GangPolicy(gang.min_count, next((each.key for each in constraints), annotated), spec.priority)


def _waits_for_others(pod: Pod) -> bool:
    """Whether the pod waits without a mark of the scheduler that it cannot be scheduled."""
    return (
        not pod.spec.node_name
        and pods.is_active(pod)
        and not pod.spec.scheduling_gates
        and not pods.is_unschedulable(pod)
    )


def _has_place(pod: Pod) -> bool:
    """Whether the pod runs on a node, or has done its work there."""
    return pod.status.phase == "Succeeded" or (bool(pod.spec.node_name) and pods.is_active(pod))
