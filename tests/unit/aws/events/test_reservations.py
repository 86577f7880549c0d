"""Instances in capacity reservations that expire or that they have left (AWS §13.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from karpenter.api.kinds import NODE, NODE_CLAIM
from karpenter.kube.errors import Conflict
from karpenter.model import labels
from karpenter.providers.aws.aws_apis import ReservationQuery
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.ec2_descriptions import CapacityReservationInfo
from karpenter.providers.aws.interruption.capacity_reservation_controllers import (
    CapacityReservationExpiration,
    CapacityTypeCorrection,
)
from karpenter.providers.contract import Instance, ProviderError
from support.builders import NOW
from support.interruption_cluster import SPOT, FakeAwsCluster, provider_id

TYPE = "karpenter.k8s.aws/capacity-reservation-type"
INTERRUPTIBLE = "karpenter.k8s.aws/capacity-reservation-interruptible"


def reserved(reservation: str) -> dict[str, str]:
    return {
        **SPOT,
        labels.CAPACITY_TYPE: labels.RESERVED,
        labels.RESERVATION_ID: reservation,
        TYPE: "default",
        INTERRUPTIBLE: "false",
    }


@dataclass
class Ec2:
    """Describes reservations by id; an unknown id fails the whole call."""

    known: dict[str, CapacityReservationInfo] = field(default_factory=dict)
    error: AwsError | None = None
    asked: int = 0

    async def describe_capacity_reservations(self, query: ReservationQuery) -> tuple[CapacityReservationInfo, ...]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        if not set(query.ids) <= set(self.known):
            raise AwsError("InvalidCapacityReservationId.NotFound", "no such reservation")
        return tuple(self.known[name] for name in query.ids)


class ReservationCluster(FakeAwsCluster):
    def __init__(self) -> None:
        super().__init__()
        self.ec2 = Ec2()
        self.loop = CapacityReservationExpiration(self.ec2, self, self.kube, self.clock)

    def reservation(self, name: str, kind: str, minutes: float) -> None:
        end = self.clock.now() + timedelta(minutes=minutes)
        self.ec2.known[name] = CapacityReservationInfo(
            capacity_reservation_id=name, reservation_type=kind, end_date=end, state="active"
        )

    async def reconcile(self) -> None:
        await self.sync()
        assert await self.loop.reconcile() == 60.0


async def test_claims_of_a_capacity_block_are_deleted_forty_minutes_before_it_expires() -> None:
    """AWS-T602, AWS-603, DIS-369: their claims are deleted."""
    cluster = ReservationCluster()
    cluster.reservation("cr-39", "capacity-block", 39)
    cluster.reservation("cr-41", "capacity-block", 41)
    await cluster.add_instance("a", "i-1", reserved("cr-39"))
    await cluster.add_instance("b", "i-2", reserved("cr-41"))
    await cluster.add_instance("c", "i-3")
    await cluster.reconcile()
    assert await cluster.deleted_claims() == ["a"]
    assert labels.TERMINATION_TIMESTAMP not in (await cluster.claim("a")).metadata.annotations
    cluster.clock.advance(minutes=1)
    await cluster.reconcile()
    assert await cluster.deleted_claims() == ["a", "b"]


async def test_instances_of_an_expired_default_reservation_keep_running() -> None:
    """AWS-604."""
    cluster = ReservationCluster()
    cluster.reservation("cr-1", "default", -60)
    await cluster.add_instance("a", "i-1", reserved("cr-1"))
    await cluster.reconcile()
    assert await cluster.deleted_claims() == []


async def test_an_unknown_reservation_does_not_hide_the_others() -> None:
    cluster = ReservationCluster()
    cluster.reservation("cr-1", "capacity-block", 10)
    await cluster.add_instance("a", "i-1", reserved("cr-1"))
    await cluster.add_instance("b", "i-2", reserved("cr-unknown"))
    await cluster.reconcile()
    assert await cluster.deleted_claims() == ["a"]


async def test_without_reserved_instances_ec2_is_not_called() -> None:
    cluster = ReservationCluster()
    await cluster.add_instance("a", "i-1")
    await cluster.reconcile()
    assert cluster.ec2.asked == 0


async def test_an_error_of_ec2_is_raised() -> None:
    cluster = ReservationCluster()
    cluster.ec2.error = AwsError("InternalError", "boom", status=500)
    await cluster.add_instance("a", "i-1", reserved("cr-1"))
    with pytest.raises(ProviderError):
        await cluster.loop.reconcile()


class CapacityTypeCluster(FakeAwsCluster):
    def __init__(self) -> None:
        super().__init__()
        self.now_are: dict[str, str] = {}
        self.asked = 0
        self.loop = CapacityTypeCorrection(self.instances, self, self.kube)

    async def instances(self) -> tuple[Instance, ...]:
        self.asked += 1
        return tuple(
            Instance(provider_id(name), "", {labels.CAPACITY_TYPE: capacity_type}, {}, {}, NOW)
            for name, capacity_type in self.now_are.items()
        )

    async def reconcile(self) -> float:
        await self.sync()
        return await self.loop.reconcile()

    async def labels_of(self, name: str) -> tuple[set[str], set[str]]:
        """Capacity type and reservation labels of the claim, and of its Node."""
        claim, node = (await self.claim(name)).metadata.labels, (await self.node(name)).metadata.labels
        keys = (labels.CAPACITY_TYPE, labels.RESERVATION_ID, TYPE, INTERRUPTIBLE)
        return {claim[key] for key in keys if key in claim}, {node[key] for key in keys if key in node}


RESERVED = {"reserved", "cr-1", "default", "false"}


async def test_an_instance_that_left_its_reservation_becomes_on_demand() -> None:
    """AWS-T603, AWS-605, AWS-T564, DIS-358: the labels of the reservation are removed."""
    cluster = CapacityTypeCluster()
    await cluster.add_instance("a", "i-1", reserved("cr-1"))
    cluster.now_are = {"i-1": labels.ON_DEMAND}
    assert await cluster.reconcile() == 60.0
    assert await cluster.labels_of("a") == ({"on-demand"}, {"on-demand"})


async def test_without_reserved_claims_no_instances_are_read() -> None:
    """Reading them once a minute caused a third of the calls of an idle cluster with 500 nodes."""
    cluster = CapacityTypeCluster()
    await cluster.add_instance("a", "i-1", SPOT)
    assert await cluster.reconcile() == 60.0
    assert cluster.asked == 0
    await cluster.add_instance("b", "i-2", reserved("cr-1"))
    await cluster.reconcile()
    assert cluster.asked == 1


async def test_a_node_is_corrected_once_it_is_registered() -> None:
    """AWS-T604."""
    cluster = CapacityTypeCluster()
    await cluster.add_instance("a", "i-1", reserved("cr-1"), registered=False)
    cluster.now_are = {"i-1": labels.ON_DEMAND}
    await cluster.reconcile()
    assert await cluster.labels_of("a") == ({"on-demand"}, RESERVED)
    await cluster.kube.patch(NODE, "node-a", {"metadata": {"labels": {labels.REGISTERED: "true"}}})
    await cluster.reconcile()
    assert await cluster.labels_of("a") == ({"on-demand"}, {"on-demand"})


async def test_reserved_labels_stay_and_on_demand_claims_do_not_become_reserved() -> None:
    """AWS-T605."""
    cluster = CapacityTypeCluster()
    await cluster.add_instance("a", "i-1", {**SPOT, labels.CAPACITY_TYPE: labels.ON_DEMAND})
    await cluster.add_instance("b", "i-2", reserved("cr-1"))
    cluster.now_are = {"i-1": labels.RESERVED, "i-2": labels.RESERVED}
    await cluster.reconcile()
    assert await cluster.labels_of("a") == ({"on-demand"}, {"on-demand"})
    assert await cluster.labels_of("b") == (RESERVED, RESERVED)


async def test_a_claim_being_deleted_is_not_changed() -> None:
    """AWS-605."""
    cluster = CapacityTypeCluster()
    await cluster.add_instance("a", "i-1", reserved("cr-1"))
    await cluster.kube.delete(NODE_CLAIM, "a")
    cluster.now_are = {"i-1": labels.ON_DEMAND}
    await cluster.reconcile()
    assert await cluster.labels_of("a") == (RESERVED, RESERVED)


async def test_after_a_conflict_the_next_reconcile_follows_at_once() -> None:
    """AWS-605."""
    cluster = CapacityTypeCluster()
    await cluster.add_instance("a", "i-1", reserved("cr-1"))
    cluster.now_are = {"i-1": labels.ON_DEMAND}
    cluster.server.inject_fault(Conflict("changed"), verb="patch")
    assert await cluster.reconcile() == 0.0
    assert await cluster.reconcile() == 60.0
    assert await cluster.labels_of("a") == ({"on-demand"}, {"on-demand"})
