"""Launches of the double: launch templates, CreateFleet with the capacity model, RunInstances."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from support.aws.double import Double
from support.aws.refusals import refused
from support.aws.seeds import Seeds, fleet, template

A, B, C = "us-west-2a", "us-west-2b", "us-west-2c"


def _taken(answer: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Type, zone and number of the instances in an answer."""
    return [
        (
            entry["InstanceType"],
            entry["LaunchTemplateAndOverrides"]["Overrides"]["AvailabilityZone"],
            len(entry["InstanceIds"]),
        )
        for entry in answer["Instances"]
    ]


def _failed(answer: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Code, type and zone of the errors in an answer."""
    overrides = [(entry["ErrorCode"], entry["LaunchTemplateAndOverrides"]["Overrides"]) for entry in answer["Errors"]]
    return [(code, override["InstanceType"], override["AvailabilityZone"]) for code, override in overrides]


# -- launch templates ----------------------------------------------------------------------------------------------------------


def test_a_template_is_found_by_name_id_and_tag(ec2: Any, seeds: Seeds) -> None:
    """AWS-968."""
    tags = [{"Key": "eks:eks-cluster-name", "Value": "test"}]
    made = ec2.create_launch_template(
        LaunchTemplateName="karpenter.k8s.aws/1",
        LaunchTemplateData=template(seeds),
        TagSpecifications=[{"ResourceType": "launch-template", "Tags": tags}],
    )["LaunchTemplate"]
    for wanted in (
        {"LaunchTemplateNames": ["karpenter.k8s.aws/1"]},
        {"LaunchTemplateIds": [made["LaunchTemplateId"]]},
        {"Filters": [{"Name": "tag:eks:eks-cluster-name", "Values": ["test"]}]},
    ):
        (launch_template,) = ec2.describe_launch_templates(**wanted)["LaunchTemplates"]
        assert launch_template["LaunchTemplateId"] == made["LaunchTemplateId"]
        assert launch_template["Tags"] == tags


def test_launch_template_data_is_returned_unchanged(ec2: Any, seeds: Seeds) -> None:
    """AWS-968."""
    (version,) = ec2.describe_launch_template_versions(LaunchTemplateName="nodes")["LaunchTemplateVersions"]
    assert version["LaunchTemplateData"] == template(seeds, b"hello")


def test_missing_and_existing_launch_templates_have_their_own_error_codes(ec2: Any, seeds: Seeds) -> None:
    """AWS-968, AWS-459."""
    with refused("InvalidLaunchTemplateName.NotFoundException"):
        ec2.describe_launch_templates(LaunchTemplateNames=["other"])
    with refused("InvalidLaunchTemplateId.NotFound"):
        ec2.delete_launch_template(LaunchTemplateId="lt-00000000000000000")
    with refused("InvalidLaunchTemplateName.AlreadyExistsException"):
        ec2.create_launch_template(LaunchTemplateName="nodes", LaunchTemplateData=template(seeds))


@pytest.mark.parametrize(("size", "fits"), [(16384, True), (16385, False)])
def test_user_data_has_a_maximum_size(ec2: Any, seeds: Seeds, size: int, fits: bool) -> None:
    """AWS-968, AWS-T237."""
    data = template(seeds, b"x" * size)
    if fits:
        ec2.create_launch_template(LaunchTemplateName="large", LaunchTemplateData=data)
        return
    with refused("InvalidUserData.Malformed") as error:
        ec2.create_launch_template(LaunchTemplateName="large", LaunchTemplateData=data)
    assert "User data is limited to 16384 bytes" in error["Message"]


def test_a_dry_run_creates_no_launch_template(ec2: Any, seeds: Seeds) -> None:
    """AWS-968."""
    with refused("DryRunOperation"):
        ec2.create_launch_template(LaunchTemplateName="dry", LaunchTemplateData=template(seeds), DryRun=True)
    with refused("InvalidLaunchTemplateName.NotFoundException"):
        ec2.describe_launch_templates(LaunchTemplateNames=["dry"])


# -- strategies ----------------------------------------------------------------------------------------------------------------


def test_lowest_price_takes_the_cheapest_type_in_any_position(ec2: Any, seeds: Seeds) -> None:
    """AWS-980, AWS-969."""
    answer = ec2.create_fleet(**fleet(seeds, ["m5.4xlarge", "m5.xlarge", "m5.large"]))
    assert _taken(answer) == [("m5.large", A, 1)]
    assert answer["Errors"] == []
    assert answer["FleetId"].startswith("fleet-")


def test_prioritized_takes_the_override_with_the_best_priority(ec2: Any, seeds: Seeds) -> None:
    """AWS-980."""
    options = {"OnDemandOptions": {"AllocationStrategy": "prioritized"}}
    answer = ec2.create_fleet(**fleet(seeds, ["m5.4xlarge", "m5.large"], **options))
    assert _taken(answer) == [("m5.4xlarge", A, 1)]


def test_price_capacity_optimized_weighs_the_price_by_interruptions(aws: Double, ec2: Any, seeds: Seeds) -> None:
    """AWS-980."""
    for zone in (A, B, C):
        aws.control.set_spot_price("m5.large", zone, 0.030)
        aws.control.set_spot_price("c5.large", zone, 0.033)
    assert _taken(ec2.create_fleet(**fleet(seeds, ["c5.large", "m5.large"], "spot"))) == [("m5.large", A, 1)]
    aws.control.set_interruption_weight("m5.large", 0.2)
    assert _taken(ec2.create_fleet(**fleet(seeds, ["c5.large", "m5.large"], "spot"))) == [("c5.large", A, 1)]


def test_capacity_optimized_prioritized_compares_free_capacity_then_priorities(
    aws: Double, ec2: Any, seeds: Seeds
) -> None:
    """AWS-980."""
    options = {"SpotOptions": {"AllocationStrategy": "capacity-optimized-prioritized"}}
    request = fleet(seeds, ["m5.xlarge", "m5.large"], "spot", **options)
    assert _taken(ec2.create_fleet(**request)) == [("m5.xlarge", A, 1)]
    for zone in (A, B, C):
        aws.control.set_pool("m5.xlarge", zone, "spot", 5)
    assert _taken(ec2.create_fleet(**request)) == [("m5.large", A, 1)]


# -- pools ---------------------------------------------------------------------------------------------------------------------


def test_an_empty_pool_is_skipped_and_reported(aws: Double, ec2: Any, seeds: Seeds) -> None:
    """AWS-T960, AWS-980."""
    aws.control.set_pool("m5.large", A, "spot", 0)
    answer = ec2.create_fleet(**fleet(seeds, ["m5.large"], "spot"))
    assert _taken(answer) == [("m5.large", B, 1)]
    assert _failed(answer) == [("InsufficientInstanceCapacity", "m5.large", A)]


def test_a_fleet_for_several_instances_continues_in_the_next_pool(aws: Double, ec2: Any, seeds: Seeds) -> None:
    """AWS-980, AWS-T752."""
    aws.control.set_pool("m5.large", A, "on-demand", 2)
    answer = ec2.create_fleet(**fleet(seeds, ["m5.large"], units=3))
    assert _taken(answer) == [("m5.large", A, 2), ("m5.large", B, 1)]
    assert _failed(answer) == [("InsufficientInstanceCapacity", "m5.large", A)]


def test_without_any_capacity_every_pool_has_an_error(aws: Double, ec2: Any, seeds: Seeds) -> None:
    """AWS-980."""
    for zone in (A, B, C):
        aws.control.set_pool("m5.large", zone, "spot", 0)
    answer = ec2.create_fleet(**fleet(seeds, ["m5.large"], "spot"))
    assert answer["Instances"] == []
    assert [code for code, _, _ in _failed(answer)] == ["InsufficientInstanceCapacity"] * 3 + ["UnfulfillableCapacity"]


def test_pools_change_at_the_planned_time(
    running: Double, aws: Double, ec2: Any, seeds: Seeds, monkeypatch: Any
) -> None:
    """AWS-980."""
    now = [running.region.capacity.now()]
    monkeypatch.setattr(running.region.capacity, "now", lambda: now[0])
    aws.control.set_pool("m5.large", A, "on-demand", 0, after_seconds=10)
    assert _taken(ec2.create_fleet(**fleet(seeds, ["m5.large"]))) == [("m5.large", A, 1)]
    now[0] += 11
    assert _taken(ec2.create_fleet(**fleet(seeds, ["m5.large"]))) == [("m5.large", B, 1)]


def test_a_terminated_instance_returns_to_its_pool(aws: Double, ec2: Any, seeds: Seeds) -> None:
    """AWS-980."""
    aws.control.set_pool("m5.large", A, "on-demand", 1)
    first = ec2.create_fleet(**fleet(seeds, ["m5.large"]))["Instances"][0]["InstanceIds"]
    assert _taken(ec2.create_fleet(**fleet(seeds, ["m5.large"]))) == [("m5.large", B, 1)]
    ec2.terminate_instances(InstanceIds=first)
    assert _taken(ec2.create_fleet(**fleet(seeds, ["m5.large"]))) == [("m5.large", A, 1)]


def test_quotas_count_vcpus_and_spot_instances(aws: Double, ec2: Any, seeds: Seeds) -> None:
    """AWS-980."""
    aws.control.set_quotas(on_demand_vcpus=3, spot_instances=1)
    answer = ec2.create_fleet(**fleet(seeds, ["m5.large"], units=2))
    assert _taken(answer) == [("m5.large", A, 1)]
    assert {code for code, _, _ in _failed(answer)} == {"VcpuLimitExceeded"}
    ec2.create_fleet(**fleet(seeds, ["m5.large"], "spot"))
    answer = ec2.create_fleet(**fleet(seeds, ["m5.large"], "spot"))
    assert answer["Instances"] == []
    assert {code for code, _, _ in _failed(answer)} == {"MaxSpotInstanceCountExceeded"}


def test_a_subnet_runs_out_of_addresses(aws: Double, ec2: Any, seeds: Seeds) -> None:
    """AWS-971: an m5.large can run 29 pods, so the 251 addresses of a subnet suffice for 8 instances."""
    aws.control.give_pods_addresses()
    request = fleet(seeds, ["m5.large"], units=9)
    request["LaunchTemplateConfigs"][0]["Overrides"] = request["LaunchTemplateConfigs"][0]["Overrides"][:1]
    answer = ec2.create_fleet(**request)
    assert _taken(answer) == [("m5.large", A, 8)]
    assert _failed(answer) == [("InsufficientFreeAddressesInSubnet", "m5.large", A)]


def test_launches_fail_with_the_error_that_a_test_sets(aws: Double, ec2: Any, seeds: Seeds) -> None:
    """AWS-452, AWS-456."""
    aws.control.fail_launches("AuthFailure.ServiceLinkedRoleCreationNotPermitted", capacity_type="spot")
    answer = ec2.create_fleet(**fleet(seeds, ["m5.large"], "spot"))
    assert answer["Instances"] == []
    assert {code for code, _, _ in _failed(answer)} == {"AuthFailure.ServiceLinkedRoleCreationNotPermitted"}
    assert _taken(ec2.create_fleet(**fleet(seeds, ["m5.large"]))) == [("m5.large", A, 1)]


# -- reservations and groups ---------------------------------------------------------------------------------------------------


def _reserved(seeds: Seeds, reservation_id: str) -> dict[str, Any]:
    target = {"CapacityReservationId": reservation_id}
    options = {
        "CapacityReservationPreference": "capacity-reservations-only",
        "CapacityReservationTarget": target,
    }
    return template(seeds, CapacityReservationSpecification=options)


def test_a_reservation_is_used_and_returned(aws: Double, ec2: Any, seeds: Seeds) -> None:
    """AWS-980, AWS-977, AWS-600."""
    made = aws.control.reserve("m5.large", A, 1)
    aws.control.set_pool("m5.large", A, "on-demand", 0)
    ec2.create_launch_template(LaunchTemplateName="held", LaunchTemplateData=_reserved(seeds, made))
    request = fleet(seeds, ["m5.large"])
    config = request["LaunchTemplateConfigs"][0]
    config["LaunchTemplateSpecification"]["LaunchTemplateName"] = "held"
    config["Overrides"] = config["Overrides"][:1]
    first = ec2.create_fleet(**request)["Instances"][0]["InstanceIds"]
    (instance,) = ec2.describe_instances(InstanceIds=first)["Reservations"][0]["Instances"]
    assert instance["CapacityReservationId"] == made
    specification = instance["CapacityReservationSpecification"]
    assert specification["CapacityReservationPreference"] == "capacity-reservations-only"
    second = ec2.create_fleet(**request)
    assert second["Instances"] == []
    assert _failed(second)[0] == ("ReservationCapacityExceeded", "m5.large", A)
    ec2.terminate_instances(InstanceIds=first)
    (left,) = ec2.describe_capacity_reservations(CapacityReservationIds=[made])["CapacityReservations"]
    assert left["AvailableInstanceCount"] == 1


def test_reservations_are_found_by_filters(aws: Double, ec2: Any) -> None:
    """AWS-977, AWS-148."""
    made = aws.control.reserve("m5.large", A, 5, tags={"x": "y"}, end="2027-01-01T00:00:00Z")
    other = aws.control.reserve("p5.48xlarge", B, 1, kind="capacity-block")
    wanted = [{"Name": "state", "Values": ["active"]}, {"Name": "tag:x", "Values": ["y"]}]
    (capacity_reservation,) = ec2.describe_capacity_reservations(Filters=wanted)["CapacityReservations"]
    assert capacity_reservation["CapacityReservationId"] == made
    assert capacity_reservation["InstanceMatchCriteria"] == "targeted"
    assert capacity_reservation["EndDate"].year == 2027
    (block,) = ec2.describe_capacity_reservations(CapacityReservationIds=[other])["CapacityReservations"]
    assert block["ReservationType"] == "capacity-block"
    with refused("InvalidCapacityReservationId.NotFound"):
        ec2.describe_capacity_reservations(CapacityReservationIds=["cr-00000000000000000"])


def test_a_spread_group_has_at_most_seven_instances_per_zone(aws: Double, ec2: Any, seeds: Seeds) -> None:
    """AWS-977, AWS-454."""
    group = aws.control.add_group("apart", "spread", spread_level="rack")
    (placement_group,) = ec2.describe_placement_groups(GroupNames=["apart"])["PlacementGroups"]
    assert (placement_group["GroupId"], placement_group["State"], placement_group["SpreadLevel"]) == (
        group,
        "available",
        "rack",
    )
    data = template(seeds, Placement={"GroupId": group})
    ec2.create_launch_template(LaunchTemplateName="apart", LaunchTemplateData=data)
    request = fleet(seeds, ["m5.large"], units=8)
    request["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"]["LaunchTemplateName"] = "apart"
    answer = ec2.create_fleet(**request)
    assert _taken(answer) == [("m5.large", A, 7), ("m5.large", B, 1)]
    assert "limit of instances in this spread placement group" in answer["Errors"][0]["ErrorMessage"]


# -- invalid requests ----------------------------------------------------------------------------------------------------------


def _override(name: str, value: str) -> Callable[[Seeds], dict[str, Any]]:
    def build(seeds: Seeds) -> dict[str, Any]:
        request = fleet(seeds, ["m5.large"])
        config = request["LaunchTemplateConfigs"][0]
        config["Overrides"] = [{**config["Overrides"][0], name: value}]
        return request

    return build


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_override("ImageId", "ami-00000000000000000"), "InvalidAMIID.NotFound"),
        (_override("ImageId", "ami-nonsense"), "InvalidAMIID.Malformed"),
        (_override("SubnetId", "subnet-00000000000000000"), "InvalidSubnetID.NotFound"),
        (_override("InstanceType", "m6g.large"), "InvalidParameterValue"),
        (_override("InstanceType", "h1.2xlarge"), "InvalidFleetConfiguration"),
    ],
    ids=["image", "image-id", "subnet", "architecture", "zone"],
)
def test_an_invalid_override_is_an_error_in_the_answer(
    ec2: Any, seeds: Seeds, change: Callable[[Seeds], dict[str, Any]], code: str
) -> None:
    """AWS-980, AWS-969."""
    answer = ec2.create_fleet(**change(seeds))
    assert answer["Instances"] == []
    assert [entry["ErrorCode"] for entry in answer["Errors"]] == [code]


def test_an_unknown_instance_profile_is_an_error_in_the_answer(ec2: Any, seeds: Seeds) -> None:
    """AWS-980, AWS-118."""
    data = template(seeds, IamInstanceProfile={"Name": "nobody"})
    ec2.create_launch_template(LaunchTemplateName="nobody", LaunchTemplateData=data)
    request = fleet(seeds, ["m5.large"])
    request["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"]["LaunchTemplateName"] = "nobody"
    errors = ec2.create_fleet(**request)["Errors"]
    assert {entry["ErrorCode"] for entry in errors} == {"InvalidParameterValue"}
    assert "iamInstanceProfile.name is invalid" in errors[0]["ErrorMessage"]


def test_a_security_group_of_another_vpc_is_an_error_in_the_answer(ec2: Any, seeds: Seeds) -> None:
    """AWS-980, AWS-452."""
    other = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": ["default"]}])["SecurityGroups"]
    stranger = next(entry["GroupId"] for entry in other if entry["VpcId"] != seeds.vpc)
    data = template(seeds, NetworkInterfaces=[{"DeviceIndex": 0, "Groups": [stranger]}])
    ec2.create_launch_template(LaunchTemplateName="stranger", LaunchTemplateData=data)
    request = fleet(seeds, ["m5.large"])
    request["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"]["LaunchTemplateName"] = "stranger"
    errors = ec2.create_fleet(**request)["Errors"]
    assert "belong to different networks" in errors[0]["ErrorMessage"]


def test_a_missing_template_and_too_many_overrides_fail_the_call(ec2: Any, seeds: Seeds) -> None:
    """AWS-969, AWS-980."""
    request = fleet(seeds, ["m5.large"] * 101)
    with refused("InvalidParameterValue"):
        ec2.create_fleet(**request)
    ec2.delete_launch_template(LaunchTemplateName="nodes")
    with refused("InvalidLaunchTemplateName.NotFoundException"):
        ec2.create_fleet(**fleet(seeds, ["m5.large"]))


def test_a_dry_run_of_a_fleet_launches_nothing(ec2: Any, seeds: Seeds) -> None:
    """AWS-969, AWS-116."""
    with refused("DryRunOperation"):
        ec2.create_fleet(**fleet(seeds, ["m5.large"]), DryRun=True)
    assert ec2.describe_instances()["Reservations"] == []


# -- RunInstances --------------------------------------------------------------------------------------------------------------


def _trial(seeds: Seeds, **more: Any) -> dict[str, Any]:
    return {
        "MinCount": 1,
        "MaxCount": 1,
        "InstanceType": "m5.large",
        "LaunchTemplate": {"LaunchTemplateName": "nodes"},
        "NetworkInterfaces": [{"DeviceIndex": 0, "Groups": [seeds.group], "SubnetId": seeds.subnets[A]}],
        **more,
    }


def test_a_dry_run_of_run_instances_launches_nothing(ec2: Any, seeds: Seeds) -> None:
    """AWS-972."""
    with refused("DryRunOperation"):
        ec2.run_instances(**_trial(seeds), DryRun=True)
    assert ec2.describe_instances()["Reservations"] == []


def test_a_dry_run_of_run_instances_checks_the_instance_profile(ec2: Any, seeds: Seeds) -> None:
    """AWS-972, AWS-118."""
    with refused("InvalidParameterValue") as error:
        ec2.run_instances(**_trial(seeds, IamInstanceProfile={"Name": "nobody"}), DryRun=True)
    assert "iamInstanceProfile.name is invalid" in error["Message"]


def test_network_interfaces_and_an_instance_level_subnet_are_refused(ec2: Any, seeds: Seeds) -> None:
    """AWS-128: with network interfaces, also those of the launch template, the subnet belongs to the interface."""
    request = _trial(seeds)
    with refused("InvalidParameterCombination"):
        ec2.run_instances(**request, SubnetId=seeds.subnets[A], DryRun=True)
    del request["NetworkInterfaces"]
    with refused("InvalidParameterCombination"):
        ec2.run_instances(**request, SubnetId=seeds.subnets[A], DryRun=True)


def test_tags_of_spot_requests_need_a_spot_request(ec2: Any, seeds: Seeds) -> None:
    """AWS-128, AWS-972."""
    tags = [{"ResourceType": "spot-instances-request", "Tags": [{"Key": "team", "Value": "a"}]}]
    with refused("InvalidParameterValue"):
        ec2.run_instances(**_trial(seeds, TagSpecifications=tags), DryRun=True)
    spot = {"MarketType": "spot"}
    with refused("DryRunOperation"):
        ec2.run_instances(**_trial(seeds, TagSpecifications=tags, InstanceMarketOptions=spot), DryRun=True)


def test_run_instances_launches_an_instance_of_the_launch_template(ec2: Any, seeds: Seeds) -> None:
    """AWS-972."""
    (instance,) = ec2.run_instances(**_trial(seeds))["Instances"]
    attribute = ec2.describe_instance_attribute(InstanceId=instance["InstanceId"], Attribute="userData")
    assert base64.b64decode(attribute["UserData"]["Value"]) == b"hello"
    assert instance["SubnetId"] == seeds.subnets[A]
