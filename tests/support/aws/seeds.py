"""Resources for tests of the AWS provider: subnets, a security group and an instance profile that selectors find; requests."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from support.aws.clients import AwsEndpoint, client
from support.aws.wire import Fields

TAG = {"Key": "karpenter.sh/discovery", "Value": "test"}
STANDARD = "/aws/service/eks/optimized-ami/1.35/amazon-linux-2023/x86_64/standard/recommended/image_id"


@dataclass(frozen=True)
class Seeds:
    """Ids of the created resources; subnets by zone."""

    vpc: str
    subnets: dict[str, str]
    group: str
    profile: str
    image: str


def seed(double: AwsEndpoint, addresses: int = 24) -> Seeds:
    """Create a VPC with a subnet of prefix length ``addresses`` in each of the zones a, b and c, all with the discovery tag."""
    ec2, iam = client(double, "ec2"), client(double, "iam")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnets = {}
    for index, letter in enumerate("abc"):
        zone = f"{double.region_name}{letter}"
        block = f"10.0.{index << max(0, 24 - addresses)}.0/{addresses}"
        subnets[zone] = ec2.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone=zone)["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="nodes", Description="nodes", VpcId=vpc)["GroupId"]
    ec2.create_tags(Resources=[*subnets.values(), group], Tags=[TAG])
    iam.create_role(RoleName="node", AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName="nodes")
    iam.add_role_to_instance_profile(InstanceProfileName="nodes", RoleName="node")
    image = client(double, "ssm").get_parameter(Name=STANDARD)["Parameter"]["Value"]
    return Seeds(vpc, subnets, group, "nodes", image)


def template(seeds: Seeds, user_data: bytes = b"", **more: Any) -> Fields:
    """Launch template data such as the provider creates."""
    return {
        "ImageId": seeds.image,
        "UserData": base64.b64encode(user_data).decode(),
        "IamInstanceProfile": {"Name": seeds.profile},
        "NetworkInterfaces": [{"DeviceIndex": 0, "Groups": [seeds.group]}],
        "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled"},
        "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 20, "VolumeType": "gp3"}}],
        "Monitoring": {"Enabled": True},
        **more,
    }


def fleet(seeds: Seeds, types: Sequence[str], capacity_type: str = "on-demand", units: int = 1, **more: Any) -> Fields:
    """A CreateFleet request of the template ``nodes``: every type in every subnet; earlier types have priority."""
    strategies = {
        "spot": {"SpotOptions": {"AllocationStrategy": "price-capacity-optimized"}},
        "on-demand": {"OnDemandOptions": {"AllocationStrategy": "lowest-price"}},
    }
    overrides = [
        {"InstanceType": name, "SubnetId": subnet, "AvailabilityZone": zone, "Priority": float(index)}
        for index, name in enumerate(types)
        for zone, subnet in seeds.subnets.items()
    ]
    return {
        "Type": "instant",
        "TargetCapacitySpecification": {"TotalTargetCapacity": units, "DefaultTargetCapacityType": capacity_type},
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateName": "nodes", "Version": "$Latest"},
                "Overrides": overrides,
            }
        ],
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": [{"Key": "karpenter.sh/nodepool", "Value": "default"}]}
        ],
        **strategies.get(capacity_type, {}),
        **more,
    }
