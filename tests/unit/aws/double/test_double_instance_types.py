"""What the double describes: instance types, zones, prices, images and the parameters that name them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.aws.clients import client
from support.aws.double import Double
from support.aws.refusals import refused
from support.aws.seeds import STANDARD, Seeds

_HVM = [
    {"Name": "supported-virtualization-type", "Values": ["hvm"]},
    {"Name": "processor-info.supported-architecture", "Values": ["x86_64", "arm64"]},
]


def test_types_are_paged_by_at_most_a_hundred(aws: Double, ec2: Any) -> None:
    """AWS-960, AWS-T962."""
    pages = list(
        ec2.get_paginator("describe_instance_types").paginate(Filters=_HVM, PaginationConfig={"PageSize": 100})
    )
    names = [entry["InstanceType"] for page in pages for entry in page["InstanceTypes"]]
    assert len(pages) == 14
    assert len(set(names)) == len(names) > 1300
    assert len(aws.calls.of("DescribeInstanceTypes")) == 14


def test_a_type_has_the_fields_that_the_provider_reads(ec2: Any) -> None:
    """AWS-960."""
    (instance_type,) = ec2.describe_instance_types(InstanceTypes=["p4d.24xlarge"])["InstanceTypes"]
    assert instance_type["VCpuInfo"]["DefaultVCpus"] == 96
    assert instance_type["NetworkInfo"]["EfaInfo"]["MaximumEfaInterfaces"] == 4
    assert [card["NetworkCardIndex"] for card in instance_type["NetworkInfo"]["NetworkCards"]] == [0, 1, 2, 3]
    assert instance_type["GpuInfo"]["Gpus"][0]["Manufacturer"] == "NVIDIA"


def test_a_page_of_types_larger_than_a_hundred_is_refused(ec2: Any) -> None:
    """AWS-960."""
    with refused("InvalidParameterValue"):
        ec2.describe_instance_types(MaxResults=101)


def test_a_dry_run_of_a_describe_call_is_answered_as_such(ec2: Any) -> None:
    """AWS-960."""
    with refused("DryRunOperation"):
        ec2.describe_instance_types(DryRun=True)


def test_offerings_are_paged_and_have_zones(ec2: Any) -> None:
    """AWS-961."""
    pages = list(
        ec2.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone", PaginationConfig={"PageSize": 1000}
        )
    )
    offered = {(entry["InstanceType"], entry["Location"]) for page in pages for entry in page["InstanceTypeOfferings"]}
    assert len(pages) > 4
    assert {zone for _, zone in offered} == {"us-west-2a", "us-west-2b", "us-west-2c", "us-west-2d"}


def test_zones_have_ids(ec2: Any) -> None:
    """AWS-962."""
    zones = ec2.describe_availability_zones()["AvailabilityZones"]
    assert {entry["ZoneName"]: entry["ZoneId"] for entry in zones}["us-west-2a"] == "usw2-az2"


def _spot_price(ec2: Any, name: str, zone: str) -> float | None:
    history = ec2.describe_spot_price_history(
        InstanceTypes=[name], ProductDescriptions=["Linux/UNIX", "Linux/UNIX (Amazon VPC)"]
    )["SpotPriceHistory"]
    return next((float(entry["SpotPrice"]) for entry in history if entry["AvailabilityZone"] == zone), None)


def test_spot_prices_are_the_packaged_ones_until_a_test_sets_one(aws: Double, ec2: Any) -> None:
    """AWS-963."""
    before = _spot_price(ec2, "m5.large", "us-west-2a")
    aws.control.set_spot_price("m5.large", "us-west-2a", 0.5)
    aws.control.set_spot_price("m5.large", "us-west-2b", None)
    assert before is not None
    assert 0 < before < 0.096
    assert _spot_price(ec2, "m5.large", "us-west-2a") == 0.5
    assert _spot_price(ec2, "m5.large", "us-west-2b") is None
    assert _spot_price(ec2, "m5.large", "us-west-2c") == before


def test_products_are_json_texts_paged_by_a_hundred(aws: Double) -> None:
    """AWS-978, AWS-360, AWS-361."""
    wanted = {
        "regionCode": "us-west-2",
        "tenancy": "Shared",
        "productFamily": "Compute Instance",
        "marketoption": "OnDemand",
    }
    filters = [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in wanted.items()]
    pages = list(
        client(aws, "pricing").get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=filters)
    )
    prices = {}
    for text in (text for page in pages for text in page["PriceList"]):
        product = json.loads(text)
        (term,) = product["terms"]["OnDemand"].values()
        (dimension,) = term["priceDimensions"].values()
        prices[product["product"]["attributes"]["instanceType"]] = float(dimension["pricePerUnit"]["USD"])
    assert len(pages) > 5
    assert max(len(page["PriceList"]) for page in pages) == 100
    assert prices["m5.large"] == 0.096
    assert "m5.metal" not in prices


def test_bare_metal_types_have_dedicated_tenancy(aws: Double) -> None:
    """AWS-360."""
    filters = [{"Type": "TERM_MATCH", "Field": "tenancy", "Value": "Dedicated"}]
    pages = client(aws, "pricing").get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=filters)
    names = {json.loads(text)["product"]["attributes"]["instanceType"] for page in pages for text in page["PriceList"]}
    assert "m5.metal" in names
    assert all("metal" in name for name in names)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("eks/optimized-ami/1.32/amazon-linux-2/recommended", "amazon-eks-node-1.32-v20260801"),
        (
            "eks/optimized-ami/1.32/amazon-linux-2-gpu/amazon-eks-gpu-node-1.32-v20260301",
            "amazon-eks-gpu-node-1.32-v20260301",
        ),
        (
            "eks/optimized-ami/1.35/amazon-linux-2023/arm64/nvidia/recommended",
            "amazon-eks-node-al2023-arm64-nvidia-1.35-v20260801",
        ),
        (
            "eks/optimized-ami/1.34/amazon-linux-2023/x86_64/neuron/amazon-eks-node-al2023-x86_64-neuron-1.34-v20260301",
            "amazon-eks-node-al2023-x86_64-neuron-1.34-v20260301",
        ),
        ("bottlerocket/aws-k8s-1.35-nvidia/arm64/latest", "bottlerocket-aws-k8s-1.35-nvidia-arm64-v1.55.0-4a1b2c3d"),
        ("bottlerocket/aws-k8s-1.35/x86_64/1.50.0", "bottlerocket-aws-k8s-1.35-x86_64-v1.50.0-4a1b2c3d"),
        (
            "ami-windows-latest/Windows_Server-2022-English-Core-EKS_Optimized-1.35",
            "Windows_Server-2022-English-Core-EKS_Optimized-1.35-2026.08.01",
        ),
    ],
    ids=["AWS-184", "AWS-185", "AWS-186", "AWS-187", "AWS-188-latest", "AWS-188-pinned", "AWS-189"],
)
def test_public_parameters_name_images(aws: Double, ec2: Any, path: str, name: str) -> None:
    """AWS-967."""
    value = client(aws, "ssm").get_parameter(Name=f"/aws/service/{path}/image_id")["Parameter"]["Value"]
    (image,) = ec2.describe_images(Filters=[{"Name": "image-id", "Values": [value]}])["Images"]
    assert image["Name"] == name


def test_parameters_of_unpublished_versions_are_not_found(aws: Double) -> None:
    """AWS-967."""
    with refused("ParameterNotFound"):
        client(aws, "ssm").get_parameter(Name=STANDARD.replace("1.35", "1.10"))


def test_a_parameter_of_the_account_is_stored(aws: Double) -> None:
    """AWS-967."""
    ssm = client(aws, "ssm")
    ssm.put_parameter(Name="/mine/image", Value="ami-0123456789abcdef0", Type="String")
    assert ssm.get_parameter(Name="/mine/image")["Parameter"]["Value"] == "ami-0123456789abcdef0"


def test_a_new_release_updates_the_latest_parameters(aws: Double) -> None:
    """AWS-967, AWS-181."""
    ssm = client(aws, "ssm")
    before = ssm.get_parameter(Name=STANDARD)["Parameter"]["Value"]
    aws.control.release_images("2026-09-01")
    after = ssm.get_parameter(Name=STANDARD)["Parameter"]["Value"]
    assert after != before
    assert after == aws.control.image_named("amazon-eks-node-al2023-x86_64-standard-1.35-v20260901")


def test_images_of_the_account_have_architecture_tags_and_dates(aws: Double, ec2: Any) -> None:
    """AWS-966."""
    aws.control.add_image("ami-0123456789abcdef0", "mine", "arm64", "2026-02-03T04:05:06Z", {"team": "a"})
    (image,) = ec2.describe_images(Owners=["self"], Filters=[{"Name": "tag:team", "Values": ["?"]}])["Images"]
    assert image["ImageId"] == "ami-0123456789abcdef0"
    assert image["Architecture"] == "arm64"
    assert image["CreationDate"] == "2026-02-03T04:05:06.000Z"
    assert image["State"] == "available"


def test_deprecated_images_of_other_accounts_are_described_only_on_request(aws: Double, ec2: Any) -> None:
    """AWS-966, AWS-195."""
    name = "amazon-eks-node-al2023-x86_64-standard-1.35-v20260301"
    aws.control.deprecate_image(aws.control.image_named(name), "2026-04-01T00:00:00Z")
    wanted = [{"Name": "name", "Values": [name]}]
    assert ec2.describe_images(Filters=wanted)["Images"] == []
    (image,) = ec2.describe_images(Filters=wanted, IncludeDeprecated=True)["Images"]
    assert image["DeprecationTime"] == "2026-04-01T00:00:00.000Z"


def test_an_unknown_image_id_fails_the_call(ec2: Any) -> None:
    """AWS-966."""
    with refused("InvalidAMIID.NotFound"):
        ec2.describe_images(ImageIds=["ami-00000000000000000"])


def test_subnets_are_found_by_tag_in_pages_and_count_free_addresses(aws: Double, ec2: Any, seeds: Seeds) -> None:
    """AWS-964."""
    wanted = [{"Name": "tag:karpenter.sh/discovery", "Values": ["te*"]}]
    pages = list(ec2.get_paginator("describe_subnets").paginate(Filters=wanted, PaginationConfig={"PageSize": 5}))
    actual = {entry["SubnetId"]: entry for page in pages for entry in page["Subnets"]}
    assert set(actual) == set(seeds.subnets.values())
    assert {entry["AvailableIpAddressCount"] for entry in actual.values()} == {251}
    subnet = seeds.subnets["us-west-2a"]
    ec2.run_instances(
        MinCount=2,
        MaxCount=2,
        LaunchTemplate={"LaunchTemplateName": "nodes"},
        InstanceType="m5.large",
        NetworkInterfaces=[{"DeviceIndex": 0, "SubnetId": subnet}],
    )
    (left,) = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"]
    assert left["AvailableIpAddressCount"] == 249


def test_security_groups_are_found_by_name_and_tag(ec2: Any, seeds: Seeds) -> None:
    """AWS-965."""
    for wanted in (
        {"Name": "group-name", "Values": ["no*"]},
        {"Name": "tag-key", "Values": ["karpenter.sh/discovery"]},
    ):
        security_groups = ec2.describe_security_groups(Filters=[wanted])["SecurityGroups"]
        assert [entry["GroupId"] for entry in security_groups] == [seeds.group]
