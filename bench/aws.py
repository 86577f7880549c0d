"""The AWS provider on the double of AWS: startup, a refresh, a scale-up, an idle cluster, a minute of throttling.

Three processes: `karpenter run`, the double, and this one, which serves the API and simulates the nodes. There is no scheduler:
NodeClaims are made here, in five shapes. What the double recorded is what is counted.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

from bench.figures import Figure
from controlplane.harness import Json
from controlplane.process import Controller
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.metrics import Metrics
from karpenter.model import conditions
from karpenter.model.clock import SystemClock
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_metrics import SdkMetrics
from karpenter.providers.aws.aws_settings import AwsSettings
from karpenter.providers.aws.instancetype.instance_type_provider import InstanceTypeCaches, InstanceTypeProvider
from karpenter.providers.aws.sdk.aws_session import AwsSession
from support.aws.aws_cluster import CLUSTER, node_class, node_pool
from support.aws.clients import sdk_environment
from support.aws.memory_cluster import MemoryCluster, claim, memory_cluster
from support.aws.node_simulator import NodeTiming
from support.aws.remote_double import RemoteDouble, remote_double
from support.aws.seeds import seed
from support.aws.standalone_provider import standalone_provider

_STARTS = 3
_CLAIMS, _THROTTLED_CLAIMS = 500, 100
_LATENCY_SECONDS = 0.2
_THROTTLING_SECONDS = 60.0
_QUIET_SECONDS = 300.0
_DEADLINE_SECONDS = 1200.0
#: After the last tag is written: what was learned is stored, and windows of time end.
_SETTLING_SECONDS = 60.0
_SHAPES = (("1", "2Gi"), ("3", "6Gi"), ("7", "14Gi"), ("7", "50Gi"), ("14", "28Gi"))
#: Simulated nodes are polled rarely: there are many, and they are not what is measured.
_NODE_TIMING = NodeTiming(poll=2.0, heartbeat=20.0)


def figures() -> Iterator[Figure]:
    """All of it; each part has a double of its own."""
    for measure in (_starts, _refresh, _scale_up, _rest, _throttling):
        with remote_double() as aws:
            seed(aws, addresses=20)
            yield from asyncio.run(measure(aws))


class _Cluster(NamedTuple):
    """The measured cluster."""

    memory: MemoryCluster
    aws: RemoteDouble

    async def become_ready(self, running: Controller) -> None:
        """Wait until probes are answered and the class can be used."""
        await _until(lambda: asyncio.to_thread(running.is_ready), running)
        await _until(self._class_is_ready, running)

    async def _class_is_ready(self) -> bool:
        found: EC2NodeClass = await self.memory.kube.get(EC2_NODE_CLASS, "default")
        return conditions.is_true(found.status.conditions, "Ready")

    async def launch(self, count: int, running: Controller) -> float:
        """Seconds until so many new NodeClaims are launched."""
        began = time.monotonic()
        self.memory.load(*_wanted(count))

        async def are_launched() -> bool:
            return (
                sum(conditions.is_true(each.status.conditions, "Launched") for each in await self.memory.claims())
                == count
            )

        await _until(are_launched, running)
        return time.monotonic() - began


def _wanted(count: int) -> list[Json]:
    return [claim(f"{number:04d}", *_SHAPES[number % len(_SHAPES)]) for number in range(count)]


def _cluster(aws: RemoteDouble) -> AbstractAsyncContextManager[MemoryCluster]:
    return memory_cluster(aws, node_class(), node_pool("spot", ("spot",)), node_pool("steady", ("on-demand",)))


async def _until(condition: Callable[[], Coroutine[Any, Any, bool]], running: Controller) -> None:
    end = time.monotonic() + _DEADLINE_SECONDS
    while not await condition():
        if time.monotonic() > end or not running.is_running:
            raise TimeoutError(running.log[-3000:])
        await asyncio.sleep(0.1)


async def _starts(aws: RemoteDouble) -> list[Figure]:
    """The first start makes the answers of the double and writes bytecode, which the image has; what follows is measured."""
    seconds, resident, cpu = [], [], []
    async with _cluster(aws) as memory:
        aws.do("add_cluster", name=CLUSTER, endpoint=memory.url, certificate="Q0E=")
        for _ in range(_STARTS + 1):
            began = time.monotonic()
            async with memory.controller(PYTHONDONTWRITEBYTECODE="") as running:
                await _Cluster(memory, aws).become_ready(running)
                seconds.append(time.monotonic() - began)
                cpu.append(running.cpu_seconds)
                await asyncio.sleep(5)
                resident.append(running.resident_mb)
    note = "1386 types, 3 zones, 2 NodePools"
    return [
        Figure("aws: start to ready", median(seconds[1:]), "s", 5.0, note),
        Figure("aws: CPU until ready", median(cpu[1:]), "s", 2.5, note),
        Figure("aws: resident when ready", max(resident[1:]), "MB", 150.0, note),
    ]


async def _refresh(aws: RemoteDouble) -> list[Figure]:
    """Types, prices and offerings asked for, decoded and taken over, in this process."""
    account = AwsSession(SdkMetrics(Metrics()))
    services, clock = account.services, SystemClock()
    settings = AwsSettings(cluster_name=CLUSTER)
    provider = InstanceTypeProvider(
        services.ec2, services.pricing, settings, aws.region_name, clock, InstanceTypeCaches.empty(clock)
    )
    taken = []
    with patch.dict(os.environ, sdk_environment(aws)):
        await account.open()
        for _ in range(3):
            began = time.process_time()
            await provider.refresh_types()
            await provider.refresh_on_demand()
            await provider.refresh_spot()
            taken.append(time.process_time() - began)
    account.close()
    return [Figure("aws: CPU of a refresh of types, prices, offerings", min(taken), "s", 1.0)]


async def _scale_up(aws: RemoteDouble) -> list[Figure]:
    """Asked of the provider by itself, all at once: what decides is how it asks AWS, and not who asks it."""
    aws.do("add_cluster", name=CLUSTER, endpoint="https://nowhere", certificate="Q0E=")
    with patch.dict(os.environ, sdk_environment(aws)):
        async with standalone_provider(CLUSTER, node_class()) as alone:
            claims = await alone.claims(*_wanted(_CLAIMS))
            aws.do("set_latency", operation="*", seconds=_LATENCY_SECONDS)
            aws.do("limit_rates")
            aws.do("forget_calls")
            began = time.monotonic()
            launched = await asyncio.gather(*map(alone.cloud.provider.create, claims))
            seconds = time.monotonic() - began
            calls = Counter(str(call["operation"]) for call in aws.calls())
            await asyncio.gather(*(alone.cloud.provider.get(item.provider_id) for item in launched))
            looked = Counter(str(call["operation"]) for call in aws.calls())
    note = f"{_CLAIMS} claims of {len(_SHAPES)} shapes, 0.2 s a call, EC2's budgets"
    return [
        Figure("aws: claims answered", seconds, "s", 15.0, note),
        Figure("aws: CreateFleet calls for them", calls["CreateFleet"], "", 25.0, str(dict(calls))),
        Figure("aws: DescribeInstances calls to look at each", looked["DescribeInstances"], "", 25.0),
    ]


async def _rest(aws: RemoteDouble) -> list[Figure]:
    """Nothing happens on a cluster that has come to rest, with the intervals of an installation."""
    async with _cluster(aws) as memory, memory.simulated_nodes(aws, _NODE_TIMING):
        aws.do("add_cluster", name=CLUSTER, endpoint=memory.url, certificate="Q0E=")
        async with memory.controller(intervals={}) as running:
            cluster = _Cluster(memory, aws)
            await cluster.become_ready(running)
            aws.do("forget_calls")
            seconds = await cluster.launch(_CLAIMS, running)
            fleets = sum(call["operation"] == "CreateFleet" for call in aws.calls())
            await _until(lambda: _all_tagged(cluster), running)
            await asyncio.sleep(_SETTLING_SECONDS)
            aws.do("forget_calls")
            cpu = running.cpu_seconds
            await asyncio.sleep(_QUIET_SECONDS)
            used = (running.cpu_seconds - cpu) / _QUIET_SECONDS
            calls = Counter(str(call["operation"]) for call in aws.calls())
            resident = running.resident_mb
    note = ", ".join(f"{count} {name}" for name, count in calls.most_common())
    return [
        Figure(f"aws: {_CLAIMS} NodeClaims launched, whole controller", seconds, "s"),
        Figure("aws: CreateFleet calls for them, whole controller", fleets, "", 12.0, f"{len(_SHAPES)} shapes"),
        Figure(f"aws: calls a second at rest, {_CLAIMS} nodes", calls.total() / _QUIET_SECONDS, "", 0.3, note),
        Figure(f"aws: cores used at rest, {_CLAIMS} nodes", used, "core", 0.01, f"over {_QUIET_SECONDS:.0f} s"),
        Figure(f"aws: resident, {_CLAIMS} nodes", resident, "MB"),
    ]


async def _all_initialized(cluster: _Cluster) -> bool:
    claims = await cluster.memory.claims()
    return all(conditions.is_true(each.status.conditions, "Initialized") for each in claims)


async def _all_tagged(cluster: _Cluster) -> bool:
    """Tagging is the last call for an instance, one per second."""
    return all(each.metadata.annotations.get(aws_labels.TAGGED) == "true" for each in await cluster.memory.claims())


async def _throttling(aws: RemoteDouble) -> list[Figure]:
    """Half of all calls are throttled for a minute during launches."""
    async with _cluster(aws) as memory, memory.simulated_nodes(aws, _NODE_TIMING):
        aws.do("add_cluster", name=CLUSTER, endpoint=memory.url, certificate="Q0E=")
        async with memory.controller() as running:
            cluster = _Cluster(memory, aws)
            await cluster.become_ready(running)
            aws.do("throttle", seconds=_THROTTLING_SECONDS)
            seconds = await cluster.launch(_THROTTLED_CLAIMS, running)
            await asyncio.sleep(max(0.0, _THROTTLING_SECONDS - seconds))
            calm = time.monotonic()
            await _until(lambda: _all_initialized(cluster), running)
            recovered = max(0.0, seconds - _THROTTLING_SECONDS) + time.monotonic() - calm
            running_instances = len([each for each in aws.instances() if each["state"] == "running"])
    note = f"{_THROTTLED_CLAIMS} claims, answered after {seconds:.1f} s"
    return [
        Figure("aws: recovery after a minute of throttling", recovered, "s", 60.0, note),
        Figure("aws: instances per NodeClaim after it", running_instances / _THROTTLED_CLAIMS, "x", 1.0),
    ]
