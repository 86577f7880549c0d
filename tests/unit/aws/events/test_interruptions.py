"""Handling of messages about interruptions and unhealthy instances (AWS §§14.1-14.3)."""

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
from support.interruption_cluster import SPOT, FakeAwsCluster


class Counting(NamedTuple):
    """Metrics and state that count disruptions."""

    metrics: Metrics
    state: ClusterState


SPOT_WARNING = "EC2 Spot Instance Interruption Warning"
REBALANCE = "EC2 Instance Rebalance Recommendation"
RESERVATION = "EC2 Capacity Reservation Instance Interruption Warning"
STATE = "EC2 Instance State-change Notification"


@dataclass
class Sqs:
    """A queue in memory; ``missing`` means that it does not exist."""

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


class InterruptionCluster(FakeAwsCluster):
    """A cluster with an interruption queue and its controller."""

    def __init__(self) -> None:
        super().__init__()
        self.sqs = Sqs()
        self.queue = InterruptionQueueController("prod", self.sqs, self.handler, self.interruptions, self.clock)

    def send(self, detail_type: str, instance: str, source: str = "aws.ec2", **detail: Any) -> None:
        text = json.dumps(
            {
                "version": "0",
                "source": source,
                "detail-type": detail_type,
                "time": rfc3339(self.clock.now()),
                "detail": {"instance-id": instance, **detail},
            }
        )
        self.send_text(text)

    def send_text(self, body: str | None) -> None:
        handle = f"handle-{len(self.sqs.waiting) + len(self.sqs.deleted)}"
        self.sqs.waiting.append(SqsMessage(message_id=handle, receipt_handle=handle, body=body))

    async def reconcile(self) -> None:
        await self.sync()
        assert await self.queue.reconcile() == 0.0

    def received(self, kind: str) -> float:
        return self.count("karpenter_interruption_received_messages_total", message_type=kind)


@pytest.fixture
def cluster() -> InterruptionCluster:
    return InterruptionCluster()


async def test_a_spot_interruption_warning_deletes_the_claim_and_marks_its_offering_unavailable(
    cluster: InterruptionCluster,
) -> None:
    """NodeClaim and Node get events, the offering becomes unavailable.

    AWS-T640, AWS-656, AWS-657, AWS-659, AWS-786, DIS-370, OPS-540.
    DIS-S268, DIS-376: Node and NodeClaim get TerminatingOnInterruption.
    """
    await cluster.add_instance("a", "i-1")
    cluster.send(SPOT_WARNING, "i-1")
    cluster.clock.advance(seconds=3)
    await cluster.reconcile()
    assert await cluster.deleted_claims() == ["a"]
    assert cluster.unavailable == [("m5.large", "us-west-2a")]
    assert cluster.sqs.deleted == ["handle-0"]
    assert cluster.disrupted == [("a", "spot_interrupted")]
    assert cluster.recorder.events == [
        ("Warning", "NodeClaim", "a", "SpotInterrupted"),
        ("Warning", "Node", "node-a", "SpotInterrupted"),
        ("Warning", "NodeClaim", "a", "TerminatingOnInterruption"),
        ("Warning", "Node", "node-a", "TerminatingOnInterruption"),
    ]
    assert cluster.received("spot_interrupted") == 1
    assert cluster.count("karpenter_interruption_deleted_messages_total") == 1
    assert cluster.count("karpenter_interruption_message_queue_duration_seconds_sum") == 3.0


async def test_an_interrupted_spot_node_is_tainted_at_once_and_drained_within_two_minutes(
    cluster: InterruptionCluster,
) -> None:
    """AWS §14.2 Beyond."""
    await cluster.add_instance("a", "i-1")
    cluster.send(SPOT_WARNING, "i-1")
    told_at = cluster.clock.now()
    cluster.clock.advance(seconds=10)
    await cluster.reconcile()
    assert await cluster.is_tainted("a")
    assert "own" in [taint.key for taint in (await cluster.node("a")).spec.taints]
    deadline = (await cluster.claim("a")).metadata.annotations[labels.TERMINATION_TIMESTAMP]
    assert deadline == rfc3339(told_at + timedelta(minutes=2))


async def test_the_earlier_of_two_termination_deadlines_applies(cluster: InterruptionCluster) -> None:
    await cluster.add_instance("a", "i-1")
    await cluster.add_instance("b", "i-2")
    early, late = (
        rfc3339(cluster.clock.now() + timedelta(seconds=30)),
        rfc3339(cluster.clock.now() + timedelta(hours=1)),
    )
    for name, text in (("a", early), ("b", late)):
        patch = {"metadata": {"annotations": {labels.TERMINATION_TIMESTAMP: text}}}
        await cluster.kube.patch(NODE_CLAIM, name, patch)
    cluster.send(SPOT_WARNING, "i-1")
    cluster.send(SPOT_WARNING, "i-2")
    await cluster.reconcile()
    assert (await cluster.claim("a")).metadata.annotations[labels.TERMINATION_TIMESTAMP] == early
    two_minutes = rfc3339(cluster.clock.now() + timedelta(minutes=2))
    assert (await cluster.claim("b")).metadata.annotations[labels.TERMINATION_TIMESTAMP] == two_minutes


async def test_a_claim_being_deleted_gets_a_termination_deadline(cluster: InterruptionCluster) -> None:
    await cluster.add_instance("a", "i-1")
    await cluster.kube.delete(NODE_CLAIM, "a")
    cluster.send(SPOT_WARNING, "i-1")
    await cluster.reconcile()
    assert labels.TERMINATION_TIMESTAMP in (await cluster.claim("a")).metadata.annotations
    assert cluster.recorder.events == []
    assert cluster.disrupted == []


async def test_instances_of_other_clusters_are_ignored(cluster: InterruptionCluster) -> None:
    """AWS-T641, AWS-655."""
    await cluster.add_instance("a", "i-1")
    cluster.send(SPOT_WARNING, "i-2")
    await cluster.reconcile()
    assert await cluster.deleted_claims() == []
    assert cluster.unavailable == []
    assert cluster.recorder.events == []
    assert cluster.sqs.deleted == ["handle-0"]


async def test_a_state_change_to_running_is_ignored(cluster: InterruptionCluster) -> None:
    """AWS-T642."""
    await cluster.add_instance("a", "i-1")
    cluster.send(STATE, "i-1", state="running")
    await cluster.reconcile()
    assert await cluster.deleted_claims() == []
    assert cluster.received("no_op") == 1
    assert cluster.sqs.deleted == ["handle-0"]


@pytest.mark.parametrize(
    ("state", "reason", "kind"),
    [
        pytest.param("shutting-down", "InstanceTerminating", "instance_terminated", id="AWS-T643"),
        pytest.param("STOPPING", "InstanceStopping", "instance_stopped", id="AWS-650"),
    ],
)
async def test_an_instance_that_stops_or_terminates_deletes_its_claim(
    cluster: InterruptionCluster, state: str, reason: str, kind: str
) -> None:
    """DIS-373: stopping and terminating, in every state of it."""
    await cluster.add_instance("a", "i-1")
    cluster.send(STATE, "i-1", state=state)
    await cluster.reconcile()
    assert await cluster.deleted_claims() == ["a"]
    assert ("Warning", "NodeClaim", "a", reason) in cluster.recorder.events
    assert cluster.disrupted == [("a", kind)]
    assert cluster.unavailable == []
    assert labels.TERMINATION_TIMESTAMP not in (await cluster.claim("a")).metadata.annotations


async def test_a_health_event_deletes_the_claims_of_our_instances(cluster: InterruptionCluster) -> None:
    """AWS-T645, DIS-372: their claims are deleted."""
    await cluster.add_instance("a", "i-1")
    await cluster.add_instance("b", "i-2")
    await cluster.add_instance("c", "i-3")
    entities = [{"entityValue": name} for name in ("i-1", "i-3", "i-9")]
    detail = {"service": "EC2", "eventTypeCategory": "scheduledChange", "affectedEntities": entities}
    cluster.send("AWS Health Event", "", "aws.health", **detail)
    await cluster.reconcile()
    assert await cluster.deleted_claims() == ["a", "c"]
    assert ("Warning", "Node", "node-a", "InstanceUnhealthy") in cluster.recorder.events


async def test_a_rebalance_recommendation_is_reported_only(cluster: InterruptionCluster) -> None:
    """AWS-T646, AWS-660, DIS-371, OPS-541: an event, and nothing is deleted. DIS-S269."""
    await cluster.pool()
    await cluster.add_instance("a", "i-1")
    cluster.send(REBALANCE, "i-1")
    await cluster.reconcile()
    assert await cluster.deleted_claims() == []
    assert cluster.recorder.events == [
        ("Normal", "NodeClaim", "a", "SpotRebalanceRecommendation"),
        ("Normal", "Node", "node-a", "SpotRebalanceRecommendation"),
    ]
    assert interruption_handling.replacement_reason(await cluster.claim("a")) == ""


async def test_a_node_pool_can_replace_instances_with_a_rebalance_recommendation(cluster: InterruptionCluster) -> None:
    """AWS §14.2 Beyond: the replacement is launched first, as for drift."""
    await cluster.pool(**{interruption_handling.REBALANCE_ANNOTATION: "replace"})
    await cluster.add_instance("a", "i-1")
    cluster.send(REBALANCE, "i-1")
    await cluster.reconcile()
    assert await cluster.deleted_claims() == []
    assert interruption_handling.replacement_reason(await cluster.claim("a")) == "RebalanceRecommended"


@pytest.mark.parametrize("body", ["garbage", None, '{"version":'], ids=["AWS-T647", "no body", "cut"])
async def test_a_message_that_cannot_be_parsed_is_deleted_and_not_counted(
    cluster: InterruptionCluster, body: str | None
) -> None:
    """AWS-642: it is logged and deleted; ``no_op`` counts messages of other kinds."""
    cluster.send_text(body)
    await cluster.reconcile()
    assert cluster.sqs.deleted == ["handle-0"]
    assert cluster.received("no_op") == 0


async def test_a_message_whose_handling_failed_stays_and_the_others_are_handled(
    cluster: InterruptionCluster,
) -> None:
    """AWS-T648, AWS-643."""
    await cluster.add_instance("a", "i-1")
    await cluster.add_instance("b", "i-2")
    cluster.send(SPOT_WARNING, "i-1")
    cluster.send(SPOT_WARNING, "i-2")
    cluster.server.inject_fault(ServerUnavailable("boom", status=500), verb="delete", name="a")
    await cluster.sync()
    with pytest.raises(ServerUnavailable):
        await cluster.queue.reconcile()
    assert cluster.sqs.deleted == ["handle-1"]
    assert await cluster.deleted_claims() == ["b"]
    await cluster.reconcile()
    assert await cluster.deleted_claims() == ["a", "b"]
    assert cluster.sqs.deleted == ["handle-1", "handle-0"]


async def test_the_messages_of_one_receive_are_handled_concurrently(cluster: InterruptionCluster) -> None:
    """AWS-641: ten warnings with two minutes each are not handled one after the other."""
    for number in range(10):
        await cluster.add_instance(f"claim-{number}", f"i-{number}")
        cluster.send(SPOT_WARNING, f"i-{number}")
    handle, under_way, all_begun = cluster.handler.handle, 0, asyncio.Event()

    async def wait_for_the_others(notice: InterruptionMessage) -> None:
        nonlocal under_way
        under_way += 1
        if under_way == 10:
            all_begun.set()
        await asyncio.wait_for(all_begun.wait(), timeout=5)
        await handle(notice)

    cluster.handler.handle = wait_for_the_others
    await cluster.reconcile()
    assert await cluster.deleted_claims() == sorted(f"claim-{number}" for number in range(10))
    assert len(cluster.sqs.deleted) == 10


async def test_an_interruption_deletes_a_claim_whose_node_has_not_joined(cluster: InterruptionCluster) -> None:
    """AWS-T649."""
    await cluster.add_instance("a", "i-1", joined=False)
    cluster.send(SPOT_WARNING, "i-1")
    await cluster.reconcile()
    assert await cluster.deleted_claims() == ["a"]
    assert {kind for _, kind, _, _ in cluster.recorder.events} == {"NodeClaim"}


async def test_a_repeated_warning_has_no_further_effect(cluster: InterruptionCluster) -> None:
    """AWS-T650."""
    await cluster.add_instance("a", "i-1")
    cluster.send(SPOT_WARNING, "i-1")
    await cluster.reconcile()
    before = await cluster.claim("a")
    events = list(cluster.recorder.events)
    cluster.clock.advance(seconds=20)
    cluster.send(SPOT_WARNING, "i-1")
    await cluster.reconcile()
    assert (await cluster.claim("a")).metadata.resource_version == before.metadata.resource_version
    assert cluster.recorder.events == events
    assert cluster.disrupted == [("a", "spot_interrupted")]
    assert cluster.sqs.deleted == ["handle-0", "handle-1"]


async def test_a_missing_queue_is_looked_up_until_it_exists(cluster: InterruptionCluster) -> None:
    """AWS-T653."""
    await cluster.add_instance("a", "i-1")
    cluster.sqs.missing = True
    for _ in range(2):
        with pytest.raises(ProviderError) as caught:
            await cluster.queue.reconcile()
        assert "there is no interruption queue prod" in str(caught.value)
        assert "--interruption-queue" in str(caught.value)
    cluster.sqs.missing = False
    cluster.send(SPOT_WARNING, "i-1")
    await cluster.reconcile()
    assert await cluster.deleted_claims() == ["a"]
    assert cluster.sqs.asked == 3
    await cluster.reconcile()
    assert cluster.sqs.asked == 3, "the address is kept"


async def test_the_interruption_of_a_reservation_marks_that_reservation(cluster: InterruptionCluster) -> None:
    """K15-A57, K15-A139, AWS-T654, AWS-658, DIS-374: the NodeClaim is deleted."""
    own = {**SPOT, labels.CAPACITY_TYPE: labels.RESERVED, labels.RESERVATION_ID: "cr-1"}
    await cluster.add_instance("a", "i-1", own)
    cluster.send(RESERVATION, "i-1")
    await cluster.reconcile()
    assert cluster.interrupted == [interruption_handling.ReservedOffering("m5.large", "us-west-2a", "cr-1")]
    assert cluster.unavailable == []
    assert await cluster.deleted_claims() == ["a"]
    assert ("Warning", "NodeClaim", "a", "CapacityReservationInstanceInterrupted") in cluster.recorder.events


async def test_an_old_message_does_not_mark_an_offering_unavailable(cluster: InterruptionCluster) -> None:
    """AWS §14.2 Beyond."""
    await cluster.add_instance("a", "i-1")
    cluster.send(SPOT_WARNING, "i-1")
    cluster.clock.advance(minutes=11)
    await cluster.reconcile()
    assert cluster.unavailable == []
    assert await cluster.deleted_claims() == ["a"]
    assert (await cluster.claim("a")).metadata.annotations[labels.TERMINATION_TIMESTAMP] == rfc3339(cluster.clock.now())


async def test_a_node_that_changed_meanwhile_is_left_to_the_deletion_of_its_claim(cluster: InterruptionCluster) -> None:
    await cluster.add_instance("a", "i-1")
    cluster.send(SPOT_WARNING, "i-1")
    cluster.server.inject_fault(Conflict("changed"), verb="patch", plural="nodes")
    await cluster.reconcile()
    assert await cluster.deleted_claims() == ["a"]


@pytest.mark.parametrize(
    ("period", "mode"), [(None, "graceful"), ("0s", "forceful"), ("10m", "eventual")], ids=["none", "zero", "some"]
)
async def test_an_interruption_is_counted_with_the_mode_of_the_claims_grace_period(
    cluster: InterruptionCluster, period: str | None, mode: str
) -> None:
    """K15-A58: for every kind of interruption, and independent of the consolidation policy."""
    counting = partial(nodeclaim_deletion.count_disrupted, Counting(cluster.metrics, ClusterState()))
    effects = interruption_handling.InterruptionEffects(lambda *_: None, lambda *_: None, counting)
    cluster.handler = interruption_handling.InterruptionHandler(
        cluster, cluster.kube, cluster.recorder, cluster.clock, effects
    )
    cluster.queue = InterruptionQueueController(
        "prod", cluster.sqs, cluster.handler, cluster.interruptions, cluster.clock
    )
    await cluster.add_instance("a", "i-1", termination_grace_period=period)
    cluster.send(SPOT_WARNING, "i-1")
    await cluster.reconcile()
    described = {
        "reason": "spot_interrupted",
        "nodepool": "np",
        "capacity_type": "spot",
        "consolidation_policy": "",
        "termination_mode": mode,
    }
    assert cluster.count("karpenter_nodeclaims_disrupted_total", **described) == 1


def test_the_metrics_page_names_every_kind_of_message() -> None:
    """K15-A102: nine kinds; ``no_op`` is counted as received, too."""
    kinds = {str(kind) for kind in InterruptionKind}
    assert len(kinds - {"no_op"}) == 9
    page = (Path(__file__).parents[4] / "docs" / "metrics.md").read_text(encoding="utf-8")
    (row,) = [
        line for line in page.splitlines() if line.startswith("| `karpenter_interruption_received_messages_total`")
    ]
    assert {kind for kind in kinds if f"`{kind}`" in row} == kinds
