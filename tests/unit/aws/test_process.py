"""The provider put together, in one process over the double: what it logs, counts and asks for in the life of a machine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from karpenter.api.ec2 import (
    AMISelectorTerm,
    CapacityReservationSelectorTerm,
    EC2NodeClass,
    EC2NodeClassSpec,
    SecurityGroupSelectorTerm,
    SubnetSelectorTerm,
)
from karpenter.api.karpenter import NodeClassReference
from karpenter.api.kinds import EC2_NODE_CLASS, NODE, NODE_CLAIM, NODE_POOL
from karpenter.api.meta import ObjectMeta
from karpenter.cluster import ClusterState
from karpenter.control.surroundings import Observation
from karpenter.kube.informer import Informer
from karpenter.kube.memory import MemoryKube, MemoryServer
from karpenter.model import conditions, labels
from karpenter.providers.aws import iam
from karpenter.providers.aws.boto import Account
from karpenter.providers.aws.boto.start import ApiServer, discover
from karpenter.providers.aws.cloud import AwsCloud, Ground
from karpenter.providers.aws.settings import AwsSettings
from karpenter.providers.aws.window import Outside
from karpenter.telemetry import Metrics
from karpenter.telemetry.aws import SdkMetrics
from karpenter.telemetry.exposition import render, render_here
from support.aws.double import Double
from support.aws.messages import Mailbox, spot_interruption
from support.aws.seeds import seed
from support.aws_events import Told
from support.builders import claim, node, node_pool, wanted
from support.scrape import Scrape

SETTINGS = AwsSettings(cluster_name="prod", interruption_queue="prod", eks_control_plane=True)
REFERENCE = NodeClassReference(group="karpenter.k8s.aws", kind="EC2NodeClass", name="default")
TAGGED = {"karpenter.sh/discovery": "test"}
_SECONDS = 30.0

#: AWS-792, AWS-368, AWS-380: what operators search logs for, and the keys that stand beside it.
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
PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
#: Counted only when something goes wrong that does not here.
_QUIET = {
    "karpenter_cloudprovider_instance_termination_failures_total",
    "karpenter_cloudprovider_unavailable_offerings",
    "karpenter_interruption_instance_status_unhealthy_total",
}
#: Calls of the mailbox that tests put messages into.
_BY_THE_TEST = {"sqs:SendMessage", "sqs:GetQueueAttributes"}


class Ahead:
    """A clock that is two minutes ahead of the double's, so that no machine is too young for anything."""

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(minutes=2)


@dataclass
class Process:
    """A process's cloud and watches; loops run when they are asked to."""

    cloud: AwsCloud
    kube: MemoryKube
    state: ClusterState
    classes: Informer[EC2NodeClass]
    metrics: Metrics
    tasks: list[asyncio.Task[None]]

    def __post_init__(self) -> None:
        self._loops = self.cloud.loops()

    def begin(self, *names: str) -> None:
        """Run these loops from now on."""
        self.tasks += [asyncio.get_running_loop().create_task(_forever(self._loops[name])) for name in names]

    async def class_is(self, status: str) -> None:
        def told() -> bool:
            found = self.classes.get("default")
            ready = conditions.find(found.status.conditions, "Ready") if found is not None else None
            return ready is not None and ready.status == status

        await until(told)

    async def buy(self, name: str) -> str:
        """A claim of two types, launched; its provider ID."""
        types = wanted(labels.INSTANCE_TYPE, "In", "c5.large", "m5.large", "m5.metal")
        asked = claim(name, requirements=(types, wanted(labels.CAPACITY_TYPE, "In", "on-demand")))
        own = {**asked.metadata.labels, labels.NODE_POOL: "np"}
        asked = replace(
            asked,
            metadata=replace(asked.metadata, labels=own, uid=""),
            spec=replace(asked.spec, node_class_ref=REFERENCE),
        )
        bought = await self.cloud.provider.create(await self.kube.create(NODE_CLAIM, asked))
        change: Any = {"metadata": {"labels": dict(bought.labels)}}
        await self.kube.patch(NODE_CLAIM, name, change)
        status: Any = {"status": {"providerID": bought.provider_id, "imageID": bought.image_id}}
        await self.kube.patch(NODE_CLAIM, name, status, subresource="status")
        return bought.provider_id


async def _forever(loop: Callable[[], Any]) -> None:
    await loop()


async def until(told: Callable[[], bool]) -> None:
    async with asyncio.timeout(_SECONDS):
        while not told():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def process(kube: MemoryKube) -> AsyncIterator[Process]:
    metrics = Metrics()
    account = Account(SdkMetrics(metrics))

    async def version() -> str:
        return "1.35"

    facts = await discover(account, SETTINGS, ApiServer(kube, version, "Q0E="))
    cloud = AwsCloud(Ground(account.services, facts, SETTINGS, kube, Ahead(), metrics))
    await cloud.hydrate()
    state = ClusterState()
    classes = Informer(kube, EC2_NODE_CLASS)
    claims, nodes, pools = Informer(kube, NODE_CLAIM), Informer(kube, NODE), Informer(kube, NODE_POOL)
    cloud.join(
        Outside(
            observed=Observation(state),
            herald=Told(),
            claim_named=state.claim,
            class_named=classes.get,
            classes=lambda: tuple(classes),
            disrupted=lambda claim, reason: None,
        )
    )
    classes.subscribe(cloud.node_class)
    claims.subscribe(_into(state.set_claim, state.remove_claim))
    claims.subscribe(cloud.claim)
    nodes.subscribe(_into(state.set_node, state.remove_node))
    nodes.subscribe(cloud.node)
    pools.subscribe(_into(state.set_pool, state.remove_pool))
    watches: tuple[Informer[Any], ...] = (classes, claims, nodes, pools)
    tasks = [asyncio.get_running_loop().create_task(item.run()) for item in watches]
    try:
        yield Process(cloud, kube, state, classes, metrics, tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        account.close()


def _into(put: Callable[[Any], None], remove: Callable[[str], None]) -> Callable[[Any, Any], None]:
    return lambda old, new: put(new) if new is not None else remove(old.metadata.name)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Double]:
    with Double() as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.url)
        monkeypatch.setenv("AWS_REGION", running.region_name)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIADOUBLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        yield running


def node_class() -> EC2NodeClass:
    spec = EC2NodeClassSpec(
        role="node",
        ami_selector_terms=(AMISelectorTerm(alias="al2023@latest"),),
        subnet_selector_terms=(SubnetSelectorTerm(tags=TAGGED),),
        security_group_selector_terms=(SecurityGroupSelectorTerm(tags=TAGGED),),
        capacity_reservation_selector_terms=(CapacityReservationSelectorTerm(tags=TAGGED),),
    )
    return EC2NodeClass(metadata=ObjectMeta(name="default"), spec=spec)


def pool() -> Any:
    found = node_pool("np")
    spec = replace(found.spec.template.spec, node_class_ref=REFERENCE)
    return replace(
        found,
        metadata=replace(found.metadata, uid=""),
        spec=replace(found.spec, template=replace(found.spec.template, spec=spec)),
    )


async def test_the_life_of_a_machine_is_logged_counted_and_permitted(aws: Double) -> None:
    """AWS-780 to AWS-788, AWS-792, AWS-T700, AWS-T701, AWS-T781, AWS-536, AWS-657"""
    seeds = seed(aws)
    aws.control.add_cluster("prod", "https://prod.eks", "Q0E=", "1.35")
    aws.control.reserve("m5.large", next(iter(seeds.subnets)), 2, tags=TAGGED)
    for zone in seeds.subnets:
        aws.control.set_pool("c5.large", zone, "on-demand", 0)
    aws.control.set_on_demand_price("m5.large", 0.5)
    queue = Mailbox(aws, "prod")
    aws.calls.clear()
    kube = MemoryKube(MemoryServer(Ahead()))
    await kube.create(NODE_POOL, pool())
    await kube.create(EC2_NODE_CLASS, node_class())
    with capture_logs() as lines:

        def said(text: str) -> bool:
            return any(line["event"] == text for line in lines)

        async with process(kube) as first:
            first.begin("nodeclass")
            await first.class_is("True")
            await first.buy("one")
        async with process(kube) as second:
            second.begin("nodeclass", "cloudprovider.metrics")
            other = await second.buy("two")
            capacity = {"cpu": "2", "memory": "7800000Ki"}
            joined = node("n", capacity, labels={labels.REGISTERED: "true"}, provider_id=other, capacity=capacity)
            await kube.create(NODE, replace(joined, metadata=replace(joined.metadata, uid="")))
            await until(lambda: second.state.node("n") is not None)
            second.begin("providers.instancetype.capacity")
            await until(lambda: said("updating discovered capacity cache"))
            queue.send(spot_interruption(other.rpartition("/")[2]))
            second.begin("interruption")
            await until(lambda: queue.waiting() == 0 and second.state.claim("two") is None)
            second.begin("instance.garbagecollection")
            await until(lambda: second.state.node("n") is None)
            shown = Scrape(await render(second.metrics.registry))
            await kube.delete(NODE_CLAIM, "one")
            await kube.delete(EC2_NODE_CLASS, "default")
            await until(lambda: said("deleted launch template"))
    assert {text: keys - _keys(lines, text) for text, keys in LINES.items() if keys - _keys(lines, text)} == {}
    _compare_with_the_page(shown)
    allowed = iam.allowed_actions(iam.Place("prod", "us-west-2", "123456789012"))
    asked = {f"{call.service}:{call.operation}" for call in aws.calls.all}
    assert asked - allowed == _BY_THE_TEST
    made = aws.calls.of("CreateLaunchTemplate")
    assert made
    assert all(_tags(call.parameters)["eks:eks-cluster-name"] == "prod" for call in made)


def _compare_with_the_page(shown: Scrape) -> None:
    """AWS-780 to AWS-788: names, types and labels of all series that other processes do not have."""
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| (.*?) ?\|", PAGE.read_text().partition("\n## Machines on EC2\n")[2], re.M
    )
    usual = Scrape(render_here(Metrics().registry)).types()
    assert {name: kind for name, kind in shown.types().items() if name not in usual} == {
        name: kind for name, kind, _ in rows
    }
    for name, kind, told in rows:
        series = shown.series(f"{name}_count" if kind == "histogram" else name)
        assert series or name in _QUIET, name
        assert all(set(found) == set(re.findall(r"`(\w+)`", told)) for found in series), name


def _keys(lines: list[Any], text: str) -> set[str]:
    """Keys of the lines of a text."""
    return {key for line in lines if line["event"] == text for key in line}


def _tags(parameters: Any) -> dict[str, str]:
    """What a launch template itself is tagged with."""
    given = (item for item in parameters["TagSpecifications"] if item["ResourceType"] == "launch-template")
    return {tag["Key"]: tag["Value"] for item in given for tag in item["Tags"]}
