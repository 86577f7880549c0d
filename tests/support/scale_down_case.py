"""Thirty Deployments on a few large nodes, scaled down from 510 pods to 240: prices and nodes are EC2's.

Every Deployment has pods of a size of its own; 9 of its 17 go, drawn by a seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from karpenter.api.core import Pod
from karpenter.api.karpenter import Budget, NodePool
from karpenter.instancetypes import ec2_packaged_types
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.model import labels, pods
from karpenter.model import resources as res
from karpenter.scheduling.offerings.nodepool_templates import usable_templates
from support.applied_commands import DisruptedCluster, with_budget
from support.builders import node_pool, owner, pod, wanted

#: What pods of the Deployments ask for: milli-CPU and MiB.
SIZES = tuple((cpu, memory) for cpu in (100, 250, 500, 1000, 1500) for memory in (100, 256, 512, 1024, 2048, 4096))
#: Pods of each Deployment.
BEFORE, AFTER = 17, 8
_TYPES = ec2_packaged_types.packaged_instance_types()
INDEX = TypeIndex(_TYPES, well_known_labels_of(_TYPES))
#: What nodes are launched.
PLAIN = (
    wanted(labels.CAPACITY_TYPE, "In", "on-demand"),
    wanted(labels.ARCH, "In", "amd64"),
    wanted("karpenter.k8s.aws/instance-category", "In", "c", "m", "r"),
)
OF_ANY_SIZE = (*PLAIN, wanted("karpenter.k8s.aws/instance-generation", "Gt", "4"))


class OnEc2(DisruptedCluster):
    """A cluster of EC2 nodes."""

    def __init__(self, *objects: object) -> None:
        super().__init__(*objects, types=_TYPES, index=INDEX)


def pool(nodes: str = "100%") -> NodePool:
    """The only one; it launches nodes of any size, and so many of its nodes may go at once."""
    return with_budget(node_pool("np", OF_ANY_SIZE), Budget(nodes=nodes))


def scaled_down(seed: int) -> OnEc2:
    """The cluster when the pods are gone."""
    cluster = OnEc2(pool())
    apps = [replicas(at, BEFORE, f"{cpu}m", f"{memory}Mi") for at, (cpu, memory) in enumerate(SIZES)]
    cluster.batch(apps)
    draw = random.Random(seed)
    cluster.delete_pods(listed_pod.metadata.uid for app in apps for listed_pod in draw.sample(app, BEFORE - AFTER))
    return cluster


def replicas(app: int, count: int, cpu: str, memory: str) -> list[Pod]:
    """Waiting pods of one Deployment."""
    meta = {"labels": {"app": f"a{app}"}, "owner_references": (owner("ReplicaSet", f"rs{app}"),)}
    return [pod(f"a{app}-{n}", {"cpu": cpu, "memory": memory}, meta=meta) for n in range(count)]


def least_price(pool_in_use: NodePool, running: Iterable[Pod]) -> float:
    """USD per hour below which no nodes of the pool hold the pods: CPU against memory in every proportion."""
    (template,), _ = usable_templates(
        (pool_in_use,), {pool_in_use.metadata.name: INDEX}, (), min_values=True, cpu_surplus=True
    )
    prices = INDEX.prices(template.requirements)
    need = res.add(*(pods.pod_requests(listed_pod) for listed_pod in running))
    offered = [
        (prices.cheapest_offering[at].price_per_hour, kind.allocatable)
        for at, kind in enumerate(INDEX.types)
        if (template.types & prices.available_types) >> at & 1
    ]
    best = 0.0
    for part in range(1001):
        cpu, memory = part / 1000, (1 - part / 1000) / (4 * 2**30)
        weights = [price / (cpu * kind[res.CPU] + memory * kind[res.MEMORY]) for price, kind in offered]
        best = max(best, min(weights) * (cpu * need[res.CPU] + memory * need[res.MEMORY]))
    return best
