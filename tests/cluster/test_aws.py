"""Instances on EC2, end to end: the real control plane and scheduler, the controller's process, and a double of AWS.

The double keeps a record of every call; what the provider may ask of AWS, and how, is held against that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.harness import ControlPlane, Json
from karpenter.api import kinds
from karpenter.api.karpenter import NodeClaim
from karpenter.instancetypes import ec2_packaged_types
from karpenter.kube.client import KubeClient
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.providers.aws import iam_policies
from karpenter.providers.aws.iam_policies import ClusterLocation
from support.aws.aws_cluster import CLUSTER, AwsCluster, aws_cluster, node_class, node_pool
from support.aws.clients import client
from support.aws.interruption_queue import spot_interruption
from support.rollouts import settled

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

_SPOT_PODS, _ON_DEMAND_PODS = 40, 20
PODS = _SPOT_PODS + _ON_DEMAND_PODS
_DEADLINE_SECONDS = 150.0
_BUDGET = 0.5
#: What the instances' services are called in actions of policies, where it differs.
_ACTION_PREFIX = {"monitoring": "cloudwatch"}
#: Calls the test makes itself.
_OWN = frozenset(
    {"PutRule", "PutTargets", "PutEvents", "CreateQueue", "GetQueueAttributes", "SetQueueAttributes", "SendMessage"}
)
_NO_MINIMUM_AGE = {labels.MINIMUM_NODE_AGE: "0s"}
_DISRUPTION: Json = {"consolidateAfter": "1s", "budgets": [{"nodes": f"{_BUDGET:.0%}"}]}


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[AwsCluster]:
    with aws_cluster(plane) as ready:
        yield ready


def deployment(name: str, replicas: int, cpu: str, memory: str, capacity_type: str) -> Json:
    pod_labels = {"app": name}
    container = {"name": "app", "image": "pause", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
    spec: Json = {"nodeSelector": {labels.CAPACITY_TYPE: capacity_type}, "containers": [container]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": pod_labels},
            "template": {"metadata": {"labels": pod_labels}, "spec": spec},
        },
    }


def _cheapest(count: int) -> list[str]:
    """Types that give most processor for a dollar, among those the pools allow."""

    def dollars_per_core(name: str) -> float:
        instance_type = ec2_packaged_types.find_packaged_type(name)
        assert instance_type is not None
        spot = [
            offering.price_per_hour for offering in instance_type.offerings if offering.capacity_type == labels.SPOT
        ]
        return min(spot, default=9.9) / (instance_type.capacity[res.CPU] / res.ONE_UNIT)

    modern = [
        instance_type.name
        for instance_type in ec2_packaged_types.packaged_instance_types()
        if instance_type.requirements.requirement_for(labels.ARCH).allows("amd64")
        and any(
            instance_type.requirements.requirement_for(f"{labels.AWS_GROUP}/instance-category").allows(text)
            for text in "cmr"
        )
        and int(
            next(
                iter(instance_type.requirements.requirement_for(f"{labels.AWS_GROUP}/instance-generation").values), "0"
            )
        )
        > 4
    ]
    return sorted(modern, key=dollars_per_core)[:count]


async def _not_running(kube: KubeClient, wanted: int) -> str:
    pods = (await kube.list(kinds.POD, "default")).items
    running = sum(pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None for pod in pods)
    return "" if running == wanted else f"{running} of {len(pods)} pods are running"


async def _claims(kube: KubeClient) -> tuple[NodeClaim, ...]:
    return (await kube.list(kinds.NODE_CLAIM)).items


def _left_on_aws(cluster: AwsCluster) -> dict[str, int]:
    """What is still there, and would cost money or clutter."""
    templates = client(cluster.aws, "ec2").describe_launch_templates()["LaunchTemplates"]
    profiles = client(cluster.aws, "iam").list_instance_profiles()["InstanceProfiles"]
    own = [profile for profile in profiles if profile["Path"].startswith("/karpenter/")]
    alive = [instance for instance in cluster.aws.control.instances() if instance["state"] != "terminated"]
    return {"instances": len(alive), "launch templates": len(templates), "profiles": len(own)}


async def _left(kube: KubeClient, cluster: AwsCluster) -> str:
    counts = {
        "nodes": len((await kube.list(kinds.NODE)).items),
        "nodeclaims": len(await _claims(kube)),
        "classes": len((await kube.list(kinds.EC2_NODE_CLASS)).items),
        **await asyncio.to_thread(_left_on_aws, cluster),
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


async def test_from_pods_to_nodes_and_back_to_nothing(cluster: AwsCluster) -> None:
    """The whole life of a cluster on spot and on-demand instances.

    AWS-T960, AWS-T640, AWS-T562, AWS-T700, AWS-T701, AWS-T090
    """
    control = cluster.aws.control
    gone = _cheapest(10)
    for name in gone:
        for zone in cluster.seeds.subnets:
            control.set_pool(name, zone, "spot", 0)
            control.set_pool(name, zone, "on-demand", 0)
    cluster.plane.apply(
        node_class(amiSelectorTerms=[{"alias": "al2023@v20260801"}]),
        node_pool("spot", ("spot",), _NO_MINIMUM_AGE, disruption=_DISRUPTION),
        node_pool("steady", ("on-demand",), _NO_MINIMUM_AGE, disruption=_DISRUPTION),
        deployment("web", _SPOT_PODS, "500m", "1Gi", "spot"),
        deployment("db", _ON_DEMAND_PODS, "1", "2Gi", "on-demand"),
    )
    control.forget_calls()
    with cluster.controller() as running:
        async with cluster.plane.client() as kube, cluster.simulated_nodes(kube) as simulator:
            await settled(lambda: _not_running(kube, PODS), _DEADLINE_SECONDS)
            assert simulator.failures == {}
            await _launched_elsewhere(kube, gone)
            await _survives_an_interruption(kube, cluster)
            await _rolls_to_another_image(kube, cluster)
            await _goes_to_nothing(kube, cluster)
        assert not running.lines("controller failed")
    _check_calls(cluster)


async def _launched_elsewhere(kube: KubeClient, gone: list[str]) -> None:
    """What the cheapest types could not give came from others, of both capacity types."""
    launched = [claim for claim in await _claims(kube) if claim.status.provider_id]
    assert {claim.metadata.labels[labels.CAPACITY_TYPE] for claim in launched} == {"spot", "on-demand"}
    assert not {claim.metadata.labels[labels.INSTANCE_TYPE] for claim in launched} & set(gone)


async def _survives_an_interruption(kube: KubeClient, cluster: AwsCluster) -> None:
    launched = [claim for claim in await _claims(kube) if claim.status.provider_id]
    victim = next(claim for claim in launched if claim.metadata.labels[labels.CAPACITY_TYPE] == "spot")
    cluster.queue.publish(spot_interruption(victim.status.provider_id.rpartition("/")[2]))

    async def missing() -> str:
        if any(claim.metadata.name == victim.metadata.name for claim in await _claims(kube)):
            return f"claim {victim.metadata.name} is still there"
        return await _not_running(kube, PODS)

    await settled(missing, _DEADLINE_SECONDS)
    assert cluster.queue.remaining() == 0


async def _rolls_to_another_image(kube: KubeClient, cluster: AwsCluster) -> None:
    """AWS-T560: all instances change, never more at once than the budgets of the two pools allow."""
    before = {claim.metadata.name: claim.status.image_id for claim in await _claims(kube)}
    cluster.aws.control.release_images("2026-09-01")
    await asyncio.to_thread(cluster.plane.apply, node_class(amiSelectorTerms=[{"alias": "al2023@v20260901"}]))
    most: dict[str, int] = {}

    async def missing() -> str:
        claims = await _claims(kube)
        _watch_budget(claims, most)
        old = [claim.metadata.name for claim in claims if claim.metadata.name in before]
        return f"{len(old)} of {len(before)} instances have the old image" if old else await _not_running(kube, PODS)

    await settled(missing, 2 * _DEADLINE_SECONDS)
    after = {claim.status.image_id for claim in await _claims(kube)}
    assert after.isdisjoint(before.values())


def _watch_budget(claims: tuple[NodeClaim, ...], most: dict[str, int]) -> None:
    """No pool has more instances on their way out than its budget, rounded up, allows."""
    for pool in ("spot", "steady"):
        own = [claim for claim in claims if claim.metadata.labels[labels.NODE_POOL] == pool]
        going = sum(claim.metadata.deletion_timestamp is not None for claim in own)
        most[pool] = max(most.get(pool, 0), going)
        assert going <= -(-len(own) * _BUDGET // 1) + 1, f"{going} of {len(own)} instances of {pool} terminate at once"


async def _goes_to_nothing(kube: KubeClient, cluster: AwsCluster) -> None:
    for path in (
        "/apis/apps/v1/namespaces/default/deployments/web",
        "/apis/apps/v1/namespaces/default/deployments/db",
    ):
        await asyncio.to_thread(cluster.plane.request, "DELETE", path)

    async def remaining() -> str:
        return f"{len(nodeclaims)} NodeClaims" if (nodeclaims := await _claims(kube)) else ""

    await settled(remaining, _DEADLINE_SECONDS)
    for path in (
        "/apis/karpenter.sh/v1/nodepools/spot",
        "/apis/karpenter.sh/v1/nodepools/steady",
        "/apis/karpenter.k8s.aws/v1/ec2nodeclasses/default",
    ):
        await asyncio.to_thread(cluster.plane.request, "DELETE", path)
    await settled(lambda: _left(kube, cluster), _DEADLINE_SECONDS)


def _check_calls(cluster: AwsCluster) -> None:
    calls = [call for call in cluster.aws.calls.all if call.operation not in _OWN]
    place = ClusterLocation(CLUSTER, cluster.aws.region_name, "123456789012")
    made = {f"{_ACTION_PREFIX.get(call.service, call.service)}:{call.operation}" for call in calls}
    assert made <= iam_policies.allowed_actions(place)
    for call in calls:
        if call.operation == "CreateLaunchTemplate":
            _check_tags(call.parameters, "launch-template")
        if call.operation == "CreateFleet" and not call.is_dry_run:
            _check_fleet(call.parameters)


def _check_tags(parameters: Any, kind: str) -> None:
    """AWS-446, AWS-721, AWS-T701"""
    result = {
        tag["Key"]: tag["Value"]
        for specification in parameters["TagSpecifications"]
        if specification["ResourceType"] == kind
        for tag in specification["Tags"]
    }
    assert result[f"kubernetes.io/cluster/{CLUSTER}"] == "owned"
    assert result["eks:eks-cluster-name"] == CLUSTER
    assert {"karpenter.sh/nodepool", "karpenter.k8s.aws/ec2nodeclass"} <= result.keys()


def _check_fleet(parameters: Any) -> None:
    """AWS-440 to AWS-448"""
    assert parameters["Type"] == "instant"
    assert parameters["ClientToken"]
    for kind in ("instance", "volume", "fleet"):
        _check_tags(parameters, kind)
    capacity_type = parameters["TargetCapacitySpecification"]["DefaultTargetCapacityType"]
    options = {"spot": "SpotOptions", "on-demand": "OnDemandOptions"}[capacity_type]
    strategy = {"spot": "price-capacity-optimized", "on-demand": "lowest-price"}[capacity_type]
    assert parameters[options]["AllocationStrategy"] == strategy
    ways = [way for config in parameters["LaunchTemplateConfigs"] for way in config["Overrides"]]
    assert 0 < len(ways) <= 300
    assert len({(way["InstanceType"], way["AvailabilityZone"]) for way in ways}) == len(ways)
    for way in ways:
        assert way.keys() >= {"InstanceType", "SubnetId", "ImageId", "AvailabilityZone", "Priority"}
