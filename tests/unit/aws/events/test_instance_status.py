"""What is done when EC2, asked for the status of instances, says that they are ill or will be retired (AWS §14.3)."""

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
    """Says how machines are, to whoever asks for instance status, system status or events."""

    ill: dict[str, InstanceStatus] = field(default_factory=dict)
    error: AwsError | None = None
    asked: list[str] = field(default_factory=list)

    async def describe_instance_status(self, filters: tuple[Ec2Filter, ...]) -> tuple[InstanceStatus, ...]:
        self.asked.append(filters[0].name)
        if self.error is not None:
            raise self.error
        return tuple(self.ill.values())


class Ward(FakeAwsCluster):
    """A cluster whose machines' health is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.ec2 = Ec2()
        self.health = InstanceStatusController(
            self.ec2,  # type: ignore[arg-type]
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
async def ward() -> Ward:
    made = Ward()
    await made.add_instance("a", "i-1")
    return made


async def test_a_failed_check_counts_after_two_minutes_and_then_nothing_is_waited_for(ward: Ward) -> None:
    """AWS-T651, AWS-661, AWS-665, AWS-666, API-455: the claim's deadline is now. DIS-S270."""
    ward.ec2.ill["i-1"] = InstanceStatus(instance_id="i-1", instance_status=ward.failed(90))
    assert await ward.reconcile() == 60.0
    assert await ward.deleted_claims() == []
    assert sorted(ward.ec2.asked) == ["event.code", "instance-status.status", "system-status.status"]
    ward.clock.advance(seconds=40)
    await ward.reconcile()
    assert await ward.deleted_claims() == ["a"]
    assert (await ward.claim("a")).metadata.annotations[labels.TERMINATION_TIMESTAMP] == rfc3339(ward.clock.now())
    assert ("Warning", "NodeClaim", "a", "InstanceUnhealthy") in ward.recorder.events
    assert ward.disrupted == [("a", "instance_status")]


async def test_checks_that_do_not_fail_and_foreign_instances_count_nothing(ward: Ward) -> None:
    """AWS-666, AWS-667."""
    ward.ec2.ill["i-1"] = InstanceStatus(instance_id="i-1", system_status=ward.failed(600, "insufficient-data"))
    ward.ec2.ill["i-9"] = InstanceStatus(instance_id="i-9", system_status=ward.failed(600))
    await ward.reconcile()
    assert await ward.deleted_claims() == []
    assert ward.unhealthy("SystemStatus") == 0


async def test_an_instance_to_be_retired_goes_now_and_gracefully(ward: Ward) -> None:
    """AWS-T652."""
    ward.ec2.ill["i-1"] = InstanceStatus(instance_id="i-1", events=ward.event(days=10))
    await ward.reconcile()
    assert await ward.deleted_claims() == ["a"]
    assert labels.TERMINATION_TIMESTAMP not in (await ward.claim("a")).metadata.annotations


@pytest.mark.parametrize("over", ["[Completed] retired", "[Canceled] retired", "[completed]"])
async def test_events_that_are_over_are_none(ward: Ward, over: str) -> None:
    """AWS §14.3 Beyond."""
    ward.ec2.ill["i-1"] = InstanceStatus(instance_id="i-1", events=ward.event(over, days=-1))
    await ward.reconcile()
    assert await ward.deleted_claims() == []
    assert ward.unhealthy("EventStatus") == 0


async def test_a_pool_may_have_maintenance_respect_its_budgets_until_a_day_before(ward: Ward) -> None:
    """AWS §14.2 Beyond."""
    await ward.pool(**{interruption_handling.SCHEDULED_CHANGES_ANNOTATION: "within-budgets"})
    ward.ec2.ill["i-1"] = InstanceStatus(instance_id="i-1", events=ward.event(days=10))
    await ward.reconcile()
    assert await ward.deleted_claims() == []
    assert interruption_handling.replacement_reason(await ward.claim("a")) == "ScheduledChange"
    version = (await ward.claim("a")).metadata.resource_version
    await ward.reconcile()
    assert (await ward.claim("a")).metadata.resource_version == version
    ward.clock.advance(days=9, minutes=1)
    await ward.reconcile()
    assert await ward.deleted_claims() == ["a"]


async def test_an_instance_that_fails_both_checks_is_deleted_and_counted_once(ward: Ward) -> None:
    """AWS-665, DIS-375: it also has an event, which would be graceful; the failed check is forceful and comes first."""
    status = InstanceStatus(
        instance_id="i-1",
        instance_status=ward.failed(600),
        system_status=ward.failed(600),
        events=ward.event(days=1),
    )
    ward.ec2.ill["i-1"] = status
    await ward.reconcile()
    assert ward.disrupted == [("a", "instance_status")]
    assert labels.TERMINATION_TIMESTAMP in (await ward.claim("a")).metadata.annotations


async def test_an_illness_is_counted_once_until_it_has_gone(ward: Ward) -> None:
    """AWS-668. OPS-476: by category."""
    status = InstanceStatus(instance_id="i-1", instance_status=ward.failed(600), system_status=ward.failed(600))
    ward.ec2.ill["i-1"] = status
    await ward.reconcile()
    await ward.reconcile()
    assert (ward.unhealthy("InstanceStatus"), ward.unhealthy("SystemStatus")) == (1, 1)
    ward.ec2.ill.clear()
    await ward.reconcile()
    ward.ec2.ill["i-1"] = status
    await ward.reconcile()
    assert (ward.unhealthy("InstanceStatus"), ward.unhealthy("SystemStatus")) == (2, 2)


async def test_one_instance_that_cannot_be_dealt_with_keeps_no_other(ward: Ward) -> None:
    await ward.add_instance("b", "i-2")
    for name in ("i-1", "i-2"):
        ward.ec2.ill[name] = InstanceStatus(instance_id=name, events=ward.event(days=1))
    ward.server.inject_fault(ServerUnavailable("boom", status=500), verb="delete", name="a")
    with pytest.raises(ServerUnavailable):
        await ward.reconcile()
    assert await ward.deleted_claims() == ["b"]


async def test_whoever_may_not_ask_asks_again_an_hour_later(ward: Ward) -> None:
    """AWS-669, AWS-T702."""
    ward.ec2.error = AwsError("UnauthorizedOperation", "no")
    assert await ward.reconcile() == 3600.0
    ward.ec2.error = AwsError("InternalError", "boom", status=500)
    with pytest.raises(ProviderError):
        await ward.reconcile()


async def test_a_notice_without_a_time_is_acted_on(ward: Ward) -> None:
    await ward.handler.handle(InterruptionMessage(InterruptionKind.SPOT_INTERRUPTED, ("i-1",)))
    assert await ward.deleted_claims() == ["a"]
    assert ward.unavailable == [("m5.large", "us-west-2a")]
