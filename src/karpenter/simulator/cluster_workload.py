"""The pods of a cluster, or of manifests, as a workload: each workload controller keeps its size, or follows a pattern.

Pods keep their requests, node selectors, required node affinity and tolerations. Volumes, rules about other pods, and the nodes
they are on are left out: the study begins with all of them pending.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

import msgspec

from karpenter.api.core import Pod, PodSpec
from karpenter.api.scheduling_constraints import Affinity, NodeAffinity
from karpenter.model import pods
from karpenter.model import resources as res
from karpenter.model.quantity import QuantityError
from karpenter.simulator.load_generators import DAY, DailyWave, OfficeHours
from karpenter.simulator.workload import PodLife, Workload, WorkloadError, WorkloadPodTemplate, ordered_workload

_OTHER_CHARACTERS = re.compile(r"[^a-z0-9]+")
_LONGEST_NAME = 32


class LoadPattern(StrEnum):
    """How the number of pods of each workload changes over time."""

    STEADY = "steady"
    DAILY = "daily"
    OFFICE = "office"


def cluster_workload(cluster_pods: Iterable[Pod], pattern: LoadPattern, seed: int, days: float) -> Workload:
    """The workload. Raises ``WorkloadError`` if there is no pod, or one whose requests do not parse."""
    duration = max(1, round(days * DAY))
    groups: defaultdict[tuple[str, str], list[Pod]] = defaultdict(list)
    for pod in cluster_pods:
        if not (pods.is_daemonset_pod(pod) or pods.is_mirror_pod(pod) or pods.is_finished(pod)):
            groups[pod.metadata.namespace, pods.workload_id(pod) or pod.metadata.name].append(pod)
    if not groups:
        raise WorkloadError(
            "there are no pods to simulate: give --trace, --scenario, or manifests with pods or workloads"
        )
    lives: list[PodLife] = []
    for number, key in enumerate(sorted(groups)):
        alike = sorted(groups[key], key=lambda pod: pod.metadata.name)
        lives += _lives(f"{_readable(alike[0])}-{number}", alike, pattern, (seed, duration))
    return ordered_workload("cluster", lives, duration)


def _lives(name: str, alike: Sequence[Pod], pattern: LoadPattern, seed_and_duration: tuple[int, int]) -> list[PodLife]:
    templates = [_template(name, pod) for pod in alike]
    if pattern is LoadPattern.STEADY or len(alike) == 1:
        return [PodLife(f"{name}-{number}", template, 0) for number, template in enumerate(templates)]
    generator = (
        DailyWave(name=name, replicas=len(alike))
        if pattern is LoadPattern.DAILY
        else OfficeHours(name=name, replicas=len(alike), outside=1)
    )
    return [replace(life, template=templates[0]) for life in generator.pods(*seed_and_duration)]


def _readable(pod: Pod) -> str:
    owner = pods.controller_of(pod.metadata)
    text = owner.name if owner is not None else pod.metadata.name
    return _OTHER_CHARACTERS.sub("-", text.lower())[:_LONGEST_NAME].strip("-") or "pods"


def _template(name: str, pod: Pod) -> WorkloadPodTemplate:
    try:
        requests = pods.pod_requests(pod)
    except QuantityError as error:
        raise WorkloadError(f"pod {pod.metadata.namespace}/{pod.metadata.name}: {error}") from None
    requests.pop(res.PODS, None)
    return WorkloadPodTemplate(name, _wire(requests), _spec(pod.spec))


def _wire(requests: Mapping[str, int]) -> Mapping[str, str]:
    return {key: str(value) for key, value in res.resources_to_wire(requests).items() if requests[key]}


def _spec(spec: PodSpec) -> PodSpec:
    """What decides which nodes a pod may use."""
    own = PodSpec(node_selector=spec.node_selector, tolerations=spec.tolerations)
    required = spec.affinity.node_affinity if spec.affinity is not None else None
    if required is None or required.required is None:
        return own
    return msgspec.structs.replace(own, affinity=Affinity(node_affinity=NodeAffinity(required=required.required)))
