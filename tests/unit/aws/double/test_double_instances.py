"""Instances of the double: launch template data, states, tags and status checks."""

from __future__ import annotations

from typing import Any

import pytest

from support.aws.double import Double
from support.aws.refusals import refused
from support.aws.seeds import Seeds, fleet, template

A = "us-west-2a"
NOBODY = "i-00000000000000000"


@pytest.fixture
def clock(running: Double, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the double's instances."""
    now = [running.region.instances.now()]
    monkeypatch.setattr(running.region.instances, "now", lambda: now[0])
    return now


def _launch(ec2: Any, seeds: Seeds, capacity_type: str = "on-demand", units: int = 1) -> list[str]:
    answer = ec2.create_fleet(**fleet(seeds, ["m5.large"], capacity_type, units))
    return [name for entry in answer["Instances"] for name in entry["InstanceIds"]]


def _look(ec2: Any, name: str) -> dict[str, Any]:
    (instance,) = ec2.describe_instances(InstanceIds=[name])["Reservations"][0]["Instances"]
    return dict(instance)


def test_an_instance_has_its_launch_template_data_and_the_fleets_tags(ec2: Any, seeds: Seeds) -> None:
    """AWS-970."""
    (name,) = _launch(ec2, seeds)
    instance = _look(ec2, name)
    assert instance["SecurityGroups"] == [{"GroupId": seeds.group}]
    assert instance["IamInstanceProfile"]["Arn"].endswith("instance-profile/nodes")
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert [disk["DeviceName"] for disk in instance["BlockDeviceMappings"]] == ["/dev/xvda"]
    assert instance["Monitoring"]["State"] == "enabled"
    assert instance["ImageId"] == seeds.image
    assert instance["Placement"] == {"AvailabilityZone": A, "AvailabilityZoneId": "usw2-az2", "Tenancy": "default"}
    assert instance["SubnetId"] == seeds.subnets[A]
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert tags["karpenter.sh/nodepool"] == "default"
    assert instance["PrivateDnsName"].endswith(".us-west-2.compute.internal")
    assert "InstanceLifecycle" not in instance


def test_a_spot_instance_has_a_spot_request(ec2: Any, seeds: Seeds) -> None:
    """AWS-970, AWS-523."""
    (name,) = _launch(ec2, seeds, "spot")
    instance = _look(ec2, name)
    assert instance["InstanceLifecycle"] == "spot"
    assert instance["SpotInstanceRequestId"].startswith("sir-")


def test_network_interfaces_and_tenancy_come_from_the_launch_template(ec2: Any, seeds: Seeds) -> None:
    """AWS-970, AWS-524."""
    cards = [
        {"DeviceIndex": min(index, 1), "NetworkCardIndex": index, "InterfaceType": "efa", "Groups": [seeds.group]}
        for index in range(4)
    ]
    placed = [{**card, "SubnetId": seeds.subnets[A]} for card in cards]
    data = template(seeds, NetworkInterfaces=cards, Placement={"Tenancy": "dedicated"})
    ec2.create_launch_template(LaunchTemplateName="cards", LaunchTemplateData=data)
    (instance,) = ec2.run_instances(
        MinCount=1,
        MaxCount=1,
        InstanceType="p4d.24xlarge",
        LaunchTemplate={"LaunchTemplateName": "cards"},
        NetworkInterfaces=placed,
    )["Instances"]
    assert [network_interface["InterfaceType"] for network_interface in instance["NetworkInterfaces"]] == ["efa"] * 4
    assert [
        network_interface["Attachment"]["NetworkCardIndex"] for network_interface in instance["NetworkInterfaces"]
    ] == [0, 1, 2, 3]
    assert instance["Placement"]["Tenancy"] == "dedicated"


def test_the_partition_is_described_once_the_instance_runs(
    aws: Double, ec2: Any, seeds: Seeds, clock: list[float]
) -> None:
    """AWS-970, AWS-612, AWS-T606."""
    aws.control.set_timing(pending=20)
    group = aws.control.add_group("parts", "partition", partitions=3)
    data = template(seeds, Placement={"GroupId": group})
    ec2.create_launch_template(LaunchTemplateName="parts", LaunchTemplateData=data)
    (instance,) = ec2.run_instances(
        MinCount=1,
        MaxCount=1,
        InstanceType="m5.large",
        LaunchTemplate={"LaunchTemplateName": "parts"},
        NetworkInterfaces=[{"DeviceIndex": 0, "Groups": [seeds.group], "SubnetId": seeds.subnets[A]}],
    )["Instances"]
    assert "PartitionNumber" not in instance["Placement"]
    clock[0] += 21
    placement = _look(ec2, instance["InstanceId"])["Placement"]
    assert placement["GroupId"] == group
    assert 1 <= placement["PartitionNumber"] <= 3


def test_instances_change_their_state_over_time(aws: Double, ec2: Any, seeds: Seeds, clock: list[float]) -> None:
    """AWS-974, AWS-980."""
    aws.control.set_timing(pending=30, shutting_down=45, remembered=100)
    (name,) = _launch(ec2, seeds)
    assert _look(ec2, name)["State"]["Name"] == "pending"
    clock[0] += 31
    assert _look(ec2, name)["State"]["Name"] == "running"
    (change,) = ec2.terminate_instances(InstanceIds=[name])["TerminatingInstances"]
    assert (change["PreviousState"]["Name"], change["CurrentState"]["Name"]) == ("running", "shutting-down")
    clock[0] += 44
    (change,) = ec2.terminate_instances(InstanceIds=[name])["TerminatingInstances"]
    assert change["CurrentState"]["Name"] == "shutting-down"
    clock[0] += 2
    gone = _look(ec2, name)
    assert gone["State"]["Name"] == "terminated"
    assert gone["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    clock[0] += 100
    with refused("InvalidInstanceID.NotFound"):
        ec2.describe_instances(InstanceIds=[name])


def test_describe_calls_return_a_new_instance_after_a_delay(
    aws: Double, ec2: Any, seeds: Seeds, clock: list[float]
) -> None:
    """AWS-973: EC2's describe calls lag behind launches."""
    aws.control.set_timing(visible_after=2)
    (name,) = _launch(ec2, seeds)
    with refused("InvalidInstanceID.NotFound"):
        ec2.describe_instances(InstanceIds=[name])
    clock[0] += 2
    assert _look(ec2, name)["InstanceId"] == name


def test_instances_are_found_by_tag_and_state_in_pages(ec2: Any, seeds: Seeds) -> None:
    """AWS-973."""
    names = _launch(ec2, seeds, units=12)
    ec2.terminate_instances(InstanceIds=names[:2])
    wanted = [
        {"Name": "tag-key", "Values": ["karpenter.sh/nodepool"]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
    ]
    pages = list(ec2.get_paginator("describe_instances").paginate(Filters=wanted, PaginationConfig={"PageSize": 5}))
    actual = [
        instance["InstanceId"] for page in pages for entry in page["Reservations"] for instance in entry["Instances"]
    ]
    assert len(pages) == 2
    assert sorted(actual) == sorted(names[2:])


def test_an_unknown_id_fails_the_whole_call(ec2: Any, seeds: Seeds) -> None:
    """AWS-973, AWS-974."""
    (name,) = _launch(ec2, seeds)
    with refused("InvalidInstanceID.NotFound"):
        ec2.describe_instances(InstanceIds=[name, NOBODY])
    with refused("InvalidInstanceID.NotFound"):
        ec2.terminate_instances(InstanceIds=[name, NOBODY])
    assert _look(ec2, name)["State"]["Name"] == "running"
    with refused("InvalidInstanceID.Malformed"):
        ec2.describe_instances(InstanceIds=["i-nonsense"])


def test_ids_and_a_page_size_are_refused(ec2: Any, seeds: Seeds) -> None:
    """AWS-973."""
    (name,) = _launch(ec2, seeds)
    with refused("InvalidParameterCombination"):
        ec2.describe_instances(InstanceIds=[name], MaxResults=5)


def test_instances_are_tagged_and_unknown_ids_are_refused(ec2: Any, seeds: Seeds) -> None:
    """AWS-975."""
    (name,) = _launch(ec2, seeds)
    ec2.create_tags(Resources=[name], Tags=[{"Key": "Name", "Value": "node-1"}])
    assert {"Key": "Name", "Value": "node-1"} in _look(ec2, name)["Tags"]
    with refused("InvalidInstanceID.NotFound"):
        ec2.create_tags(Resources=[NOBODY], Tags=[{"Key": "Name", "Value": "node-1"}])


def _unwell(ec2: Any, name: str, value: str) -> list[str]:
    answer = ec2.describe_instance_status(Filters=[{"Name": name, "Values": [value]}])
    return [entry["InstanceId"] for entry in answer["InstanceStatuses"]]


def test_status_checks_are_what_a_test_sets(aws: Double, ec2: Any, seeds: Seeds) -> None:
    """AWS-976, AWS-665."""
    first, second, third = _launch(ec2, seeds, units=3)
    aws.control.set_health(first, instance="impaired", since="2026-01-01T00:00:00Z")
    aws.control.set_health(second, system="impaired", since="2026-01-01T00:00:00Z")
    event = {"code": "instance-retirement", "description": "old hardware", "not_before": "2026-12-01T00:00:00Z"}
    aws.control.set_health(third, events=[event])
    assert _unwell(ec2, "instance-status.status", "impaired") == [first]
    assert _unwell(ec2, "system-status.status", "impaired") == [second]
    assert _unwell(ec2, "event.code", "instance-retirement") == [third]
    (entry,) = ec2.describe_instance_status(InstanceIds=[first])["InstanceStatuses"]
    (detail,) = entry["InstanceStatus"]["Details"]
    assert (detail["Status"], detail["ImpairedSince"].year) == ("failed", 2026)


def test_an_instance_can_be_stopped(aws: Double, ec2: Any, seeds: Seeds) -> None:
    """AWS-521."""
    (name,) = _launch(ec2, seeds)
    aws.control.stop(name)
    assert _look(ec2, name)["State"] == {"Name": "stopped", "Code": 80}
    ec2.terminate_instances(InstanceIds=[name])
    assert _look(ec2, name)["State"]["Name"] == "terminated"


def test_ec2_can_interrupt_an_instance(aws: Double, ec2: Any, seeds: Seeds) -> None:
    """AWS-980."""
    (name,) = _launch(ec2, seeds, "spot")
    aws.control.interrupt(name)
    instance = _look(ec2, name)
    assert instance["State"]["Name"] == "terminated"
    assert instance["StateReason"]["Code"] == "Server.SpotInstanceTermination"
