"""Requests of selectors to EC2, and the status from their answers (AWS §4, AWS-088 to AWS-095)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from karpenter.api.ec2_node_class import (
    AMISelectorTerm,
    CapacityReservationSelectorTerm,
    PlacementGroupSelector,
    SecurityGroupSelectorTerm,
    SubnetSelectorTerm,
)
from karpenter.providers.aws.aws_apis import ImageQuery, PlacementGroupQuery, ReservationQuery
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_types import Ec2Filter, tag_list
from karpenter.providers.aws.ec2_descriptions import CapacityReservationInfo, PlacementGroupInfoEntry, SecurityGroupInfo
from karpenter.providers.aws.nodeclass import selector_queries
from karpenter.providers.aws.nodeclass.nodeclass_controller import NodeClassReconcileFailed
from support.fake_node_class_services import START, THROTTLED
from support.node_class_environment import NodeClassEnvironment, subnet


def of(name: str, *values: str) -> Ec2Filter:
    return Ec2Filter(name=name, values=values)


AVAILABLE, ACTIVE = of("state", "available"), of("state", "active")


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        pytest.param(
            [SubnetSelectorTerm(tags={"a": "1", "b": "2"})], [(of("tag:a", "1"), of("tag:b", "2"))], id="AWS-T140"
        ),
        pytest.param(
            [SubnetSelectorTerm(tags={"a": "1"}), SubnetSelectorTerm(tags={"b": "2"})],
            [(of("tag:a", "1"),), (of("tag:b", "2"),)],
            id="AWS-T141",
        ),
        pytest.param(
            [SubnetSelectorTerm(id="s1"), SubnetSelectorTerm(id="s2"), SubnetSelectorTerm(tags={"Name": "x"})],
            [(of("subnet-id", "s1", "s2"),), (of("tag:Name", "x"),)],
            id="AWS-T142",
        ),
        pytest.param(
            [SubnetSelectorTerm(tags={"karpenter.sh/discovery": "*"})],
            [(of("tag-key", "karpenter.sh/discovery"),)],
            id="AWS-T143",
        ),
        pytest.param([SubnetSelectorTerm(tags={"a": "web-*"})], [(of("tag:a", "web-*"),)], id="AWS-141-wildcard"),
        pytest.param([SubnetSelectorTerm(id="s1", tags={"a": "1"})], [(of("subnet-id", "s1"),)], id="AWS-052-id-wins"),
        pytest.param([], [], id="AWS-145"),
        pytest.param([SubnetSelectorTerm()], [], id="an-empty-term-does-not-ask-for-everything"),
    ],
)
def test_the_requests_for_subnets(terms: list[SubnetSelectorTerm], expected: list[tuple[Ec2Filter, ...]]) -> None:
    assert list(selector_queries.subnet_filters(terms)) == expected


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        pytest.param(
            [SecurityGroupSelectorTerm(name="n1"), SecurityGroupSelectorTerm(name="n2")],
            [(of("group-name", "n1", "n2"),)],
            id="AWS-T144",
        ),
        pytest.param(
            [SecurityGroupSelectorTerm(id="sg-1", name="n", tags={"a": "1"})], [(of("group-id", "sg-1"),)], id="id-wins"
        ),
        pytest.param(
            [SecurityGroupSelectorTerm(name="n", tags={"a": "1"})], [(of("group-name", "n"),)], id="then-the-name"
        ),
    ],
)
def test_the_requests_for_security_groups(
    terms: list[SecurityGroupSelectorTerm], expected: list[tuple[Ec2Filter, ...]]
) -> None:
    """AWS-052, AWS-142"""
    assert list(selector_queries.security_group_filters(terms)) == expected


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        pytest.param(
            AMISelectorTerm(name="web-*"),
            ImageQuery((of("name", "web-*"), AVAILABLE), ("self", "amazon")),
            id="AWS-T187",
        ),
        pytest.param(
            AMISelectorTerm(name="web", owner="1"), ImageQuery((of("name", "web"), AVAILABLE), ("1",)), id="AWS-193"
        ),
        pytest.param(AMISelectorTerm(tags={"a": "1"}), ImageQuery((of("tag:a", "1"), AVAILABLE)), id="AWS-T188"),
        pytest.param(
            AMISelectorTerm(tags={"a": "1"}, owner="1"), ImageQuery((of("tag:a", "1"), AVAILABLE), ("1",)), id="AWS-194"
        ),
        pytest.param(
            AMISelectorTerm(tags={"a": "1"}, name="web"),
            ImageQuery((of("name", "web"), of("tag:a", "1"), AVAILABLE), ("self", "amazon")),
            id="AWS-194-with-a-name",
        ),
        pytest.param(AMISelectorTerm(id="ami-1"), ImageQuery((of("image-id", "ami-1"), AVAILABLE)), id="AWS-191"),
    ],
)
def test_the_requests_for_images(term: AMISelectorTerm, expected: ImageQuery) -> None:
    assert selector_queries.image_queries([term], ()) == (expected,)


def test_image_ids_and_ids_from_parameters_are_one_query() -> None:
    """AWS-191, AWS-053"""
    terms = [
        AMISelectorTerm(id="ami-1"),
        AMISelectorTerm(ssm_parameter="/p", name="ignored"),
        AMISelectorTerm(id="ami-2"),
    ]
    assert selector_queries.image_queries(terms, ["ami-9"]) == (
        ImageQuery((of("image-id", "ami-1", "ami-2", "ami-9"), AVAILABLE)),
    )


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        pytest.param(CapacityReservationSelectorTerm(id="cr-1"), ReservationQuery(("cr-1",), (ACTIVE,)), id="AWS-148"),
        pytest.param(
            CapacityReservationSelectorTerm(owner_id="111122223333", tags={"x": "y"}),
            ReservationQuery((), (ACTIVE, of("owner-id", "111122223333"), of("tag:x", "y"))),
            id="AWS-T146",
        ),
        pytest.param(
            CapacityReservationSelectorTerm(instance_match_criteria="targeted"),
            ReservationQuery((), (ACTIVE, of("instance-match-criteria", "targeted"))),
            id="AWS-148-criteria",
        ),
    ],
)
def test_the_requests_for_capacity_reservations(
    term: CapacityReservationSelectorTerm, expected: ReservationQuery
) -> None:
    assert selector_queries.reservation_query(term) == expected


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (PlacementGroupSelector(id="pg-1"), PlacementGroupQuery(ids=("pg-1",))),
        (PlacementGroupSelector(name="tight"), PlacementGroupQuery(names=("tight",))),
    ],
)
def test_the_requests_for_placement_groups(selector: PlacementGroupSelector, expected: PlacementGroupQuery) -> None:
    """AWS-153"""
    assert selector_queries.placement_group_query(selector) == expected


# -- subnets and groups ------------------------------------------------------------------------------------------------------


async def test_subnets_with_the_most_free_addresses_come_first() -> None:
    """AWS-T082, AWS-143, API-370: then by ID."""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.subnets = [subnet("subnet-a", 50), subnet("subnet-c", 100), subnet("subnet-b", 100)]
    await environment.create()
    await environment.reconcile()
    assert [subnet.id for subnet in (await environment.get()).status.subnets] == ["subnet-b", "subnet-c", "subnet-a"]
    assert environment.addresses == {"subnet-a": 50, "subnet-b": 100, "subnet-c": 100}


async def test_results_of_selectors_are_logged_when_they_change() -> None:
    """AWS-146: a log line per minute and class would hide relevant lines."""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    logged = []
    for change in (lambda: None, lambda: None, lambda: environment.ec2.subnets.pop()):
        change()
        with capture_logs() as lines:
            await environment.reconcile()
        environment.clock.advance(seconds=61)
        logged.append(sorted(line["event"] for line in lines if line["event"].startswith("discovered s")))
    assert logged == [["discovered security groups", "discovered subnets"], [], ["discovered subnets"]]


async def test_deleted_subnets_are_removed_from_the_status() -> None:
    """AWS-088"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create()
    await environment.reconcile()
    environment.ec2.subnets = []
    environment.clock.advance(seconds=61)
    assert await environment.reconcile() == 60
    assert (await environment.get()).status.subnets == ()
    assert await environment.condition("SubnetsReady") == ("False", "SubnetsNotFound")


async def test_a_subnet_matched_by_two_terms_is_listed_once() -> None:
    """AWS-140"""
    environment = NodeClassEnvironment().with_resources()
    terms = (SubnetSelectorTerm(id="subnet-a"), SubnetSelectorTerm(tags={"team": "a"}))
    await environment.create(subnet_selector_terms=terms)
    await environment.reconcile()
    assert [subnet.id for subnet in (await environment.get()).status.subnets] == ["subnet-b", "subnet-a"]
    assert len(environment.ec2.asked("DescribeSubnets")) == 2


async def test_security_groups_have_their_own_refresh_interval() -> None:
    """K15-A05: by class and generation; subnets have their own interval."""
    environment = NodeClassEnvironment(security_group_refresh_interval=timedelta(minutes=4)).with_resources()
    await environment.create()
    asked = []
    for seconds in (0, 61, 178, 2):
        environment.clock.advance(seconds=seconds)
        await environment.reconcile()
        asked.append(len(environment.ec2.asked("DescribeSecurityGroups")))
    assert asked == [1, 1, 1, 2]
    await environment.change({"securityGroupSelectorTerms": [{"id": "sg-1"}]})
    await environment.reconcile()
    assert len(environment.ec2.asked("DescribeSecurityGroups")) == 3


async def test_groups_are_listed_by_id() -> None:
    """AWS-090, API-371: the order is stable."""
    environment = NodeClassEnvironment().with_resources()
    own = tag_list({"team": "a"})
    environment.ec2.groups = [SecurityGroupInfo(group_id=name, vpc_id="vpc-1", tags=own) for name in ("sg-2", "sg-1")]
    await environment.create()
    await environment.reconcile()
    assert [security_group.id for security_group in (await environment.get()).status.security_groups] == [
        "sg-1",
        "sg-2",
    ]


async def test_subnets_of_several_vpcs_give_one_warning() -> None:
    """AWS §4, its Beyond"""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.subnets.append(subnet("subnet-z", vpc="vpc-2"))
    await environment.create()
    await environment.reconcile()
    environment.clock.advance(minutes=2)
    await environment.reconcile()
    assert environment.recorder.of("SubnetsInSeveralVPCs") == ["selected subnets lie in 2 VPCs: vpc-1, vpc-2"]


async def test_a_security_group_of_another_vpc_gives_a_warning() -> None:
    """AWS §4, its Beyond"""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.groups.append(SecurityGroupInfo(group_id="sg-9", vpc_id="vpc-9", tags=tag_list({"team": "a"})))
    await environment.create()
    await environment.reconcile()
    (message,) = environment.recorder.of("SecurityGroupSubnetVPCMismatch")
    assert "sg-9 (vpc-9)" in message
    assert "sg-1" not in message


# -- capacity reservations ---------------------------------------------------------------------------------------------------

BY_TAGS = (CapacityReservationSelectorTerm(tags={"x": "y"}),)


def reserved(
    name: str, minutes: float | None = None, type_: str = "default", **more: object
) -> CapacityReservationInfo:
    return CapacityReservationInfo(
        capacity_reservation_id=name,
        owner_id="111122223333",
        instance_type="m5.large",
        availability_zone="us-west-2a",
        instance_match_criteria=str(more.get("criteria", "targeted")),
        reservation_type=type_,
        available_instance_count=7,
        end_date=None if minutes is None else START + timedelta(minutes=minutes),
    )


async def test_a_missing_reservation_is_left_out_without_an_error() -> None:
    """AWS-T145, AWS-091"""
    environment = NodeClassEnvironment().with_resources()
    await environment.create(capacity_reservation_selector_terms=(CapacityReservationSelectorTerm(id="cr-1"),))
    assert await environment.reconcile() == 60
    assert (await environment.get()).status.capacity_reservations == ()
    assert await environment.condition("CapacityReservationsReady") == ("True", "CapacityReservationsReady")


async def test_reservations_that_cannot_be_read_fail_the_pass_and_are_read_again_after_a_minute() -> None:
    """API-661: earlier results stay in the status."""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.reservations = [reserved("cr-1")]
    await environment.create(capacity_reservation_selector_terms=BY_TAGS)
    assert await environment.reconcile() == 60
    environment.ec2.refuse("DescribeCapacityReservations", THROTTLED)
    environment.clock.advance(minutes=2)
    with pytest.raises(NodeClassReconcileFailed, match="RequestLimitExceeded"):
        await environment.reconcile()
    assert [found.id for found in (await environment.get()).status.capacity_reservations] == ["cr-1"]
    environment.ec2.refuse("DescribeCapacityReservations", None)
    assert await environment.reconcile() == 60


@pytest.mark.parametrize(
    ("type_", "minutes", "state"),
    [
        pytest.param("capacity-block", 39, "expiring", id="AWS-T147-39-minutes"),
        pytest.param("capacity-block", 41, "active", id="AWS-T147-41-minutes"),
        pytest.param("default", 10, "active", id="AWS-T148"),
        pytest.param("", 10, "active", id="AWS-151"),
    ],
)
async def test_a_capacity_block_expires_forty_minutes_before_its_end(type_: str, minutes: float, state: str) -> None:
    """AWS-152, API-373: only a capacity block has the state `expiring`."""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.reservations = [reserved("cr-1", minutes, type_)]
    await environment.create(capacity_reservation_selector_terms=BY_TAGS)
    await environment.reconcile()
    (reservation,) = (await environment.get()).status.capacity_reservations
    assert (reservation.state, reservation.reservation_type) == (state, type_ or "default")
    assert environment.units == {"cr-1": 7}


async def test_unsupported_and_expired_reservations_are_left_out() -> None:
    """AWS-092, AWS-150"""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.reservations = [
        reserved("cr-4"),
        reserved("cr-3", type_="lease"),
        reserved("cr-2", criteria="any"),
        reserved("cr-1"),
        reserved("cr-0", minutes=0),
    ]
    await environment.create(capacity_reservation_selector_terms=BY_TAGS)
    await environment.reconcile()
    assert [reservation.id for reservation in (await environment.get()).status.capacity_reservations] == [
        "cr-1",
        "cr-4",
    ]


async def test_a_class_is_reconciled_when_its_reservation_expires() -> None:
    """AWS-092"""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.reservations = [reserved("cr-1", minutes=0.5)]
    await environment.create(capacity_reservation_selector_terms=BY_TAGS)
    assert await environment.reconcile() == 30


async def test_two_classes_with_equal_terms_read_reservations_once() -> None:
    """AWS-149"""
    environment = NodeClassEnvironment().with_resources()
    for name in ("default", "other"):
        await environment.create(name, capacity_reservation_selector_terms=BY_TAGS)
        await environment.reconcile(name)
    assert len(environment.ec2.asked("DescribeCapacityReservations")) == 1


# -- placement groups --------------------------------------------------------------------------------------------------------

TIGHT = PlacementGroupSelector(name="tight")


async def test_a_known_placement_group_is_kept_while_ec2_does_not_answer() -> None:
    """AWS-T149, AWS-093, AWS-154"""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.placement_groups = [
        PlacementGroupInfoEntry(group_id="pg-1", group_name="tight", strategy="cluster")
    ]
    await environment.create(placement_group_selector=TIGHT)
    await environment.reconcile()
    assert await environment.condition("PlacementGroupReady") == ("True", "PlacementGroupReady")
    environment.ec2.refuse("DescribePlacementGroups", THROTTLED)
    environment.clock.advance(minutes=2)
    with pytest.raises(NodeClassReconcileFailed):
        await environment.reconcile()
    assert await environment.condition("PlacementGroupReady") == ("False", "PlacementGroupResolutionFailed")
    group_info_entry = environment.made.placement_groups.cached(await environment.get())
    assert group_info_entry is not None
    assert group_info_entry.group_id == "pg-1"


@pytest.mark.parametrize("error", [None, AwsError("InvalidPlacementGroup.Unknown", "unknown", status=400)])
async def test_a_missing_placement_group_is_reported_and_waited_for(error: AwsError | None) -> None:
    """AWS-094 and its Beyond. API-662: PlacementGroupReady is False."""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.refuse("DescribePlacementGroups", error)
    await environment.create(placement_group_selector=TIGHT)
    assert await environment.reconcile() == 60
    assert await environment.condition("PlacementGroupReady") == ("False", "PlacementGroupNotFound")
    environment.ec2.refuse("DescribePlacementGroups", None)
    environment.ec2.placement_groups = [
        PlacementGroupInfoEntry(group_id="pg-1", group_name="tight", strategy="cluster")
    ]
    environment.clock.advance(minutes=1)
    await environment.reconcile()
    assert await environment.condition("PlacementGroupReady") == ("True", "PlacementGroupReady")


async def test_a_deleted_placement_group_is_not_used_for_launches() -> None:
    """AWS-154, its Beyond"""
    environment = NodeClassEnvironment().with_resources()
    environment.ec2.placement_groups = [
        PlacementGroupInfoEntry(group_id="pg-1", group_name="tight", strategy="cluster")
    ]
    await environment.create(placement_group_selector=TIGHT)
    await environment.reconcile()
    environment.ec2.placement_groups = []
    environment.clock.advance(minutes=1)
    await environment.reconcile()
    assert await environment.condition("PlacementGroupReady") == ("False", "PlacementGroupNotFound")
    assert environment.made.placement_groups.cached(await environment.get()) is None
