"""Unhealthy instance status and scheduled events of EC2 (AWS §14.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from karpenter.kube.errors import ServerUnavailable
from karpenter.model import labels
from karpenter.model.clock import rfc3339
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_types import Ec2Filter
from karpenter.providers.aws.ec2_descriptions import InstanceScheduledEvent, InstanceStatus, StatusDetail, StatusSummary
from karpenter.providers.aws.interruption import interruption_handling
from karpenter.providers.aws.interruption.interruption_controllers import (
    InstanceStatusController,
)
from karpenter.providers.aws.interruption.interruption_messages import InterruptionKind, InterruptionMessage
from karpenter.providers.contract import ProviderError
from support.interruption_cluster import FakeAwsCluster


@dataclass
class Ec2:
    """Answers DescribeInstanceStatus with filters for instance status, system status and events."""

    ill: dict[str, InstanceStatus] = field(default_factory=dict)
    error: AwsError | None = None
    asked: list[str] = field(default_factory=list)

    async def describe_instance_status(self, filters: tuple[Ec2Filter, ...]) -> tuple[InstanceStatus, ...]:
        self.asked.append(filters[0].name)
        if self.error is not None:
            raise self.error
        return tuple(self.ill.values())


class StatusCluster(FakeAwsCluster):
    """A cluster with the controller of instance status."""

    def __init__(self) -> None:
        super().__init__()
        self.ec2 = Ec2()
        self.health = InstanceStatusController(
            self.ec2,
            self,
            self.handler,
            self.interruptions,
            self.clock,
        )

    def failed(self, seconds: float, status: str = "failed") -> StatusSummary:
        since = self.clock.now() - timedelta(seconds=seconds)
        return StatusSummary(status="impaired", details=(StatusDetail(name="x", status=status, impaired_since=since),))

    def event(self, description: str = "", **begins_in: float) -> tuple[InstanceScheduledEvent, ...]:
        begins = self.clock.now() + timedelta(**begins_in)
        return (InstanceScheduledEvent(code="instance-retirement", description=description, not_before=begins),)

    async def reconcile(self) -> float:
        await self.sync()
        return await self.health.reconcile()

    def unhealthy(self, category: str) -> float:
        return self.count("karpenter_interruption_instance_status_unhealthy_total", category=category)


@pytest.fixture
async def cluster() -> StatusCluster:
    made = StatusCluster()
    await made.add_instance("a", "i-1")
    return made


async def test_a_failed_check_counts_after_two_minutes_and_deletes_the_claim_without_waiting(
    cluster: StatusCluster,
) -> None:
    """AWS-T651, AWS-661, AWS-665, AWS-666, API-455: the claim's termination deadline is the current time. DIS-S270."""
    cluster.ec2.ill["i-1"] = InstanceStatus(instance_id="i-1", instance_status=cluster.failed(90))
    assert await cluster.reconcile() == 60.0
    assert await cluster.deleted_claims() == []
    assert sorted(cluster.ec2.asked) == ["event.code", "instance-status.status", "system-status.status"]
    cluster.clock.advance(seconds=40)
    await cluster.reconcile()
    assert await cluster.deleted_claims() == ["a"]
    assert (await cluster.claim("a")).metadata.annotations[labels.TERMINATION_TIMESTAMP] == rfc3339(cluster.clock.now())
    assert ("Warning", "NodeClaim", "a", "InstanceUnhealthy") in cluster.recorder.events
    assert cluster.disrupted == [("a", "instance_status")]


async def test_passed_checks_and_instances_of_others_are_ignored(cluster: StatusCluster) -> None:
    """AWS-666, AWS-667."""
    cluster.ec2.ill["i-1"] = InstanceStatus(instance_id="i-1", system_status=cluster.failed(600, "insufficient-data"))
    cluster.ec2.ill["i-9"] = InstanceStatus(instance_id="i-9", system_status=cluster.failed(600))
    await cluster.reconcile()
    assert await cluster.deleted_claims() == []
    assert cluster.unhealthy("SystemStatus") == 0


async def test_the_claim_of_an_instance_to_be_retired_is_deleted_gracefully(cluster: StatusCluster) -> None:
    """AWS-T652."""
    cluster.ec2.ill["i-1"] = InstanceStatus(instance_id="i-1", events=cluster.event(days=10))
    await cluster.reconcile()
    assert await cluster.deleted_claims() == ["a"]
    assert labels.TERMINATION_TIMESTAMP not in (await cluster.claim("a")).metadata.annotations


@pytest.mark.parametrize("over", ["[Completed] retired", "[Canceled] retired", "[completed]"])
async def test_completed_events_are_ignored(cluster: StatusCluster, over: str) -> None:
    """AWS §14.3 Beyond."""
    cluster.ec2.ill["i-1"] = InstanceStatus(instance_id="i-1", events=cluster.event(over, days=-1))
    await cluster.reconcile()
    assert await cluster.deleted_claims() == []
    assert cluster.unhealthy("EventStatus") == 0


async def test_a_node_pool_can_make_maintenance_respect_its_budgets_until_a_day_before(cluster: StatusCluster) -> None:
    """AWS §14.2 Beyond."""
    await cluster.pool(**{interruption_handling.SCHEDULED_CHANGES_ANNOTATION: "within-budgets"})
    cluster.ec2.ill["i-1"] = InstanceStatus(instance_id="i-1", events=cluster.event(days=10))
    await cluster.reconcile()
    assert await cluster.deleted_claims() == []
    assert interruption_handling.replacement_reason(await cluster.claim("a")) == "ScheduledChange"
    version = (await cluster.claim("a")).metadata.resource_version
    await cluster.reconcile()
    assert (await cluster.claim("a")).metadata.resource_version == version
    cluster.clock.advance(days=9, minutes=1)
    await cluster.reconcile()
    assert await cluster.deleted_claims() == ["a"]


async def test_an_instance_that_fails_both_checks_is_deleted_and_counted_once(cluster: StatusCluster) -> None:
    """AWS-665, DIS-375: the failed check, which is forceful, takes precedence over a scheduled event, which is graceful."""
    status = InstanceStatus(
        instance_id="i-1",
        instance_status=cluster.failed(600),
        system_status=cluster.failed(600),
        events=cluster.event(days=1),
    )
    cluster.ec2.ill["i-1"] = status
    await cluster.reconcile()
    assert cluster.disrupted == [("a", "instance_status")]
    assert labels.TERMINATION_TIMESTAMP in (await cluster.claim("a")).metadata.annotations


async def test_an_unhealthy_status_is_counted_once_until_it_recovers(cluster: StatusCluster) -> None:
    """AWS-668. OPS-476: by category."""
    status = InstanceStatus(instance_id="i-1", instance_status=cluster.failed(600), system_status=cluster.failed(600))
    cluster.ec2.ill["i-1"] = status
    await cluster.reconcile()
    await cluster.reconcile()
    assert (cluster.unhealthy("InstanceStatus"), cluster.unhealthy("SystemStatus")) == (1, 1)
    cluster.ec2.ill.clear()
    await cluster.reconcile()
    cluster.ec2.ill["i-1"] = status
    await cluster.reconcile()
    assert (cluster.unhealthy("InstanceStatus"), cluster.unhealthy("SystemStatus")) == (2, 2)


async def test_an_error_for_one_instance_does_not_stop_the_others(cluster: StatusCluster) -> None:
    await cluster.add_instance("b", "i-2")
    for name in ("i-1", "i-2"):
        cluster.ec2.ill[name] = InstanceStatus(instance_id=name, events=cluster.event(days=1))
    cluster.server.inject_fault(ServerUnavailable("boom", status=500), verb="delete", name="a")
    with pytest.raises(ServerUnavailable):
        await cluster.reconcile()
    assert await cluster.deleted_claims() == ["b"]


async def test_without_permission_the_status_is_read_again_an_hour_later(cluster: StatusCluster) -> None:
    """AWS-669, AWS-T702."""
    cluster.ec2.error = AwsError("UnauthorizedOperation", "no")
    assert await cluster.reconcile() == 3600.0
    cluster.ec2.error = AwsError("InternalError", "boom", status=500)
    with pytest.raises(ProviderError):
        await cluster.reconcile()


async def test_an_event_without_a_time_is_handled(cluster: StatusCluster) -> None:
    await cluster.handler.handle(InterruptionMessage(InterruptionKind.SPOT_INTERRUPTED, ("i-1",)))
    assert await cluster.deleted_claims() == ["a"]
    assert cluster.unavailable == [("m5.large", "us-west-2a")]
