"""Simulated DRA drivers of simulated instances."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from karpenter.api.kinds import NODE, RESOURCE_SLICE
from karpenter.providers.simulated import SimulatedProvider
from support.device_builders import gpus, slice_spec, with_devices
from support.simulated_provider_cluster import SMALL, ProviderCluster, run_in_virtual_time, types


def test_an_instance_publishes_the_devices_of_its_type_and_removes_them() -> None:
    """SCH-784: the Node has ResourceSlices in its own pools, which are deleted with the instance."""

    async def scenario(cluster: ProviderCluster) -> None:
        devices = slice_spec(*gpus(2))
        instance_types = tuple(with_devices(each, devices) for each in types())
        provider = SimulatedProvider(cluster.kube, cluster.clock, instance_types, cluster.faults)
        instance = await provider.create(await cluster.claim("one", {}, SMALL))
        name = instance.provider_id.removeprefix("kwok://")
        await until(lambda: has_node(cluster))
        (published,) = (await cluster.kube.list(RESOURCE_SLICE)).items
        assert (published.spec.node_name, published.spec.pool.name) == (name, f"{name}/node")
        assert [device.name for device in published.spec.devices] == ["gpu-0", "gpu-1"]
        await provider.delete(instance.provider_id)
        await until(lambda: has_no_slices(cluster))

    run_in_virtual_time(scenario)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(600):
        while not await condition():
            await asyncio.sleep(0.5)


async def has_node(cluster: ProviderCluster) -> bool:
    return bool((await cluster.kube.list(NODE)).items)


async def has_no_slices(cluster: ProviderCluster) -> bool:
    return not (await cluster.kube.list(RESOURCE_SLICE)).items
