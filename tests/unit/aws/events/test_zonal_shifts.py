"""Zonal shifts of the cluster (AWS §13.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from karpenter.api.ec2_node_class import EC2NodeClass, EC2NodeClassStatus, Subnet
from karpenter.api.kinds import NODE_POOL
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_types import ZonalShift
from karpenter.providers.aws.interruption.interruption_controllers import ZonalShiftController
from karpenter.providers.contract import ProviderError
from support.builders import node_pool, wanted
from support.interruption_cluster import FakeAwsCluster

CLASS = EC2NodeClass(
    status=EC2NodeClassStatus(
        subnets=(
            Subnet(id="subnet-a", zone="us-east-1a", zone_id="use1-az1"),
            Subnet(id="subnet-b", zone="us-east-1b", zone_id="use1-az2"),
        )
    )
)


@dataclass
class FakeZonalShifts:
    """Answers with configured zonal shifts."""

    shifts: list[ZonalShift] = field(default_factory=list)
    error: AwsError | None = None

    async def get_managed_resource(self, arn: str) -> tuple[ZonalShift, ...]:
        assert arn == "arn:prod"
        if self.error is not None:
            raise self.error
        return tuple(self.shifts)


class ZonalShiftCluster(FakeAwsCluster):
    def __init__(self) -> None:
        super().__init__()
        self.port = FakeZonalShifts()
        self.shifts = ZonalShiftController("arn:prod", self.port, self, self.recorder, self.clock)

    def node_class_named(self, name: str) -> EC2NodeClass:
        return CLASS

    def shift(self, zone: str, status: str = "APPLIED", minutes: float = 60) -> None:
        until = self.clock.now() + timedelta(minutes=minutes)
        self.port.shifts.append(ZonalShift(away_from=zone, applied_status=status, expiry_time=until))

    async def reconcile(self) -> None:
        await self.sync()
        assert await self.shifts.reconcile() == 30.0


@pytest.fixture
def cluster() -> ZonalShiftCluster:
    return ZonalShiftCluster()


async def test_only_an_applied_shift_counts_and_node_pools_get_an_event(cluster: ZonalShiftCluster) -> None:
    """AWS-T607, AWS-615, AWS-617, OPS-543: NodePools get an event at its start and end."""
    await cluster.pool()
    cluster.shift("use1-az1", "PENDING")
    await cluster.reconcile()
    assert cluster.shifts.shifted_zone_ids() == frozenset()
    cluster.port.shifts.clear()
    cluster.shift("use1-az1")
    await cluster.reconcile()
    await cluster.reconcile()
    assert cluster.shifts.shifted_zone_ids() == {"use1-az1"}
    cluster.port.shifts.clear()
    await cluster.reconcile()
    assert cluster.shifts.shifted_zone_ids() == frozenset()
    assert cluster.recorder.events == [
        ("Warning", "NodePool", "np", "ZonalShiftActive"),
        ("Normal", "NodePool", "np", "ZonalShiftCleared"),
    ]


async def test_a_shift_that_is_older_than_the_process_is_reported_once_pools_are_known(
    cluster: ZonalShiftCluster,
) -> None:
    """AWS-617, AWS-618: at startup the informers are not synced yet."""
    cluster.shift("use1-az1")
    await cluster.shifts.hydrate()
    assert cluster.shifts.shifted_zone_ids() == {"use1-az1"}
    await cluster.pool()
    await cluster.reconcile()
    await cluster.reconcile()
    assert cluster.recorder.events == [("Warning", "NodePool", "np", "ZonalShiftActive")]


async def test_a_shift_ends_at_its_expiry_without_a_call(cluster: ZonalShiftCluster) -> None:
    """AWS-T608: calls refused in a shifted zone work after the expiry."""
    cluster.shift("use1-az1", minutes=10)
    await cluster.reconcile()
    cluster.clock.advance(minutes=9, seconds=59)
    assert cluster.shifts.shifted_zone_ids() == {"use1-az1"}
    cluster.clock.advance(seconds=1)
    assert cluster.shifts.shifted_zone_ids() == frozenset()


async def test_a_cancelled_shift_ends_at_once(cluster: ZonalShiftCluster) -> None:
    """AWS-619 Beyond."""
    cluster.shift("use1-az1")
    cluster.shift("use1-az2")
    await cluster.reconcile()
    del cluster.port.shifts[0]
    await cluster.reconcile()
    assert cluster.shifts.shifted_zone_ids() == {"use1-az2"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("topology.kubernetes.io/zone", "us-east-1b", id="AWS-T609"),
        pytest.param("topology.k8s.aws/zone-id", "use1-az2", id="by zone id"),
    ],
)
async def test_pools_that_exclude_the_zone_get_no_event(cluster: ZonalShiftCluster, key: str, value: str) -> None:
    await cluster.kube.create(NODE_POOL, node_pool("np", (wanted(key, "In", value),)))
    cluster.shift("use1-az1")
    await cluster.reconcile()
    assert cluster.recorder.events == []


async def test_pools_without_a_subnet_in_the_zone_get_no_event(cluster: ZonalShiftCluster) -> None:
    """AWS-617."""
    await cluster.pool()
    cluster.shift("use1-az9")
    await cluster.reconcile()
    assert cluster.shifts.shifted_zone_ids() == {"use1-az9"}
    assert cluster.recorder.events == []


async def test_an_error_means_no_shift_at_the_start_and_no_change_later(cluster: ZonalShiftCluster) -> None:
    """AWS-618."""
    cluster.port.error = AwsError("Timeout", "late")
    with capture_logs() as lines:
        await cluster.shifts.hydrate()
    assert [line["event"] for line in lines] == ["failed hydrating zonal shifts"]
    assert cluster.shifts.shifted_zone_ids() == frozenset()
    cluster.port.error = None
    cluster.shift("use1-az1")
    await cluster.reconcile()
    cluster.port.error = AwsError("Timeout", "late")
    with pytest.raises(ProviderError):
        await cluster.shifts.reconcile()
    assert cluster.shifts.shifted_zone_ids() == {"use1-az1"}
