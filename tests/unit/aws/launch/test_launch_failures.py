"""Launches that EC2 refuses: the error of the NodeClaim, and the offerings that become unavailable (AWS §9)."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from karpenter.model import labels
from karpenter.providers.aws import aws_errors, aws_labels
from karpenter.providers.aws.aws_errors import AwsError, LaunchRefusal
from karpenter.providers.aws.ec2_requests import (
    FleetAnswer,
    FleetError,
)
from karpenter.providers.aws.instance.launch_effects import LaunchEffects
from karpenter.providers.aws.instancetype.ec2_offerings import OfferingKey
from karpenter.providers.contract import InsufficientCapacity, LaunchFailed, ProviderError
from support.launch_environment import (
    RESERVED_OR_ON_DEMAND,
    LaunchEnvironment,
    claim,
    ec2_type,
    offering,
    planned,
    reserved,
    run_scenario,
)
from support.launch_helpers import LARGE, failures_counted, launch, refusal, refuse_fleets


@pytest.mark.parametrize(
    ("errors", "expected", "reason"),
    [
        pytest.param((), InsufficientCapacity, "", id="AWS-T417"),
        pytest.param((refusal("UnauthorizedOperation"),), LaunchFailed, "Unauthorized", id="AWS-T418"),
        pytest.param((refusal("InvalidAMIID.NotFound"),), LaunchFailed, "AMINotFound", id="AWS-452 row 8"),
    ],
)
def test_the_error_of_a_claim_without_an_instance(
    errors: tuple[FleetError, ...], expected: type[ProviderError], reason: str
) -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        refuse_fleets(environment, *errors)
        with pytest.raises(expected) as refused:
            await launch(environment, LARGE)
        assert getattr(refused.value, "reason", "") == reason

    run_scenario(scenario)


def test_two_refusals_in_one_answer_count_twice() -> None:
    """AWS-T781."""

    async def scenario(environment: LaunchEnvironment) -> None:
        refuse_fleets(environment, refusal("VcpuLimitExceeded", zone="b"))
        with pytest.raises(InsufficientCapacity):
            await launch(environment, ec2_type("m5.large", offerings=[offering(labels.SPOT, "a", 0.04)]))
        assert failures_counted(environment, "a", "LaunchFailed") == 1
        assert failures_counted(environment, "b", "VCPULimitExceeded") == 1
        assert ("one", "QuotaExceeded") in environment.recorded.warnings

    run_scenario(scenario)


@pytest.mark.parametrize(
    "code",
    [
        "InsufficientInstanceCapacity",
        "MaxSpotInstanceCountExceeded",
        "VcpuLimitExceeded",
        "UnfulfillableCapacity",
        "Unsupported",
        "InsufficientFreeAddressesInSubnet",
        "MaxFleetCountExceeded",
        "ReservationCapacityExceeded",
    ],
)
def test_insufficient_capacity_marks_that_offering_unavailable_and_no_other(code: str) -> None:
    """AWS-450, AWS-453: the next pass uses another offering."""

    async def scenario(environment: LaunchEnvironment) -> None:
        refuse_fleets(environment, refusal(code))
        with pytest.raises(InsufficientCapacity):
            await launch(environment, ec2_type("m5.large", offerings=[offering(labels.SPOT, "a", 0.04)]))
        assert set(environment.recorded.unavailable) == {OfferingKey("spot", "m5.large", "a")}

    run_scenario(scenario)


@pytest.mark.parametrize(
    "code", ["InvalidParameterValue", "UnauthorizedOperation", "InvalidAMIID.NotFound", "InternalError"]
)
def test_other_errors_mark_no_offering_unavailable(code: str) -> None:
    """AWS-450: otherwise an error in the class would mark all offerings unavailable, one after the other."""
    refused = aws_errors.LaunchRefusal(code, "no", "m5.large", "a", "s-a")
    assert not any(aws_errors.marks_offering_unavailable(refused, kind) for kind in ("spot", "on-demand", "reserved"))


def test_a_full_reservation_marks_no_spot_or_on_demand_offering_unavailable() -> None:
    """AWS-455: the reservation is counted down instead."""
    refused = aws_errors.LaunchRefusal("ReservationCapacityExceeded", "no", "m5.large", "a", "s-a")
    assert not aws_errors.marks_offering_unavailable(refused, "reserved")
    assert aws_errors.marks_offering_unavailable(refused, "on-demand")


def test_a_burst_reserves_as_many_addresses_as_the_smallest_type_has_pods() -> None:
    """AWS-433: of the types with an offering in the zone."""
    small = ec2_type("m5.large", capacity={"pods": "29"}, offerings=[offering(labels.SPOT, "a", 0.04)])
    large = ec2_type(
        "m5.4xlarge", capacity={"pods": "234"}, offerings=[offering(labels.SPOT, zone, 0.3) for zone in "ab"]
    )
    assert planned(claim("one"), (small, large)).address_needs == {"a": 29, "b": 234}


def test_a_subnet_without_addresses_is_avoided() -> None:
    """AWS-T419, AWS-435."""

    async def scenario(environment: LaunchEnvironment) -> None:
        environment.addresses.set_free({"s-a": 100, "s-b": 100})
        refuse_fleets(environment, refusal("InsufficientFreeAddressesInSubnet"))
        with pytest.raises(InsufficientCapacity):
            await launch(environment, LARGE)
        assert environment.recorded.full_subnets == ["s-a"]
        assert (environment.addresses.free_in("s-a"), environment.addresses.free_in("s-b")) == (0, 100)

    run_scenario(scenario)


def test_a_missing_spot_role_marks_spot_unavailable_and_is_reported_on_the_claim() -> None:
    """AWS-T422, AWS-456. AWS-720, OPS-542, OPS-545: the event has a reason."""

    async def scenario(environment: LaunchEnvironment) -> None:
        refuse_fleets(environment, refusal("AuthFailure.ServiceLinkedRoleCreationNotPermitted"))
        with pytest.raises(InsufficientCapacity):
            await launch(environment, LARGE)
        assert environment.recorded.unavailable_capacity_types == ["spot"]
        assert environment.recorded.warnings == [("one", "SpotServiceLinkedRoleMissing")]
        assert failures_counted(environment, "a", "SpotSLRCreationFailed") == 1

    run_scenario(scenario)


def test_a_full_reservation_is_counted_down_and_other_offerings_stay_available() -> None:
    """K15-A48, K15-A56, K15-A140, AWS-T428, AWS-455: the answer marks that reservation only."""

    async def scenario(environment: LaunchEnvironment) -> None:
        instance_type = ec2_type("m5.large", offerings=[reserved("a", 1e-8, 2, "cr-1")])
        refuse_fleets(environment, refusal("ReservationCapacityExceeded"))
        with pytest.raises(InsufficientCapacity):
            await launch(environment, instance_type, requirements=RESERVED_OR_ON_DEMAND)
        assert environment.recorded.units == {"cr-1": 0}
        assert environment.recorded.unavailable == [OfferingKey(labels.RESERVED, "m5.large", "a", reservation="cr-1")]

    run_scenario(scenario)


@pytest.mark.parametrize("code", ["InsufficientInstanceCapacity", "InvalidCapacityReservationState.Unavailable"])
def test_a_reservation_refused_for_another_reason_keeps_its_count(code: str) -> None:
    """K15-A46, K15-A48, K15-A140: it is unavailable for a time, with any number of free units."""

    async def scenario(environment: LaunchEnvironment) -> None:
        instance_type = ec2_type("m5.large", offerings=[reserved("a", 1e-8, 2, "cr-1")])
        refuse_fleets(environment, refusal(code))
        with pytest.raises(InsufficientCapacity):
            await launch(environment, instance_type, requirements=RESERVED_OR_ON_DEMAND)
        assert environment.recorded.units == {}
        assert set(environment.recorded.unavailable) == {
            OfferingKey(labels.RESERVED, "m5.large", "a", reservation="cr-1")
        }

    run_scenario(scenario)


def test_a_full_reservation_is_refused_without_a_call_where_nothing_else_is_allowed() -> None:
    """K15-A40, K15-A137, K15-A35: available with nothing left is not launchable."""

    async def scenario(environment: LaunchEnvironment) -> None:
        instance_type = ec2_type("m5.large", offerings=[reserved("a", 1e-8, 0, "cr-1")])
        with pytest.raises(InsufficientCapacity):
            await launch(environment, instance_type, requirements=RESERVED_OR_ON_DEMAND)
        assert environment.ec2.calls["CreateFleet"] == 0

    run_scenario(scenario)


def test_with_a_full_reservation_the_claim_is_launched_on_demand() -> None:
    """K15-A138, K15-A45: the request is one for on-demand capacity, and none of its overrides is the reservation's."""
    full = ec2_type("m5.large", offerings=[reserved("a", 1e-8, 0, "cr-1"), offering(labels.ON_DEMAND, "b", 0.1)])
    plan = planned(claim("one", RESERVED_OR_ON_DEMAND), (full,))
    assert plan.capacity_type == labels.ON_DEMAND
    offered = [offer for template in plan.templates for offer in template.offerings]
    assert [(offer.zone, offer.reservation) for offer in offered] == [("b", "")]


def _logged_refusals(environment: LaunchEnvironment, code: str, zone: str = "a") -> list[MutableMapping[str, Any]]:
    """The log lines of a refused launch into a reservation."""
    instance_type = ec2_type("m5.large", offerings=[reserved("a", 1e-8, 2, "cr-1"), reserved("b", 1e-8, 2, "cr-2")])
    plan = planned(claim("one", RESERVED_OR_ON_DEMAND), (instance_type,))
    recorded = environment.recorded
    effects = LaunchEffects(recorded, recorded, environment.addresses, environment.series, recorded)
    with capture_logs() as lines:
        effects.record_refusals(plan, [LaunchRefusal(code, "no", "m5.large", zone, "s")], "fleet-1")
    return [line for line in lines if line["event"] == "marking reserved offering unavailable"]


def test_the_log_says_why_a_reserved_offering_is_marked_unavailable() -> None:
    """K15-A49: a reservation that is only full gives no log line."""

    async def scenario(environment: LaunchEnvironment) -> None:
        assert _logged_refusals(environment, "ReservationCapacityExceeded") == []
        (line,) = _logged_refusals(environment, "InsufficientInstanceCapacity")
        assert line["log_level"] == "debug"
        assert [line[key] for key in ("reason", "instance-type", "zone", "capacity-type")] == [
            "InsufficientInstanceCapacity",
            "m5.large",
            "a",
            "reserved",
        ]

    run_scenario(scenario)


def test_the_reservation_of_a_refusal_is_the_one_of_its_type_and_zone() -> None:
    """K15-A50: without one no count changes, and the mark is of no reservation."""

    async def scenario(environment: LaunchEnvironment) -> None:
        _logged_refusals(environment, "ReservationCapacityExceeded", zone="b")
        assert environment.recorded.units == {"cr-2": 0}
        _logged_refusals(environment, "ReservationCapacityExceeded", zone="c")
        assert environment.recorded.units == {"cr-2": 0}
        _logged_refusals(environment, "InsufficientInstanceCapacity", zone="c")
        assert environment.recorded.unavailable == [OfferingKey(labels.RESERVED, "m5.large", "c", reservation="")]

    run_scenario(scenario)


def test_a_spot_request_below_the_price_marks_spot_in_that_zone_unavailable() -> None:
    """K15-A141, K15-A46: in that zone only, and on-demand stays open."""

    async def scenario(environment: LaunchEnvironment) -> None:
        refuse_fleets(environment, refusal("SpotMaxPriceTooLow"))
        with pytest.raises(InsufficientCapacity):
            await launch(environment, ec2_type("m5.large", offerings=[offering(labels.SPOT, "a", 0.04)]))
        assert set(environment.recorded.unavailable) == {OfferingKey("spot", "m5.large", "a")}

    run_scenario(scenario)


def test_a_full_spread_group_makes_all_types_in_that_zone_unavailable() -> None:
    """AWS-454, AWS-376."""

    async def scenario(environment: LaunchEnvironment) -> None:
        group = {aws_labels.PLACEMENT_GROUP_ID: ("pg-1",)}
        types = (ec2_type("m5.large", more=group), ec2_type("c5.large", more=group))
        refuse_fleets(
            environment,
            refusal("UnfulfillableCapacity", "the limit of instances in this spread placement group"),
            types=types,
        )
        with pytest.raises(InsufficientCapacity):
            await launch(environment, *types)
        assert {pool.instance_type for pool in environment.recorded.unavailable if pool.zone == "a"} == {
            "m5.large",
            "c5.large",
        }
        assert {pool.placement_group for pool in environment.recorded.unavailable} == {"pg-1"}

    run_scenario(scenario)


def test_an_answer_with_neither_instances_nor_errors_is_insufficient_capacity() -> None:
    """Beyond AWS-453."""
    said = aws_errors.fleet_refusals(FleetAnswer(fleet_id="fleet-1"))
    assert isinstance(aws_errors.no_instance_error(said), InsufficientCapacity)
    assert said[0].instance_type == ""


@pytest.mark.parametrize("gone", [1, 2], ids=["AWS-T421 once", "AWS-T421 twice"])
def test_a_launch_template_deleted_by_others_is_created_again_once(gone: int) -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        await launch(environment, LARGE, name="first")
        environment.ec2.templates.clear()
        fault = AwsError("InvalidLaunchTemplateName.NotFoundException", "no such template")
        environment.ec2.faults["CreateFleet"] = [fault] * (gone - 1)
        environment.ec2.faults["CreateFleet"] = [fault] * gone
        if gone == 1:
            await launch(environment, LARGE)
            assert len(environment.ec2.templates) == 1
        else:
            with pytest.raises(LaunchFailed, match="no such template"):
                await launch(environment, LARGE)

    run_scenario(scenario)


@pytest.mark.parametrize("code", ["InvalidLaunchTemplateName.NotFoundException", "InvalidLaunchTemplateId.NotFound"])
def test_a_launch_template_that_the_fleet_does_not_find_is_described_before_the_next_launch(code: str) -> None:
    """AWS-457: otherwise each launch with this template would fail until a restart."""

    async def scenario(environment: LaunchEnvironment) -> None:
        refuse_fleets(environment, refusal(code))
        with pytest.raises(LaunchFailed, match=code):
            await launch(environment, LARGE)
        environment.ec2.templates.clear()
        environment.ec2.free, environment.ec2.extra_errors = {}, ()
        await launch(environment, LARGE, name="second")
        assert environment.ec2.calls["CreateFleet"] == 2
        assert len(environment.ec2.templates) == 1

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("call", "error", "reason"),
    [
        pytest.param("CreateFleet", AwsError("UnauthorizedOperation", "no"), "Unauthorized", id="AWS-457"),
        pytest.param("CreateLaunchTemplate", AwsError("AccessDenied", "no"), "Unauthorized", id="AWS-458"),
        pytest.param(
            "CreateLaunchTemplate",
            AwsError("InvalidUserData.Malformed", "User data is limited to 16384 bytes"),
            "UserDataSizeLimitExceeded",
            id="AWS-T237",
        ),
    ],
)
def test_a_refused_call_is_a_create_error_with_its_reason(call: str, error: AwsError, reason: str) -> None:
    async def scenario(environment: LaunchEnvironment) -> None:
        environment.ec2.faults[call] = [error]
        with pytest.raises(LaunchFailed) as refused:
            await launch(environment, LARGE)
        assert refused.value.reason == reason
        assert await launch(environment, LARGE, name="two")

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted: UnauthorizedOperation", "SpotSLRCreationFailed"),
        ("UnauthorizedOperation: with an explicit deny in a permissions boundary", "Unauthorized"),
        ("AuthFailure: Not authorized for images: [ami-1]", "AMIAuthorizationFailure"),
        ("InvalidParameter: sg-1 and subnet s-1 belong to different networks", "SecurityGroupSubnetVPCMismatch"),
        (
            "InvalidParameterValue: Value (x) for parameter iamInstanceProfile.name is invalid",
            "InstanceProfileNameInvalid",
        ),
        ("InvalidLaunchTemplateId.NotFound: x", "LaunchTemplateNotFound"),
        ("InvalidUserData: User data is limited to 16384 bytes", "UserDataSizeLimitExceeded"),
        ("InvalidAMIID.Malformed: x", "InvalidAMIID"),
        ("InvalidAMIID.NotFound: x", "AMINotFound"),
        ("RequestLimitExceeded: x", "RequestLimitExceeded"),
        ("InternalError: x", "InternalError"),
        ("x: The specified instance type is not eligible for Free Tier", "FreeTierIneligible"),
        ("MaxFleetCountExceeded: x", "FleetQuotaExceeded"),
        ("PendingVerification: x", "AccountPendingVerification"),
        ("MaxSpotInstanceCountExceeded: x", "SpotQuotaExceeded"),
        ("VcpuLimitExceeded: x", "VCPULimitExceeded"),
        ("InsufficientFreeAddressesInSubnet: x", "InsufficientFreeAddressesInSubnet"),
        ("SomethingElse: x", "LaunchFailed"),
        ("SpotMaxPriceTooLow: x", "LaunchFailed"),
        ("InvalidCapacityReservationState.Unavailable: x", "LaunchFailed"),
    ],
)
def test_the_reason_of_each_error_code(text: str, reason: str) -> None:
    """AWS-452: the first row that fits. K15-A47: codes that are new in 1.15 have no row."""
    assert aws_errors.launch_failure_reason(text) == reason


@pytest.mark.parametrize(
    ("text", "lead"),
    [
        ("AccessDenied: with an explicit deny in a permissions boundary", "a permissions boundary denies it: "),
        ("AccessDenied: with an explicit deny in a service control policy", "a service control policy denies it: "),
        ("AuthFailure: Not authorized for images", "the image is not shared with this account: "),
        ("UnauthorizedOperation: you are not", "no policy allows it: "),
        ("InternalError: x", ""),
    ],
)
def test_the_denying_policy_is_named_first(text: str, lead: str) -> None:
    """AWS-126."""
    assert aws_errors.explain_denial(text) == lead + text
