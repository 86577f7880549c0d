"""The wired provider on the double: its log lines, metrics and AWS calls during the life of an instance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from karpenter.api.ec2_node_class import CapacityReservationSelectorTerm
from karpenter.api.kinds import EC2_NODE_CLASS, NODE, NODE_CLAIM, NODE_POOL
from karpenter.metrics import Metrics
from karpenter.metrics.exposition import render
from karpenter.model import labels
from karpenter.providers.aws import iam_policies
from karpenter.providers.aws.aws_metrics import SdkMetrics
from karpenter.providers.aws.aws_settings import AwsSettings
from karpenter.providers.aws.cluster_discovery import ApiServerAccess, discover_cluster
from karpenter.providers.aws.sdk.aws_session import AwsSession
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from support.aws.double import Double
from support.aws.interruption_queue import InterruptionQueue, spot_interruption
from support.aws.provider_process import ProviderProcess, claim, context, pool, region
from support.aws.seeds import seed
from support.builders import node
from support.metrics_scrape import Scrape

SETTINGS = AwsSettings(cluster_name="prod", interruption_queue="prod", eks_control_plane=True)
TAGGED = {"karpenter.sh/discovery": "test"}

#: AWS-792, AWS-368, AWS-380: log lines that operators search for, with their keys.
LINES = {
    "discovered instance types": {"count"},
    "discovered offerings for instance types": {"instance-type-count"},
    "discovered zones": {"zones"},
    "updated on-demand pricing": {"instance-type-count"},
    "updated spot pricing with instance types and offerings": {"instance-type-count", "offering-count"},
    "discovered ssm parameter": {"parameter", "value"},
    "discovered amis": {"ids"},
    "discovered subnets": {"subnets"},
    "discovered security groups": {"security-groups"},
    "discovered capacity reservations": {"ids"},
    "filtered out instance types from launch": {"filter", "instance-types"},
    "created launch template": {"launch-template-name", "id"},
    "discovered launch template": {"launch-template-name", "id"},
    "deleted launch template": {"launch-template-name", "id"},
    "removing offering from offerings": {"reason", "instance-type", "zone", "capacity-type", "ttl", "fleet-id"},
    "updating discovered capacity cache": {"memory-capacity", "instance-type"},
    "watching interruption queue": {"queue"},
    "initiating delete from interruption message": {"messageKind", "action"},
    "garbage collected cloudprovider instance": {"provider-id"},
}
#: AWS-780 to AWS-788: metrics with samples at the end of the test. (``test_metrics_page`` checks the declared ones.)
SERIES = (
    "karpenter_cloudprovider_instance_type_offering_available",
    "karpenter_cloudprovider_instance_type_offering_price_estimate",
    "karpenter_cloudprovider_instance_type_cpu_cores",
    "karpenter_cloudprovider_instance_type_memory_bytes",
    "karpenter_cloudprovider_instance_launch_failures_total",
    "karpenter_cloudprovider_batcher_batch_time_seconds_count",
    "karpenter_cloudprovider_batcher_batch_size_count",
    "karpenter_interruption_received_messages_total",
    "karpenter_interruption_deleted_messages_total",
    "karpenter_interruption_message_queue_duration_seconds_count",
    "karpenter_ec2nodeclasses_userdata_bytes",
    "aws_sdk_go_request_total",
    "aws_sdk_go_request_retry_count_count",
    "aws_sdk_go_request_duration_seconds_count",
    "aws_sdk_go_request_attempt_total",
    "aws_sdk_go_request_attempt_duration_seconds_count",
)
#: The instance types of the test: reading all types takes seconds.
_SOLD = frozenset({"c5.large", "m5.large", "m5.xlarge", "m5.metal"})
#: Calls of the queue helper of the tests.
_BY_THE_TEST = {"sqs:SendMessage", "sqs:GetQueueAttributes"}


class Ahead:
    """A clock two minutes ahead of the double's, so that instances are old enough for garbage collection."""

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(minutes=2)


@asynccontextmanager
async def provider_process(aws: Double, kube: MemoryKube) -> AsyncIterator[ProviderProcess]:
    """A process with running informers; unlike other tests it reads instance types from the double."""
    metrics = Metrics()
    account = AwsSession(SdkMetrics(metrics))

    async def version() -> str:
        return "1.35"

    facts = await discover_cluster(account, SETTINGS, ApiServerAccess(kube, version, "Q0E="))
    made = ProviderProcess(aws, region(aws), context(account.services, facts, SETTINGS, kube, Ahead(), metrics), kube)
    await made.cloud.hydrate()
    await made.watch()
    try:
        yield made
    finally:
        for task in made.tasks:
            task.cancel()
        await asyncio.gather(*made.tasks, return_exceptions=True)
        account.close()


async def launched(process: ProviderProcess, name: str) -> str:
    """Launch a NodeClaim and write its status; return its provider id."""
    asked = claim(name, "c5.large", "m5.large", "m5.metal")
    instance = await process.cloud.provider.create(await process.kube.create(NODE_CLAIM, asked))
    change: Any = {"metadata": {"labels": dict(instance.labels)}}
    await process.kube.patch(NODE_CLAIM, name, change)
    status: Any = {"status": {"providerID": instance.provider_id, "imageID": instance.image_id}}
    await process.kube.patch(NODE_CLAIM, name, status, subresource="status")
    return instance.provider_id


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    with Double() as running:
        running.region.instance_types.keep_only(_SOLD)
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.url)
        monkeypatch.setenv("AWS_REGION", running.region_name)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIADOUBLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield running


async def test_an_instance_life_cycle_has_its_log_lines_metrics_and_permissions(aws: Double) -> None:
    """AWS-780 to AWS-788, AWS-792, AWS-T700, AWS-T701, AWS-T781, AWS-536, AWS-657"""
    seeds = seed(aws)
    aws.control.add_cluster("prod", "https://prod.eks", "Q0E=", "1.35")
    aws.control.reserve("m5.large", next(iter(seeds.subnets)), 2, tags=TAGGED)
    for zone in seeds.subnets:
        aws.control.set_pool("c5.large", zone, "on-demand", 0)
    aws.control.set_on_demand_price("m5.large", 0.5)
    queue = InterruptionQueue(aws, "prod")
    aws.calls.clear()
    kube = MemoryKube(MemoryServer(Ahead()))
    await kube.create(NODE_POOL, pool())
    with capture_logs() as lines:

        def said(text: str) -> bool:
            return any(line["event"] == text for line in lines)

        async with provider_process(aws, kube) as first:
            await first.ready_class(capacity_reservation_selector_terms=(CapacityReservationSelectorTerm(tags=TAGGED),))
            await launched(first, "one")
        async with provider_process(aws, kube) as second:
            second.start("nodeclass", "cloudprovider.metrics")
            instance = await launched(second, "two")
            capacity = {"cpu": "2", "memory": "7800000Ki"}
            joined = node("n", capacity, labels={labels.REGISTERED: "true"}, provider_id=instance, capacity=capacity)
            await kube.create(NODE, replace(joined, metadata=replace(joined.metadata, uid="")))
            await second.until(lambda: second.state.node("n") is not None, "the Node being seen")
            second.start("providers.instancetype.capacity")
            await second.until(lambda: said("updating discovered capacity cache"), "its memory being learned")
            queue.send(spot_interruption(instance.rpartition("/")[2]))
            second.start("interruption")
            await second.until(lambda: queue.remaining() == 0 and second.state.claim("two") is None, "its claim going")
            second.start("instance.garbagecollection")
            await second.until(lambda: second.state.node("n") is None, "its Node going")
            shown = Scrape(await render(second.metrics.registry))
            await kube.delete(NODE_CLAIM, "one")
            await kube.delete(EC2_NODE_CLASS, "default")
            await second.until(lambda: said("deleted launch template"), "its template going")
    assert {text: keys - _keys(lines, text) for text, keys in LINES.items() if keys - _keys(lines, text)} == {}
    assert [name for name in SERIES if name not in shown] == []
    allowed = iam_policies.allowed_actions(iam_policies.ClusterLocation("prod", "us-west-2", "123456789012"))
    asked = {f"{call.service}:{call.operation}" for call in aws.calls.all}
    assert asked - allowed == _BY_THE_TEST
    made = aws.calls.of("CreateLaunchTemplate")
    assert made
    assert all(_tags(call.parameters)["eks:eks-cluster-name"] == "prod" for call in made)


def _keys(lines: list[Any], text: str) -> set[str]:
    """Keys of the log lines with a text."""
    return {key for line in lines if line["event"] == text for key in line}


def _tags(parameters: Any) -> dict[str, str]:
    """Tags of the launch template itself."""
    given = (
        parameter for parameter in parameters["TagSpecifications"] if parameter["ResourceType"] == "launch-template"
    )
    return {tag["Key"]: tag["Value"] for element in given for tag in element["Tags"]}
