"""A running controller where the scheduler has default spread constraints (SCH §29)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from structlog.testing import capture_logs

from karpenter.api import kinds
from karpenter.api.apps import ReplicaSet, ReplicatedSpec
from karpenter.api.core import PodTemplateSpec
from karpenter.api.meta import ObjectMeta, OwnerReference
from karpenter.manager_process import log_default_spread
from karpenter.model import labels
from karpenter.scheduling.scheduler_config import SchedulerConfig
from karpenter.settings import Settings
from support.topology_builders import app_pods, of_app, spread_over
from support.virtual_cluster import VirtualCluster, in_virtual_time
from support.workload_selectors import service

ON = Settings(scheduler_config=SchedulerConfig((spread_over(labels.HOSTNAME, selector=None),)))
OF_WORKLOADS = {"services", "replicasets", "statefulsets", "replicationcontrollers"}


async def start_with_pool(cluster: VirtualCluster, settings: Settings) -> None:
    await cluster.node_class()
    await cluster.pool()
    await cluster.start(settings)


async def claims(cluster: VirtualCluster) -> list[Any]:
    await asyncio.sleep(5)
    return await cluster.all(kinds.NODE_CLAIM)


def test_a_line_at_the_start_names_the_default_constraints() -> None:
    """K15-049: and there is none without them."""
    with capture_logs() as lines:
        log_default_spread(Settings())
        log_default_spread(ON)
    (line,) = lines
    assert line["log_level"] == "info"
    assert labels.HOSTNAME in line["default-topology-spread-constraints"]


@in_virtual_time
async def test_pods_of_a_service_are_spread_while_it_is_there(cluster: VirtualCluster) -> None:
    """S-220"""
    await start_with_pool(cluster, ON)
    await cluster.kube.create(kinds.SERVICE, service("web", {"app": "web"}))
    await cluster.waiting(*app_pods(2, {"cpu": "100m"}))
    assert len(await claims(cluster)) == 2
    await cluster.kube.delete(kinds.SERVICE, "web", "default")
    await cluster.waiting(*app_pods(3, {"cpu": "100m"}, prefix="later"))
    assert len(await claims(cluster)) == 2


@in_virtual_time
async def test_pods_of_a_replica_set_are_spread(cluster: VirtualCluster) -> None:
    """S-220"""
    await start_with_pool(cluster, ON)
    made = await cluster.kube.create(
        kinds.REPLICA_SET,
        ReplicaSet(
            metadata=ObjectMeta(name="web", namespace="default"),
            spec=ReplicatedSpec(
                selector=of_app("web"), template=PodTemplateSpec(metadata=ObjectMeta(labels={"app": "web"}))
            ),
        ),
    )
    owner = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web", uid=made.metadata.uid, controller=True)
    for pod in app_pods(2, {"cpu": "100m"}):
        meta = msgspec.structs.replace(pod.metadata, owner_references=(owner,))
        await cluster.waiting(msgspec.structs.replace(pod, metadata=meta))
    assert len(await claims(cluster)) == 2


@in_virtual_time
async def test_services_and_owners_are_not_listed_without_default_constraints(cluster: VirtualCluster) -> None:
    asked = []
    cluster.server.raise_injected_fault = lambda verb, plural, name: asked.append(plural)
    await start_with_pool(cluster, Settings())
    # StatefulSets are watched for roll-outs in any case.
    assert ((OF_WORKLOADS - {"statefulsets"}) & set(asked), "pods" in asked) == (set(), True)
    await cluster.stop()
    await cluster.start(ON)
    assert set(asked) >= OF_WORKLOADS
