"""What is done when AWS takes machines away, or says that they are ill (AWS §§14.1-14.3)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import Conflict, ServerUnavailable
from karpenter.metrics import Metrics
from karpenter.model import labels
from karpenter.model.clock import rfc3339
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_types import SqsMessage
from karpenter.providers.aws.interruption import interruption_handling
from karpenter.providers.aws.interruption.interruption_controllers import (
    InterruptionQueueController,
)
from karpenter.providers.aws.interruption.interruption_messages import InterruptionKind, InterruptionMessage
from karpenter.providers.contract import ProviderError
from karpenter.runtime import nodeclaim_deletion
from karpenter.state import ClusterState
from support.aws_events import SPOT, Cluster


class Counting(NamedTuple):
    """Where disruptions are counted."""

    metrics: Metrics
    state: ClusterState


SPOT_WARNING = "EC2 Spot Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"
RESERVATION = "EC2 Capacity Reservation Instance Interruption Warning"
STATE = "EC2 Instance State-change Notification"


@dataclass
class Sqs:
    """A queue in memory; ``missing`` says that it is not there."""

    waiting: list[SqsMessage] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    missing: bool = False
    asked: int = 0

    async def get_queue_url(self, name: str) -> str:
        self.asked += 1
        if self.missing:
            raise AwsError("AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist.")
        return f"url/{name}"

    async def receive_messages(self, url: str) -> tuple[SqsMessage, ...]:
        if self.missing:
            raise AwsError("QueueDoesNotExist", "gone")
        return tuple(self.waiting)

    async def delete_message(self, url: str, receipt_handle: str) -> None:
        self.deleted.append(receipt_handle)
        self.waiting = [sqs_message for sqs_message in self.waiting if sqs_message.receipt_handle != receipt_handle]


class Stage(Cluster):
    """A cluster and its queue."""

    def __init__(self) -> None:
        super().__init__()
        self.sqs = Sqs()
        self.queue = InterruptionQueueController("prod", self.sqs, self.responder, self.interruptions, self.clock)

    def say(self, detail_type: str, instance: str, source: str = "aws.ec2", **detail: Any) -> None:
        text = json.dumps(
            {
                "version": "0",
                "source": source,
                "detail-type": detail_type,
                "time": rfc3339(self.clock.now()),
                "detail": {"instance-id": instance, **detail},
            }
        )
        self.post(text)

    def post(self, body: str | None) -> None:
        handle = f"handle-{len(self.sqs.waiting) + len(self.sqs.deleted)}"
        self.sqs.waiting.append(SqsMessage(message_id=handle, receipt_handle=handle, body=body))

    async def round(self) -> None:
        await self.see()
        assert await self.queue.reconcile() == 0.0

    def received(self, kind: str) -> float:
        return self.count("karpenter_interruption_received_messages_total", message_type=kind)


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_a_spot_warning_ends_the_claim_and_what_was_bought_is_sold_out(stage: Stage) -> None:
    """Claim and Node are told, the offering counts as sold out.

    AWS-T640, AWS-656, AWS-657, AWS-659, AWS-786, DIS-370, OPS-540.
    DIS-S268, DIS-376: Node and NodeClaim get TerminatingOnInterruption.
    """
    await stage.machine("a", "i-1")
    stage.say(SPOT_WARNING, "i-1")
    stage.clock.forward(seconds=3)
    await stage.round()
    assert await stage.ending() == ["a"]
    assert stage.sold_out == [("m5.large", "us-west-2a")]
    assert stage.sqs.deleted == ["handle-0"]
    assert stage.disrupted == [("a", "spot_interrupted")]
    assert stage.recorder.events == [
        ("Warning", "NodeClaim", "a", "SpotInterrupted"),
        ("Warning", "Node", "node-a", "SpotInterrupted"),
        ("Warning", "NodeClaim", "a", "TerminatingOnInterruption"),
        ("Warning", "Node", "node-a", "TerminatingOnInterruption"),
    ]
    assert stage.received("spot_interrupted") == 1
    assert stage.count("karpenter_interruption_deleted_messages_total") == 1
    assert stage.count("karpenter_interruption_message_queue_duration_seconds_sum") == 3.0


async def test_a_spot_instance_is_closed_at_once_and_drained_within_two_minutes(stage: Stage) -> None:
    """AWS §14.2 Beyond."""
    await stage.machine("a", "i-1")
    stage.say(SPOT_WARNING, "i-1")
    told_at = stage.clock.now()
    stage.clock.forward(seconds=10)
    await stage.round()
    assert await stage.is_tainted("a")
    assert "own" in [taint.key for taint in (await stage.node("a")).spec.taints]
    deadline = (await stage.claim("a")).metadata.annotations[labels.TERMINATION_TIMESTAMP]
    assert deadline == rfc3339(told_at + timedelta(minutes=2))


async def test_an_earlier_deadline_stays_and_a_later_one_does_not(stage: Stage) -> None:
    await stage.machine("a", "i-1")
    await stage.machine("b", "i-2")
    early, late = rfc3339(stage.clock.now() + timedelta(seconds=30)), rfc3339(stage.clock.now() + timedelta(hours=1))
    for name, text in (("a", early), ("b", late)):
        patch = {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: text}}}
        await stage.kube.patch(NODE_CLAIM, name, patch)
    stage.say(SPOT_WARNING, "i-1")
    stage.say(SPOT_WARNING, "i-2")
    await stage.round()
    assert (await stage.claim("a")).metadata.annotations[labels.TERMINATION_TIMESTAMP] == early
    two_minutes = rfc3339(stage.clock.now() + timedelta(minutes=2))
    assert (await stage.claim("b")).metadata.annotations[labels.TERMINATION_TIMESTAMP] == two_minutes


async def test_an_instance_already_ending_gets_the_deadline_it_has_not(stage: Stage) -> None:
    await stage.machine("a", "i-1")
    await stage.kube.delete(NODE_CLAIM, "a")
    stage.say(SPOT_WARNING, "i-1")
    await stage.round()
    assert labels.TERMINATION_TIMESTAMP in (await stage.claim("a")).metadata.annotations
    assert stage.recorder.events == []
    assert stage.disrupted == []


async def test_other_peoples_instances_are_none_of_our_business(stage: Stage) -> None:
    """AWS-T641, AWS-655."""
    await stage.machine("a", "i-1")
    stage.say(SPOT_WARNING, "i-2")
    await stage.round()
    assert await stage.ending() == []
    assert stage.sold_out == []
    assert stage.recorder.events == []
    assert stage.sqs.deleted == ["handle-0"]


async def test_an_instance_that_starts_is_no_news(stage: Stage) -> None:
    """AWS-T642."""
    await stage.machine("a", "i-1")
    stage.say(STATE, "i-1", state="running")
    await stage.round()
    assert await stage.ending() == []
    assert stage.received("no_op") == 1
    assert stage.sqs.deleted == ["handle-0"]


@pytest.mark.parametrize(
    ("state", "reason", "kind"),
    [
        pytest.param("shutting-down", "InstanceTerminating", "instance_terminated", id="AWS-T643"),
        pytest.param("STOPPING", "InstanceStopping", "instance_stopped", id="AWS-650"),
    ],
)
async def test_an_instance_that_ends_by_itself_ends_its_claim(stage: Stage, state: str, reason: str, kind: str) -> None:
    """DIS-373: stopping and terminating, in every state of it."""
    await stage.machine("a", "i-1")
    stage.say(STATE, "i-1", state=state)
    await stage.round()
    assert await stage.ending() == ["a"]
    assert ("Warning", "NodeClaim", "a", reason) in stage.recorder.events
    assert stage.disrupted == [("a", kind)]
    assert stage.sold_out == []
    assert labels.TERMINATION_TIMESTAMP not in (await stage.claim("a")).metadata.annotations


async def test_a_health_event_ends_those_of_its_instances_that_are_ours(stage: Stage) -> None:
    """AWS-T645, DIS-372: their claims are deleted."""
    await stage.machine("a", "i-1")
    await stage.machine("b", "i-2")
    await stage.machine("c", "i-3")
    entities = [{"entityValue": name} for name in ("i-1", "i-3", "i-9")]
    detail = {"service": "EC2", "eventTypeCategory": "scheduledChange", "affectedEntities": entities}
    stage.say("AWS Health Event", "", "aws.health", **detail)
    await stage.round()
    assert await stage.ending() == ["a", "c"]
    assert ("Warning", "Node", "node-a", "InstanceUnhealthy") in stage.recorder.events


async def test_a_rebalance_recommendation_is_only_told(stage: Stage) -> None:
    """AWS-T646, AWS-660, DIS-371, OPS-541: an event, and nothing is deleted. DIS-S269."""
    await stage.pool()
    await stage.machine("a", "i-1")
    stage.say(REBALANCE, "i-1")
    await stage.round()
    assert await stage.ending() == []
    assert stage.recorder.events == [
        ("Normal", "NodeClaim", "a", "SpotRebalanceRecommendation"),
        ("Normal", "Node", "node-a", "SpotRebalanceRecommendation"),
    ]
    assert interruption_handling.replacement_reason(await stage.claim("a")) == ""


async def test_a_pool_may_have_instances_at_risk_replaced(stage: Stage) -> None:
    """AWS §14.2 Beyond: the replacement is bought first, which is what drift does."""
    await stage.pool(**{interruption_handling.REBALANCE_ANNOTATION: "replace"})
    await stage.machine("a", "i-1")
    stage.say(REBALANCE, "i-1")
    await stage.round()
    assert await stage.ending() == []
    assert interruption_handling.replacement_reason(await stage.claim("a")) == "RebalanceRecommended"


@pytest.mark.parametrize("body", ["garbage", None, '{"version":'], ids=["AWS-T647", "no body", "cut"])
async def test_what_cannot_be_read_leaves_the_queue_and_is_not_counted(stage: Stage, body: str | None) -> None:
    """AWS-642: it is logged and deleted; ``no_op`` counts messages of other kinds."""
    stage.post(body)
    await stage.round()
    assert stage.sqs.deleted == ["handle-0"]
    assert stage.received("no_op") == 0


async def test_a_message_whose_handling_failed_stays_and_the_others_are_dealt_with(stage: Stage) -> None:
    """AWS-T648, AWS-643."""
    await stage.machine("a", "i-1")
    await stage.machine("b", "i-2")
    stage.say(SPOT_WARNING, "i-1")
    stage.say(SPOT_WARNING, "i-2")
    stage.server.inject_fault(ServerUnavailable("boom", status=500), verb="delete", name="a")
    await stage.see()
    with pytest.raises(ServerUnavailable):
        await stage.queue.reconcile()
    assert stage.sqs.deleted == ["handle-1"]
    assert await stage.ending() == ["b"]
    await stage.round()
    assert await stage.ending() == ["a", "b"]
    assert stage.sqs.deleted == ["handle-1", "handle-0"]


async def test_the_messages_of_one_receive_are_handled_side_by_side(stage: Stage) -> None:
    """AWS-641: ten warnings of two minutes each do not wait for one another."""
    for number in range(10):
        await stage.machine(f"claim-{number}", f"i-{number}")
        stage.say(SPOT_WARNING, f"i-{number}")
    handle, under_way, all_begun = stage.responder.handle, 0, asyncio.Event()

    async def wait_for_the_others(notice: InterruptionMessage) -> None:
        nonlocal under_way
        under_way += 1
        if under_way == 10:
            all_begun.set()
        await asyncio.wait_for(all_begun.wait(), timeout=5)
        await handle(notice)

    stage.responder.handle = wait_for_the_others  # type: ignore[method-assign]
    await stage.round()
    assert await stage.ending() == sorted(f"claim-{number}" for number in range(10))
    assert len(stage.sqs.deleted) == 10


async def test_an_instance_that_has_not_joined_ends_too(stage: Stage) -> None:
    """AWS-T649."""
    await stage.machine("a", "i-1", joined=False)
    stage.say(SPOT_WARNING, "i-1")
    await stage.round()
    assert await stage.ending() == ["a"]
    assert {kind for _, kind, _, _ in stage.recorder.events} == {"NodeClaim"}


async def test_the_same_warning_twice_does_nothing_twice(stage: Stage) -> None:
    """AWS-T650."""
    await stage.machine("a", "i-1")
    stage.say(SPOT_WARNING, "i-1")
    await stage.round()
    before = await stage.claim("a")
    events = list(stage.recorder.events)
    stage.clock.forward(seconds=20)
    stage.say(SPOT_WARNING, "i-1")
    await stage.round()
    assert (await stage.claim("a")).metadata.resource_version == before.metadata.resource_version
    assert stage.recorder.events == events
    assert stage.disrupted == [("a", "spot_interrupted")]
    assert stage.sqs.deleted == ["handle-0", "handle-1"]


async def test_a_queue_that_is_missing_is_looked_for_until_it_is_there(stage: Stage) -> None:
    """AWS-T653."""
    await stage.machine("a", "i-1")
    stage.sqs.missing = True
    for _ in range(2):
        with pytest.raises(ProviderError) as caught:
            await stage.queue.reconcile()
        assert "there is no interruption queue prod" in str(caught.value)
        assert "--interruption-queue" in str(caught.value)
    stage.sqs.missing = False
    stage.say(SPOT_WARNING, "i-1")
    await stage.round()
    assert await stage.ending() == ["a"]
    assert stage.sqs.asked == 3
    await stage.round()
    assert stage.sqs.asked == 3, "the address is kept"


async def test_an_instance_taken_out_of_its_reservation_marks_that_reservation(stage: Stage) -> None:
    """K15-A57, K15-A139, AWS-T654, AWS-658, DIS-374: its claim is deleted."""
    own = {**SPOT, labels.CAPACITY_TYPE: labels.RESERVED, labels.RESERVATION_ID: "cr-1"}
    await stage.machine("a", "i-1", own)
    stage.say(RESERVATION, "i-1")
    await stage.round()
    assert stage.interrupted == [interruption_handling.ReservedOffering("m5.large", "us-west-2a", "cr-1")]
    assert stage.sold_out == []
    assert await stage.ending() == ["a"]
    assert ("Warning", "NodeClaim", "a", "CapacityReservationInstanceInterrupted") in stage.recorder.events


async def test_old_news_tell_nothing_of_what_can_be_bought_now(stage: Stage) -> None:
    """AWS §14.2 Beyond."""
    await stage.machine("a", "i-1")
    stage.say(SPOT_WARNING, "i-1")
    stage.clock.forward(minutes=11)
    await stage.round()
    assert stage.sold_out == []
    assert await stage.ending() == ["a"]
    assert (await stage.claim("a")).metadata.annotations[labels.TERMINATION_TIMESTAMP] == rfc3339(stage.clock.now())


async def test_a_node_that_changed_meanwhile_is_left_to_the_claims_end(stage: Stage) -> None:
    await stage.machine("a", "i-1")
    stage.say(SPOT_WARNING, "i-1")
    stage.server.inject_fault(Conflict("changed"), verb="patch", plural="nodes")
    await stage.round()
    assert await stage.ending() == ["a"]


@pytest.mark.parametrize(
    ("period", "mode"), [(None, "graceful"), ("0s", "forceful"), ("10m", "eventual")], ids=["none", "zero", "some"]
)
async def test_an_interruption_counts_with_the_mode_of_the_claims_own_period(
    stage: Stage, period: str | None, mode: str
) -> None:
    """K15-A58: whatever kind of interruption it is; and no policy of consolidation has to do with it."""
    counting = partial(nodeclaim_deletion.count_disrupted, Counting(stage.metrics, ClusterState()))
    effects = interruption_handling.InterruptionEffects(lambda *_: None, lambda *_: None, counting)
    stage.responder = interruption_handling.InterruptionHandler(stage, stage.kube, stage.recorder, stage.clock, effects)
    stage.queue = InterruptionQueueController("prod", stage.sqs, stage.responder, stage.interruptions, stage.clock)
    await stage.machine("a", "i-1", termination_grace_period=period)
    stage.say(SPOT_WARNING, "i-1")
    await stage.round()
    described = {
        "reason": "spot_interrupted",
        "nodepool": "np",
        "capacity_type": "spot",
        "consolidation_policy": "",
        "termination_mode": mode,
    }
    assert stage.count("karpenter_nodeclaims_disrupted_total", **described) == 1


def test_the_page_about_metrics_names_every_kind_of_message() -> None:
    """K15-A102: nine kinds; ``no_op`` is counted as received, too."""
    kinds = {str(kind) for kind in InterruptionKind}
    assert len(kinds - {"no_op"}) == 9
    page = (Path(__file__).parents[4] / "docs" / "metrics.md").read_text(encoding="utf-8")
    (row,) = [
        line for line in page.splitlines() if line.startswith("| `karpenter_interruption_received_messages_total`")
    ]
    assert {kind for kind in kinds if f"`{kind}`" in row} == kinds
