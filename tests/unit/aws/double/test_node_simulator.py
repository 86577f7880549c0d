"""The node simulator with an API server in memory: from a fleet to a Node and back."""

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
from support.aws.node_simulator import ClusterAddress, InstanceSource, NodeSimulator, NodeTiming, RemoteInstances
from support.aws.seeds import Seeds, fleet, template

CA = base64.b64encode(b"certificate").decode()
CLUSTER = ClusterAddress("test", "https://api.example", CA)
_DEADLINE_SECONDS = 20.0


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
async def simulator(aws: Double, kube: MemoryKube) -> AsyncIterator[NodeSimulator]:
    simulator = NodeSimulator(kube, aws.control, CLUSTER, NodeTiming(poll=0.02))
    task = asyncio.create_task(simulator.run())
    yield simulator
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _launch(ec2: Any, seeds: Seeds, data: bytes) -> str:
    """Launch an instance with that user data; return its id."""
    ec2.create_launch_template(LaunchTemplateName="booting", LaunchTemplateData=template(seeds, data))
    request = fleet(seeds, ["m5.large"])
    request["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"]["LaunchTemplateName"] = "booting"
    return str(ec2.create_fleet(**request)["Instances"][0]["InstanceIds"][0])


async def _until(holds: Callable[[], Any]) -> Any:
    """Wait until ``holds`` returns something true; return it. Coroutines are awaited."""
    async with asyncio.timeout(_DEADLINE_SECONDS):
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


async def test_an_instance_becomes_a_ready_node(
    ec2: Any, seeds: Seeds, kube: MemoryKube, simulator: NodeSimulator
) -> None:
    """AWS-980."""
    name = await asyncio.to_thread(_launch, ec2, seeds, user_data())
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


async def test_a_node_is_registered_once_the_instance_runs(
    aws: Double, ec2: Any, seeds: Seeds, kube: MemoryKube, simulator: NodeSimulator
) -> None:
    """AWS-980."""
    aws.control.set_timing(pending=3600)
    name = await asyncio.to_thread(_launch, ec2, seeds, user_data())
    before = simulator.polls
    await _until(lambda: simulator.polls > before + 2)
    assert (await kube.list(NODE)).items == ()
    aws.control.set_timing()
    node = await _until(lambda: _ready_node(kube))
    assert node.spec.provider_id.endswith(name)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (user_data(cluster="other"), "unknown cluster other"),
        (user_data(endpoint="https://other.example"), "no connection"),
        (user_data(certificate="Y2E="), "unknown authority"),
        (b"garbage", "no config in user data"),
    ],
    ids=["cluster", "endpoint", "certificate", "garbage"],
)
async def test_an_instance_with_wrong_user_data_does_not_join(
    ec2: Any, seeds: Seeds, kube: MemoryKube, simulator: NodeSimulator, data: bytes, words: str
) -> None:
    name = await asyncio.to_thread(_launch, ec2, seeds, data)
    await _until(lambda: name in simulator.failures)
    assert words in simulator.failures[name]
    assert (await kube.list(NODE)).items == ()


async def test_pods_run_on_the_instance_and_are_removed_with_it(
    aws: Double, ec2: Any, seeds: Seeds, kube: MemoryKube, simulator: NodeSimulator
) -> None:
    """AWS-974, AWS-980."""
    aws.control.set_timing(shutting_down=3600)
    name = await asyncio.to_thread(_launch, ec2, seeds, user_data())
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


async def test_a_deleted_pod_is_removed(ec2: Any, seeds: Seeds, kube: MemoryKube, simulator: NodeSimulator) -> None:
    await asyncio.to_thread(_launch, ec2, seeds, user_data())
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


async def test_the_node_of_a_hung_kubelet_becomes_unknown(
    ec2: Any, seeds: Seeds, kube: MemoryKube, simulator: NodeSimulator
) -> None:
    await asyncio.to_thread(_launch, ec2, seeds, user_data())
    node = await _until(lambda: _ready_node(kube))
    simulator.hang_kubelet(node.metadata.name)
    await _until(lambda: _is_unready(kube, node.metadata.name))


async def test_the_double_can_run_in_another_process(aws: Double, ec2: Any, seeds: Seeds, kube: MemoryKube) -> None:
    source: InstanceSource = RemoteInstances(aws.url)
    actual = NodeSimulator(kube, source, CLUSTER, NodeTiming(poll=0.02))
    task = asyncio.create_task(actual.run())
    try:
        await asyncio.to_thread(_launch, ec2, seeds, user_data())
        assert await _until(lambda: _ready_node(kube))
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
