"""Launch templates: their data and their names (AWS §10)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from karpenter.api.ec2_node_class import (
    BlockDevice,
    BlockDeviceMapping,
    ConnectionTracking,
    CpuOptions,
    EnclaveOptions,
    MetadataOptions,
    NetworkInterface,
    SecurityGroup,
)
from karpenter.model import labels
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.ec2_requests import LaunchTemplateData, MetadataRequest
from karpenter.providers.aws.instance.launch_templates import (
    LaunchTemplateParameters,
    launch_template_content,
    template_data,
)
from karpenter.providers.contract import LaunchFailed
from support.launch_environment import (
    CLUSTER,
    RESERVED_OR_ON_DEMAND,
    SPOT_OR_ON_DEMAND,
    claim,
    ec2_type,
    node_class,
    offering,
    planned,
    reserved,
)

IPV6 = AwsClusterInfo(name="c", region="us-west-2", endpoint="", ca_bundle="", version="1.33", dns_ip="fd00::a")
TAGS = {"team": "x"}


def data_of(
    spec: Mapping[str, Any] = {}, cluster: AwsClusterInfo = CLUSTER, gate: bool = True, **made: Any
) -> LaunchTemplateData:
    return template_data(node_class(spec), cluster, LaunchTemplateParameters("ami-1", **made), TAGS, gate)


def wire(data: LaunchTemplateData) -> dict[str, Any]:
    decode: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(data))
    return decode


def test_a_plain_instance() -> None:
    """AWS-490 to AWS-505: the fields of the request."""
    assert wire(data_of(user_data=b"#!/bin/sh")) == {
        "ImageId": "ami-1",
        "UserData": base64.b64encode(b"#!/bin/sh").decode(),
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/xvda", "Ebs": {"Encrypted": True, "VolumeSize": 20, "VolumeType": "gp3"}}
        ],
        "IamInstanceProfile": {"Name": "profile"},
        "Monitoring": {"Enabled": False},
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpProtocolIpv6": "disabled",
            "HttpPutResponseHopLimit": 1,
            "HttpTokens": "required",
            "InstanceMetadataTags": "disabled",
        },
        "NetworkInterfaces": [{"DeviceIndex": 0, "Groups": ["sg-1", "sg-2"]}],
        "Placement": {"Tenancy": "default"},
        "EnclaveOptions": {"Enabled": False},
        "CapacityReservationSpecification": {"CapacityReservationPreference": "none"},
        "TagSpecifications": [
            {"ResourceType": "network-interface", "Tags": [{"Key": "team", "Value": "x"}]},
        ],
    }


def test_pods_without_host_network_cannot_read_user_data_of_any_family() -> None:
    """AWS-919: a hop limit of 1 and session tokens, unless the class says otherwise."""
    for family in ("Custom", "Ubuntu"):
        options = wire(data_of({"ami_family": family}))["MetadataOptions"]
        assert (options["HttpPutResponseHopLimit"], options["HttpTokens"]) == (1, "required")


@pytest.mark.parametrize("given", [None, False, True])
def test_the_public_address_setting_is_passed_on(given: bool | None) -> None:
    """AWS-T487."""
    interface = wire(data_of({"associate_public_ip_address": given}))["NetworkInterfaces"][0]
    assert interface.get("AssociatePublicIpAddress") is given


@pytest.mark.parametrize(
    ("size", "gib"),
    [pytest.param("20G", 19, id="AWS-T488"), ("20Gi", 20), ("1Ti", 1024), ("1T", 932)],
)
def test_volume_sizes_are_whole_gibibytes(size: str, gib: int) -> None:
    mapping = BlockDeviceMapping(device_name="/dev/xvda", ebs=BlockDevice(volume_size=size, iops=0, throughput=0))
    assert wire(data_of({"block_device_mappings": (mapping,)}))["BlockDeviceMappings"] == [
        {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": gib}}
    ]


def test_a_custom_image_keeps_its_own_volumes() -> None:
    """AWS-491."""
    assert "BlockDeviceMappings" not in wire(data_of({"ami_family": "Custom"}))


def test_metadata_options_are_passed_and_tags_stay_hidden() -> None:
    """AWS-T489."""
    options = MetadataOptions(http_tokens="optional", http_put_response_hop_limit=3)
    metadata_request = data_of({"metadata_options": options}).metadata_options
    assert metadata_request == MetadataRequest(
        http_endpoint="enabled",
        http_protocol_ipv6="disabled",
        http_put_response_hop_limit=3,
        http_tokens="optional",
        instance_metadata_tags="disabled",
    )


def test_some_regions_do_not_accept_the_ipv6_metadata_option() -> None:
    """AWS-494."""
    iso = AwsClusterInfo(name="c", region="us-iso-east-1", endpoint="", ca_bundle="", version="1.33")
    assert "HttpProtocolIpv6" not in wire(data_of(cluster=iso))["MetadataOptions"]


def test_detailed_monitoring() -> None:
    """AWS-T493."""
    assert wire(data_of({"detailed_monitoring": True}))["Monitoring"] == {"Enabled": True}


def test_an_ipv6_cluster_gets_ipv6_interfaces() -> None:
    """AWS-T494, AWS-498."""
    assert wire(data_of({"ip_prefix_count": 2}, IPV6))["NetworkInterfaces"] == [
        {
            "DeviceIndex": 0,
            "Groups": ["sg-1", "sg-2"],
            "Ipv6PrefixCount": 2,
            "Ipv6AddressCount": 1,
            "PrimaryIpv6": True,
        }
    ]
    assert wire(data_of({"ip_prefix_count": 2}))["NetworkInterfaces"][0]["Ipv4PrefixCount"] == 2


def test_efa_interfaces_spread_over_the_cards() -> None:
    """AWS-T486, AWS-496."""
    network_interfaces = wire(data_of(efa_count=4))["NetworkInterfaces"]
    assert [
        (element["InterfaceType"], element["NetworkCardIndex"], element["DeviceIndex"])
        for element in network_interfaces
    ] == [
        ("efa", 0, 0),
        ("efa", 1, 1),
        ("efa", 2, 1),
        ("efa", 3, 1),
    ]


def test_configured_interfaces_are_passed_on_unchanged() -> None:
    """AWS-497, AWS-499: interfaces without addresses get no address settings."""
    spec = {
        "network_interfaces": (
            NetworkInterface(network_card_index=0, device_index=0, interface_type="interface"),
            NetworkInterface(network_card_index=1, device_index=1, interface_type="efa-only"),
        ),
        "connection_tracking": ConnectionTracking(udp_timeout=40),
        "ip_prefix_count": 1,
        "associate_public_ip_address": False,
    }
    first, second = wire(data_of(spec))["NetworkInterfaces"]
    assert first == {
        "DeviceIndex": 0,
        "NetworkCardIndex": 0,
        "InterfaceType": "interface",
        "Groups": ["sg-1", "sg-2"],
        "AssociatePublicIpAddress": False,
        "Ipv4PrefixCount": 1,
        "ConnectionTrackingSpecification": {"UdpTimeout": 40},
    }
    assert second == {
        "DeviceIndex": 1,
        "NetworkCardIndex": 1,
        "InterfaceType": "efa-only",
        "Groups": ["sg-1", "sg-2"],
    }


def test_placement_enclaves_and_other_instance_options() -> None:
    """AWS-500 to AWS-502, K15-A51."""
    actual = wire(
        data_of(
            {
                "cpu_options": CpuOptions(nested_virtualization="enabled"),
                "enclave_options": EnclaveOptions(enabled=True),
            },
            tenancy="dedicated",
            group_id="pg-1",
            partition=3,
        )
    )
    assert actual["Placement"] == {"Tenancy": "dedicated", "GroupId": "pg-1", "PartitionNumber": 3}
    assert actual["EnclaveOptions"] == {"Enabled": True}
    assert actual["CpuOptions"] == {"NestedVirtualization": "enabled"}


@pytest.mark.parametrize(
    ("kind", "market_type"),
    [("default", None), ("capacity-block", "capacity-block"), (aws_labels.INTERRUPTIBLE, aws_labels.INTERRUPTIBLE)],
)
def test_reserved_instances_name_their_reservation(kind: str, market_type: str | None) -> None:
    """AWS-503, AWS-504."""
    actual = wire(data_of(capacity_type=labels.RESERVED, reservation="cr-1", reservation_kind=kind))
    assert actual["CapacityReservationSpecification"] == {
        "CapacityReservationPreference": "capacity-reservations-only",
        "CapacityReservationTarget": {"CapacityReservationId": "cr-1"},
    }
    assert actual.get("InstanceMarketOptions") == ({"MarketType": market_type} if market_type else None)


def test_spot_instances_never_fall_into_open_reservations() -> None:
    """AWS-T490; AWS-505: their requests are tagged, too."""
    actual = wire(data_of(capacity_type=labels.SPOT))
    assert actual["CapacityReservationSpecification"] == {"CapacityReservationPreference": "none"}
    assert [tag_specification["ResourceType"] for tag_specification in actual["TagSpecifications"]] == [
        "network-interface",
        "spot-instances-request",
    ]


def test_without_the_gate_reservations_are_not_mentioned() -> None:
    """AWS-T491."""
    assert "CapacityReservationSpecification" not in wire(data_of(gate=False))


# -- names of templates --------------------------------------------------------------------------------------------------


def template_names(*args: Any, **more: Any) -> list[str]:
    return [template_plan.content.name for template_plan in planned(*args, **more).templates]


LARGE = ec2_type("m5.large")


def test_types_with_different_pods_or_images_have_different_templates() -> None:
    """AWS-T482, AWS-T483."""
    assert len(template_names(claim(), (LARGE, ec2_type("m5.xlarge", pods=58)))) == 2
    both = planned(claim(), (LARGE, ec2_type("m6g.large", arch="arm64")))
    assert {template_plan.content.data.image_id for template_plan in both.templates} == {"ami-x86", "ami-arm"}
    assert len(template_names(claim(), (LARGE, ec2_type("c5.large")))) == 1


def test_the_order_of_labels_and_groups_changes_nothing() -> None:
    """AWS-T484, AWS-480."""
    pool = {labels.NODE_POOL: "default"}
    first = template_names(claim(labels={**pool, "a": "1", "b": "2"}), (LARGE,))
    second = template_names(claim(labels={"b": "2", "a": "1", **pool}), (LARGE,))
    turned = node_class(security_groups=(SecurityGroup(id="sg-1"), SecurityGroup(id="sg-2")))
    assert first == second == template_names(claim(labels={**pool, "a": "1", "b": "2"}), (LARGE,), turned)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda: planned(claim(labels={"a": "1", labels.NODE_POOL: "default"}), (LARGE,)), id="AWS-T485"),
        pytest.param(lambda: planned(claim(), (LARGE,), node_class({"detailed_monitoring": True})), id="monitoring"),
        pytest.param(lambda: planned(claim(), (LARGE,), node_class({"tags": {"a": "b"}})), id="tags"),
        pytest.param(lambda: planned(claim(), (LARGE,), node_class(instance_profile="other")), id="profile"),
        pytest.param(lambda: planned(claim("one", {labels.CAPACITY_TYPE: ("on-demand",)}), (LARGE,)), id="capacity"),
        pytest.param(
            lambda: planned(claim(), (LARGE,), node_class({"enclave_options": EnclaveOptions(enabled=True)})),
            id="enclave",
        ),
        pytest.param(
            lambda: planned(claim(requests={aws_labels.EFA_RESOURCE: "1"}), (roomy(aws_labels.EFA_RESOURCE),)), id="efa"
        ),
    ],
)
def test_instance_settings_change_the_launch_template_name(changed: Any) -> None:
    assert [template.content.name for template in changed().templates] != template_names(claim(), (LARGE,))


@pytest.mark.parametrize(
    ("drivers", "count"), [("gpu.nvidia.com, dra.net", 2), ("dra.net", 2), ("gpu.nvidia.com", 0), ("", 0)]
)
def test_a_claim_that_names_the_driver_of_efa_gets_interfaces(drivers: str, count: int) -> None:
    """K15-A52, K15-A149: also in the annotations of the instance."""
    types = (ec2_type("m5.large"),)
    made = planned(claim(annotations={labels.REQUESTED_DRA_DRIVERS: drivers}), types)
    contents = [template.content.data for template in made.templates]
    kinds = [[each.get("InterfaceType") for each in wire(data)["NetworkInterfaces"]] for data in contents]
    assert {kind for own in kinds for kind in own} == ({"efa"} if count else {None})
    assert made.has_efa is bool(count)


def roomy(resource: str) -> Any:
    return ec2_type("m5.large", capacity={resource: "4"})


def test_a_template_is_named_after_its_content() -> None:
    name = launch_template_content(data_of(), TAGS).name
    assert name == launch_template_content(data_of(), TAGS).name
    assert name.startswith("karpenter.k8s.aws/")
    assert name != launch_template_content(data_of(), {"team": "y"}).name


def test_reserved_launches_have_a_template_per_reservation() -> None:
    """AWS-481, AWS-448: with its own offering only."""
    offerings = [reserved("a", 1e-8, 3, "cr-1"), reserved("b", 1e-8, 3, "cr-2"), offering(labels.ON_DEMAND, "a", 0.1)]
    plan = planned(claim("one", RESERVED_OR_ON_DEMAND), (ec2_type("m5.large", offerings=offerings),))
    assert sorted(
        (override.reservation, override.zone)
        for template_plan in plan.templates
        for override in template_plan.offerings
    ) == [
        ("cr-1", "a"),
        ("cr-2", "b"),
    ]
    assert len(plan.templates) == 2


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        pytest.param({"subnets": ()}, "SubnetResolutionFailed", "no subnets", id="AWS-436"),
        pytest.param({"security_groups": ()}, "LaunchFailed", "no security groups", id="AWS-485 groups"),
        pytest.param({"amis": ()}, "LaunchFailed", "no amis exist given constraints", id="AWS-485 images"),
    ],
)
def test_a_class_with_a_missing_status_field_cannot_be_launched_from(
    status: dict[str, Any], reason: str, message: str
) -> None:
    with pytest.raises(LaunchFailed, match=message) as refused:
        planned(claim(), (LARGE,), node_class(**status))
    assert refused.value.reason == reason


def test_types_without_a_matching_image_are_named_with_the_images() -> None:
    """AWS-485."""
    with pytest.raises(LaunchFailed, match="ami-x86, ami-arm"):
        planned(claim(), (ec2_type("odd.large", arch="riscv"),))


def test_the_lowest_partition_is_a_number() -> None:
    """AWS-500 Beyond, AWS-611: 10 is not below 2."""
    group = {aws_labels.PLACEMENT_GROUP_ID: ("pg-1",), aws_labels.PLACEMENT_GROUP_PARTITION: ("2", "10")}
    plan = planned(
        claim("one", {**SPOT_OR_ON_DEMAND, aws_labels.PLACEMENT_GROUP_PARTITION: ("10", "2")}),
        (ec2_type("m5.large", more=group),),
    )
    placement = plan.templates[0].content.data.placement
    assert placement is not None
    assert (placement.group_id, placement.partition_number) == ("pg-1", 2)


def test_the_enclave_resource_of_older_releases_enables_no_enclaves() -> None:
    """K15-A22, K15-A134: only the class does."""
    sandbox = "eks.amazonaws.com/nitro-sandbox"
    (template,) = planned(claim(requests={sandbox: "1"}), (roomy(sandbox),)).templates
    assert wire(template.content.data)["EnclaveOptions"] == {"Enabled": False}
