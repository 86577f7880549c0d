"""Synthetic workloads with realistic proportions, generated from a seed.

Services are many and mostly small: sizes follow Zipf's law with exponent 1 between 2 and 40 replicas. Requests come from six
classes, of which the small ones are common. Half of the services spread over zones; some require an architecture or a
capacity type. The proportions agree with published studies of large clusters, the recipe itself is invented: label results
"synthetic". DaemonSets have the requests of the agents of one real company.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from karpenter.api.apps import DaemonSet, DaemonSetSpec, Deployment, ReplicatedSpec
from karpenter.api.core import Container, PodSpec, PodTemplateSpec, ResourceRequirements
from karpenter.api.meta import LabelSelector, ObjectMeta
from karpenter.api.scheduling_constraints import Toleration, TopologySpreadConstraint
from karpenter.model import labels

NAMESPACE = "default"
SYSTEM_NAMESPACE = "kube-system"
MIN_REPLICAS = 2
MAX_REPLICAS = 40


@dataclass(frozen=True, slots=True)
class RequestSize:
    """The requests of one pod, and their weight (weights add up to 100)."""

    cpu: str
    memory: str
    weight: int


REQUEST_SIZES = (
    RequestSize("100m", "128Mi", 25),
    RequestSize("250m", "512Mi", 25),
    RequestSize("500m", "1Gi", 20),
    RequestSize("1", "2Gi", 15),
    RequestSize("2", "8Gi", 10),
    RequestSize("4", "16Gi", 5),
)

#: Node selectors services come with, and how many of a hundred do.
NODE_SELECTORS: tuple[tuple[dict[str, str], int], ...] = (
    ({}, 76),
    ({labels.ARCH: "amd64"}, 12),
    ({labels.ARCH: "arm64"}, 5),
    ({labels.CAPACITY_TYPE: labels.ON_DEMAND}, 7),
)

_SERVICE_NAMES = (
    "api",
    "auth",
    "billing",
    "cart",
    "catalog",
    "checkout",
    "feed",
    "gateway",
    "ledger",
    "mail",
    "media",
    "orders",
)

#: DaemonSet, container, millicores, MiB.
_AGENTS = (
    ("kube-proxy", "kube-proxy", 50, 200),
    ("flannel", "kube-flannel", 25, 100),
    ("flannel", "tc", 1, 25),
    ("coredns-local", "unbound", 100, 50),
    ("coredns-local", "unbound-telemetry", 10, 45),
    ("coredns-local", "coredns", 50, 100),
    ("node-monitor", "cadvisor", 150, 150),
    ("node-monitor", "node-exporter", 20, 75),
    ("node-monitor", "journald-reader", 1, 30),
    ("kubenurse", "kubenurse", 40, 100),
    ("ebs-csi-node", "ebs-plugin", 10, 40),
    ("ebs-csi-node", "node-driver-registrar", 10, 40),
    ("ebs-csi-node", "liveness-probe", 10, 40),
    ("kube2iam", "kube2iam", 25, 100),
)


def microservices(seed: int, pod_count: int) -> tuple[Deployment, ...]:
    """Services with ``pod_count`` replicas together. Raises ``ValueError`` for a negative count."""
    if pod_count < 0:
        raise ValueError(f"the number of pods must not be negative, not {pod_count}")
    dice = random.Random(f"microservices {seed}")
    services: list[Deployment] = []
    left = pod_count
    while left > 0:
        replicas = min(left, _replicas(dice))
        services.append(_service_deployment(dice, len(services), replicas))
        left -= replicas
    return tuple(services)


def _replicas(dice: random.Random) -> int:
    sizes = range(MIN_REPLICAS, MAX_REPLICAS + 1)
    return dice.choices(sizes, [1 / size for size in sizes])[0]


def _service_deployment(dice: random.Random, number: int, replicas: int) -> Deployment:
    name = f"{_SERVICE_NAMES[number % len(_SERVICE_NAMES)]}-{number}"
    wanted = dice.choices(REQUEST_SIZES, [each.weight for each in REQUEST_SIZES])[0]
    selector = dice.choices([each for each, _ in NODE_SELECTORS], [weight for _, weight in NODE_SELECTORS])[0]
    own = LabelSelector(match_labels={"app": name})
    container = _container("main", wanted.cpu, wanted.memory)
    spread = (_zone_spread(own),) if dice.random() < 0.5 else ()
    spec = PodSpec(containers=(container,), node_selector=selector, topology_spread_constraints=spread)
    template = PodTemplateSpec(metadata=ObjectMeta(labels={"app": name}), spec=spec)
    return Deployment(
        metadata=ObjectMeta(name=name, namespace=NAMESPACE, labels={"app": name}),
        spec=ReplicatedSpec(replicas=replicas, selector=own, template=template),
    )


def _container(name: str, cpu: str, memory: str) -> Container:
    return Container(name=name, resources=ResourceRequirements(requests={"cpu": cpu, "memory": memory}))


def _zone_spread(selector: LabelSelector) -> TopologySpreadConstraint:
    return TopologySpreadConstraint(
        max_skew=1, topology_key=labels.ZONE, when_unsatisfiable="DoNotSchedule", label_selector=selector
    )


def daemon_sets() -> tuple[DaemonSet, ...]:
    """The agents that run on every node, some 0.5 vCPU and 1.1 GiB together."""
    return tuple(_agent_daemon_set(name) for name in dict.fromkeys(name for name, *_ in _AGENTS))


def _agent_daemon_set(name: str) -> DaemonSet:
    own_agents = (agent for agent in _AGENTS if agent[0] == name)
    containers = tuple(_container(container, f"{cpu}m", f"{memory}Mi") for _, container, cpu, memory in own_agents)
    spec = PodSpec(
        containers=containers,
        tolerations=(Toleration(operator="Exists", effect="NoSchedule"),),
        priority_class_name="system-node-critical",
    )
    own = {"k8s-app": name}
    template = PodTemplateSpec(metadata=ObjectMeta(labels=own), spec=spec)
    return DaemonSet(
        metadata=ObjectMeta(name=name, namespace=SYSTEM_NAMESPACE, labels=own),
        spec=DaemonSetSpec(selector=LabelSelector(match_labels=own), template=template),
    )
