"""The pods of a cluster, or of manifests, as a workload: each workload controller keeps its size, or follows a pattern.

Pods keep all that says where they may run: requests, node selectors, affinities, spread constraints, tolerations, host ports and
priority, and the places of the volumes that they have now. They keep labels, annotations and the controller that they are of,
too. Left out are the number of volumes that a node takes, device claims, gangs, and scheduling gates. Pods of Jobs stay as those
of services do. All pods are of the default scheduler.

Where the nodes are known, pods run on theirs when the study begins. Such a study begins on a Monday at 8:05: then the daily wave
is at its mean and office hours have begun, so the patterns go on from the pods that are there. Otherwise a study begins at
midnight with all pods pending.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from heapq import heappop, heappush

import msgspec

from karpenter.api.core import Container, ContainerPort, Pod, PodSpec
from karpenter.api.meta import OwnerReference
from karpenter.api.scheduling_constraints import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
)
from karpenter.model import pods
from karpenter.model import resources as res
from karpenter.model.pod_defaults import SYSTEM_PRIORITIES
from karpenter.model.quantity import QuantityError
from karpenter.model.requirements import Requirements, requirements_to_wire
from karpenter.simulator.load_generators import DAY, STEP, DailyWave, OfficeHours
from karpenter.simulator.starting_objects import labels_without_kwok
from karpenter.simulator.workload import (
    MONDAY,
    PodLife,
    RunningPod,
    Workload,
    WorkloadError,
    WorkloadPodTemplate,
    ordered_workload,
)
from karpenter.state.host_ports import host_ports_of
from karpenter.state.pod_volumes import ClusterVolumes

_OTHER_CHARACTERS = re.compile(r"[^a-z0-9]+")
_LONGEST_NAME = 32
#: When a study begins that has nodes from the start, in seconds since Monday, midnight.
_BEGIN_SECONDS = 8 * 3600 + STEP
BEGIN_WITH_NODES = MONDAY + timedelta(seconds=_BEGIN_SECONDS)


class LoadPattern(StrEnum):
    """How the number of pods of each workload changes over time."""

    STEADY = "steady"
    DAILY = "daily"
    OFFICE = "office"


@dataclass(frozen=True)
class ClusterPods:
    """Pods of a cluster or of manifests, and the volumes that say where they may run.

    ``running``: where pods run, by namespace and name; None for a study that begins without nodes.
    """

    pods: tuple[Pod, ...]
    volumes: ClusterVolumes = field(default_factory=ClusterVolumes)
    running: Mapping[tuple[str, str], RunningPod] | None = None


@dataclass(frozen=True, slots=True)
class _Replica:
    """One of the pods that a workload has now, and where it runs; None for one that has no node."""

    template: WorkloadPodTemplate
    running: RunningPod | None


def cluster_workload(found: ClusterPods, pattern: LoadPattern, seed: int, days: float) -> Workload:
    """The workload. Raises ``WorkloadError`` if there is no pod, or one whose requests do not parse."""
    duration = max(1, round(days * DAY))
    groups: defaultdict[tuple[str, str], list[Pod]] = defaultdict(list)
    for pod in found.pods:
        if pods.is_active(pod) and not (pods.is_daemonset_pod(pod) or pods.is_mirror_pod(pod)):
            groups[pod.metadata.namespace, pods.workload_id(pod) or pod.metadata.name].append(pod)
    if not groups:
        raise WorkloadError(
            "there are no pods to simulate: give --trace, --scenario, or manifests with pods or workloads"
        )
    lives: list[PodLife] = []
    for number, key in enumerate(sorted(groups)):
        replicas = sorted(groups[key], key=lambda pod: pod.metadata.name)
        name = f"{_name_prefix(replicas[0])}-{number}"
        present = [_replica(name, pod, found) for pod in replicas]
        if pattern is LoadPattern.STEADY or len(present) == 1:
            lives += _steady_lives(name, present)
        elif found.running is None:
            lives += [life for life, _ in _placed_lives(name, present, pattern, seed, duration)]
        else:
            placed = _placed_lives(name, present, pattern, seed, _BEGIN_SECONDS + duration)
            lives += _lives_after_start(name, present, placed)
    workload = ordered_workload("cluster", lives, duration)
    return workload if found.running is None else replace(workload, begins=BEGIN_WITH_NODES)


def _replica(name: str, pod: Pod, found: ClusterPods) -> _Replica:
    running = (found.running or {}).get((pod.metadata.namespace, pod.metadata.name))
    return _Replica(_template(name, pod, found.volumes), running)


def _steady_lives(name: str, present: Sequence[_Replica]) -> Iterator[PodLife]:
    """Each replica stays for the whole study."""
    for number, replica in enumerate(present):
        yield PodLife(f"{name}-{number}", replica.template, 0, running=replica.running)


def _placed_lives(
    name: str, present: Sequence[_Replica], pattern: LoadPattern, seed: int, duration_seconds: int
) -> list[tuple[PodLife, int]]:
    """The pods of a pattern from midnight on, each with the number of the replica that it is."""
    generator = (
        DailyWave(name=name, replicas=len(present))
        if pattern is LoadPattern.DAILY
        else OfficeHours(name=name, replicas=len(present), outside=1)
    )
    lives = sorted(generator.pods(seed, duration_seconds), key=lambda life: (life.arrives_at_seconds, life.name))
    return [
        (replace(life, template=present[place % len(present)].template), place)
        for life, place in zip(lives, _places(lives), strict=True)
    ]


def _lives_after_start(
    name: str, present: Sequence[_Replica], placed: Iterable[tuple[PodLife, int]]
) -> Iterator[PodLife]:
    """The pods of a pattern for a study that begins in the morning with just the replicas that are there.

    From the next step on the pattern counts: pods that it has beyond the replicas arrive then, replicas that it lacks leave.
    """
    missing = dict(enumerate(present))
    for life, place in placed:
        arrives = life.arrives_at_seconds - _BEGIN_SECONDS
        leaves = None if life.leaves_at_seconds is None else life.leaves_at_seconds - _BEGIN_SECONDS
        if leaves is not None and leaves <= 0:
            continue
        if arrives <= 0 and place in missing:
            running = missing.pop(place).running
            yield replace(life, arrives_at_seconds=0, leaves_at_seconds=leaves, running=running)
        elif leaves is None or leaves > STEP:
            yield replace(life, arrives_at_seconds=arrives if arrives > 0 else STEP, leaves_at_seconds=leaves)
    for number, replica in missing.items():
        yield PodLife(f"{name}-now-{number}", replica.template, 0, STEP, running=replica.running)


def _places(lives: Sequence[PodLife]) -> Iterator[int]:
    """Which replica each pod is, in the order of arrival: the first that is not there, as in a StatefulSet."""
    missing: list[int] = []
    leaving: list[tuple[int, int]] = []
    next_new = 0
    for life in lives:
        while leaving and leaving[0][0] <= life.arrives_at_seconds:
            heappush(missing, heappop(leaving)[1])
        place = heappop(missing) if missing else next_new
        next_new = max(next_new, place + 1)
        if life.leaves_at_seconds is not None:
            heappush(leaving, (life.leaves_at_seconds, place))
        yield place


def _name_prefix(pod: Pod) -> str:
    owner = pods.controller_of(pod.metadata)
    text = owner.name if owner is not None else pod.metadata.name
    return _OTHER_CHARACTERS.sub("-", text.lower())[:_LONGEST_NAME].strip("-") or "pods"


def _template(name: str, pod: Pod, volumes: ClusterVolumes) -> WorkloadPodTemplate:
    metadata = pod.metadata
    try:
        requests = pods.pod_requests(pod)
    except QuantityError as error:
        raise WorkloadError(f"pod {metadata.namespace}/{metadata.name}: {error}") from None
    requests.pop(res.PODS, None)
    return WorkloadPodTemplate(
        name,
        _wire(requests),
        _spec(pod.spec, volumes.resolve(pod).node_alternatives),
        annotations=labels_without_kwok(metadata.annotations),
        labels=labels_without_kwok(metadata.labels),
        namespace=metadata.namespace,
        owner=_owner_in_study(pods.controller_of(metadata)),
    )


def _owner_in_study(owner: OwnerReference | None) -> OwnerReference | None:
    """The controller under a uid that no object of the study has: uids of another simulated cluster are the same ones.

    The API server deletes pods once the object with the uid of their controller is gone.
    """
    return None if owner is None else msgspec.structs.replace(owner, uid=f"read/{owner.uid}")


def _wire(requests: Mapping[str, int]) -> Mapping[str, str]:
    return {key: str(value) for key, value in res.resources_to_wire(requests).items() if requests[key]}


def _spec(spec: PodSpec, places: Sequence[Requirements]) -> PodSpec:
    """What decides which nodes a pod may use. ``places``: of its volumes, any of them will do."""
    return PodSpec(
        node_selector=spec.node_selector,
        affinity=_at_one_of(spec.affinity, places),
        tolerations=spec.tolerations,
        topology_spread_constraints=spec.topology_spread_constraints,
        containers=(Container(ports=_host_ports(spec)),),
        os=spec.os,
        priority=spec.priority,
        priority_class_name=simulated_class_name(spec),
        termination_grace_period_seconds=spec.termination_grace_period_seconds,
    )


def simulated_class_name(spec: PodSpec) -> str:
    """The PriorityClass, if it is one that every API server has. Of others only the number counts, which pods have."""
    return spec.priority_class_name if spec.priority_class_name in SYSTEM_PRIORITIES else ""


def _host_ports(spec: PodSpec) -> tuple[ContainerPort, ...]:
    return tuple(
        ContainerPort(container_port=each.port, host_port=each.port, host_ip=each.ip, protocol=each.protocol)
        for each in host_ports_of(spec)
    )


def _at_one_of(affinity: Affinity | None, places: Sequence[Requirements]) -> Affinity | None:
    """The affinity of a pod that must also be at one of these places."""
    if not places:
        return affinity
    own = affinity or Affinity()
    node_affinity = own.node_affinity or NodeAffinity()
    required = node_affinity.required
    stated = (NodeSelectorTerm(),) if required is None else tuple(filter(_selects, required.node_selector_terms))
    terms = tuple(
        msgspec.structs.replace(term, match_expressions=(*term.match_expressions, *_expressions(place)))
        for term in stated
        for place in places
    )
    narrowed = NodeSelector(node_selector_terms=terms)
    return msgspec.structs.replace(own, node_affinity=msgspec.structs.replace(node_affinity, required=narrowed))


def _selects(term: NodeSelectorTerm) -> bool:
    """Whether a term selects any node; an empty one does not."""
    return bool(term.match_expressions or term.match_fields)


def _expressions(place: Requirements) -> tuple[NodeSelectorRequirement, ...]:
    return tuple(
        NodeSelectorRequirement(key=entry.key, operator=entry.operator, values=entry.values)
        for entry in requirements_to_wire(place)
    )
