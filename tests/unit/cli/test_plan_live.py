"""Planning for a running cluster: what is read of it, and what one bad object does not break."""

from __future__ import annotations

from karpenter.cli.cluster_objects import FREEZE_KINDS
from karpenter.cli.cluster_reader import list_plan_objects
from karpenter.model.clock import SystemClock
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.manifest_builders import Json, pod, pool


def kube(*bodies: Json) -> MemoryKube:
    server = MemoryServer(SystemClock())
    server.load_objects(bodies)
    return MemoryKube(server)


async def test_what_a_plan_reads_is_listed_as_it_is() -> None:
    waiting = {**pod("a"), "metadata": {"name": "a", "namespace": "default"}}
    cluster_objects = await list_plan_objects(kube(pool(), waiting))
    assert cluster_objects.from_cluster
    assert [nodepool.metadata.name for nodepool in cluster_objects.pools] == ["default"]
    assert [(condition.metadata.name, condition.status.conditions) for condition in cluster_objects.pods] == [("a", ())]
    assert cluster_objects.problems == []


async def test_an_object_that_cannot_be_read_is_left_out_with_a_line() -> None:
    bad = {**pod("bad", priority="high"), "metadata": {"name": "bad", "namespace": "default"}}
    strange = pool("strange", limits={"cpu": "1e99"})
    cluster_objects = await list_plan_objects(kube(pool(), strange, bad))
    assert [nodepool.metadata.name for nodepool in cluster_objects.pools] == ["default"]
    assert cluster_objects.pods == []
    first, second = sorted(cluster_objects.problems)
    assert first.startswith("NodePool strange is left out: spec.limits.cpu: ")
    assert second.startswith("Pod default/bad is left out: ")


async def test_of_all_config_maps_only_the_freeze_is_read() -> None:
    maps: list[Json] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "kube-system"}, "data": {}}
        for name in ("karpenter-freeze", "coredns")
    ]
    cluster_objects = await list_plan_objects(kube(pool(), *maps), FREEZE_KINDS)
    assert [config_map.metadata.name for config_map in cluster_objects.config_maps] == ["karpenter-freeze"]
    assert (await list_plan_objects(kube(pool()), FREEZE_KINDS)).config_maps == []
