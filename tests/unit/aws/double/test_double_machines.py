"""From a fleet to a Node and back: the stand-in for what runs on machines, against an API server in memory."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from karpenter.api.core import Container, Node, Pod, PodSpec
from karpenter.api.kinds import NODE, POD
from karpenter.api.meta import ObjectMeta
from karpenter.kube.errors import NotFound
from karpenter.model import conditions as states
from karpenter.model.clock import SystemClock
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.aws.double import Double
from support.aws.machines import Home, MachineRoom, Pace, Remote, Source
from support.aws.seeds import Seeds, fleet, template

CA = base64.b64encode(b"certificate").decode()
HOME = Home("test", "https://api.example", CA)
_PATIENCE_SECONDS = 20.0


def user_data(cluster: str = "test", endpoint: str = "https://api.example", certificate: str = CA) -> bytes:
    return f"""\
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="//"

--//
Content-Type: application/node.eks.aws

apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  cluster: {{name: {cluster}, apiServerEndpoint: '{endpoint}', certificateAuthority: {certificate}, cidr: 10.100.0.0/16}}
  kubelet:
    config:
      maxPods: 17
      registerWithTaints: [{{key: karpenter.sh/unregistered, effect: NoExecute}}]
    flags: ['--node-labels="team=a"']
--//--
""".encode()


@pytest.fixture
def kube() -> MemoryKube:
    return MemoryKube(MemoryServer(SystemClock()))


@pytest.fixture
async def room(aws: Double, kube: MemoryKube) -> AsyncIterator[MachineRoom]:
    room = MachineRoom(kube, aws.control, HOME, Pace(look=0.02))
    task = asyncio.create_task(room.run())
    yield room
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _buy(ec2: Any, seeds: Seeds, data: bytes) -> str:
    """Id of a machine with that user data."""
    ec2.create_launch_template(LaunchTemplateName="booting", LaunchTemplateData=template(seeds, data))
    request = fleet(seeds, ["m5.large"])
    request["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"]["LaunchTemplateName"] = "booting"
    return str(ec2.create_fleet(**request)["Instances"][0]["InstanceIds"][0])


async def _until(holds: Callable[[], Any]) -> Any:
    """What ``holds`` answers once it is something; async questions are awaited."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            until = holds()
            if asyncio.iscoroutine(until):
                until = await until
            if until:
                return until
            await asyncio.sleep(0.01)


async def _ready_node(kube: MemoryKube) -> Node | None:
    nodes = (await kube.list(NODE)).items
    return next((node for node in nodes if _is_ready(node)), None)


def _is_ready(node: Node) -> bool:
    condition = states.find_condition(node.status.conditions, "Ready")
    return condition is not None and condition.status == "True"


async def test_an_instance_becomes_a_ready_node(ec2: Any, seeds: Seeds, kube: MemoryKube, room: MachineRoom) -> None:
    """AWS-980."""
    name = await asyncio.to_thread(_buy, ec2, seeds, user_data())
    node = await _until(lambda: _ready_node(kube))
    assert node.spec.provider_id == f"aws:///us-west-2a/{name}"
    assert {"team": "a", "node.kubernetes.io/instance-type": "m5.large"}.items() <= node.metadata.labels.items()
    assert node.metadata.labels["topology.k8s.aws/zone-id"] == "usw2-az2"
    assert "karpenter.sh/unregistered" in {taint.key for taint in node.spec.taints}
    assert (node.status.capacity["cpu"], node.status.capacity["pods"]) == ("2", "17")
    await _until(lambda: _taints_are(kube, {"karpenter.sh/unregistered"}))


async def _taints_are(kube: MemoryKube, keys: set[str]) -> bool:
    nodes = (await kube.list(NODE)).items
    return all({taint.key for taint in node.spec.taints} == keys for node in nodes)


async def test_a_node_waits_until_the_instance_runs(
    aws: Double, ec2: Any, seeds: Seeds, kube: MemoryKube, room: MachineRoom
) -> None:
    """AWS-980."""
    aws.control.set_timing(pending=3600)
    name = await asyncio.to_thread(_buy, ec2, seeds, user_data())
    before = room.looks
    await _until(lambda: room.looks > before + 2)
    assert (await kube.list(NODE)).items == ()
    aws.control.set_timing()
    node = await _until(lambda: _ready_node(kube))
    assert node.spec.provider_id.endswith(name)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (user_data(cluster="other"), "no cluster other here"),
        (user_data(endpoint="https://elsewhere.example"), "nobody answers"),
        (user_data(certificate="Y2E="), "unknown authority"),
        (b"garbage", "no config in user data"),
    ],
    ids=["cluster", "endpoint", "certificate", "garbage"],
)
async def test_an_instance_that_was_told_wrong_never_joins(
    ec2: Any, seeds: Seeds, kube: MemoryKube, room: MachineRoom, data: bytes, words: str
) -> None:
    name = await asyncio.to_thread(_buy, ec2, seeds, data)
    await _until(lambda: name in room.failures)
    assert words in room.failures[name]
    assert (await kube.list(NODE)).items == ()


async def test_pods_run_on_the_instance_and_go_with_it(
    aws: Double, ec2: Any, seeds: Seeds, kube: MemoryKube, room: MachineRoom
) -> None:
    """AWS-974, AWS-980."""
    aws.control.set_timing(shutting_down=3600)
    name = await asyncio.to_thread(_buy, ec2, seeds, user_data())
    node = await _until(lambda: _ready_node(kube))
    pod = Pod(
        metadata=ObjectMeta(name="web", namespace="default"),
        spec=PodSpec(node_name=node.metadata.name, containers=(Container(name="web"),)),
    )
    await kube.create(POD, pod)
    await _until(lambda: _phase_is(kube, "Running"))
    await asyncio.to_thread(ec2.terminate_instances, InstanceIds=[name])
    await _until(lambda: _is_unready(kube, node.metadata.name))
    aws.control.set_timing(shutting_down=0)
    await _until(lambda: _are_gone(kube))


async def _phase_is(kube: MemoryKube, phase: str) -> bool:
    return (await kube.get(POD, "web", "default")).status.phase == phase


async def _is_unready(kube: MemoryKube, name: str) -> bool:
    return not _is_ready(await kube.get(NODE, name))


async def _are_gone(kube: MemoryKube) -> bool:
    return not (await kube.list(NODE)).items and not (await kube.list(POD)).items


async def test_a_deleted_pod_is_gone(ec2: Any, seeds: Seeds, kube: MemoryKube, room: MachineRoom) -> None:
    await asyncio.to_thread(_buy, ec2, seeds, user_data())
    node = await _until(lambda: _ready_node(kube))
    pod = Pod(
        metadata=ObjectMeta(name="web", namespace="default"),
        spec=PodSpec(node_name=node.metadata.name, containers=(Container(name="web"),)),
    )
    await kube.create(POD, pod)
    await _until(lambda: _phase_is(kube, "Running"))
    await kube.delete(POD, "web", "default")
    await _until(lambda: _is_missing(kube))


async def _is_missing(kube: MemoryKube) -> bool:
    try:
        await kube.get(POD, "web", "default")
    except NotFound:
        return True
    return False


async def test_a_silent_kubelet_leaves_its_node_unknown(
    ec2: Any, seeds: Seeds, kube: MemoryKube, room: MachineRoom
) -> None:
    await asyncio.to_thread(_buy, ec2, seeds, user_data())
    node = await _until(lambda: _ready_node(kube))
    room.silence(node.metadata.name)
    await _until(lambda: _is_unready(kube, node.metadata.name))


async def test_the_double_may_be_in_another_process(aws: Double, ec2: Any, seeds: Seeds, kube: MemoryKube) -> None:
    source: Source = Remote(aws.url)
    actual = MachineRoom(kube, source, HOME, Pace(look=0.02))
    task = asyncio.create_task(actual.run())
    try:
        await asyncio.to_thread(_buy, ec2, seeds, user_data())
        assert await _until(lambda: _ready_node(kube))
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
