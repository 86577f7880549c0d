"""Subnets, security groups and instance profiles that launches read from moto (AWS-964, AWS-965, AWS-971)."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_network

from support.aws.instances import DoubleInstance
from support.aws.moto_backend import Moto
from support.aws.wire import Fields, Refusal


class Network:
    """Reads of moto, cached until ``forget``."""

    def __init__(self, moto: Moto) -> None:
        self._moto = moto
        self._subnets: dict[str, Fields] = {}
        self._groups: dict[str, str] = {}
        self._profiles: set[str] = set()

    def forget(self) -> None:
        """Clear the cache after a change in moto."""
        self._subnets = {}
        self._groups = {}
        self._profiles = set()

    def _subnet(self, subnet_id: str) -> Fields | None:
        if not self._subnets:
            self._subnets = {
                subnet["SubnetId"]: subnet for subnet in self._moto.ask("ec2", "DescribeSubnets")["Subnets"]
            }
        return self._subnets.get(subnet_id)

    def _vpc_of_group(self, group_id: str) -> str | None:
        if not self._groups:
            entries = self._moto.ask("ec2", "DescribeSecurityGroups")["SecurityGroups"]
            self._groups = {entry["GroupId"]: entry["VpcId"] for entry in entries}
        return self._groups.get(group_id)

    def zone(self, subnet_id: str) -> str:
        """The zone of a subnet; empty for an unknown one."""
        return str((self._subnet(subnet_id) or {}).get("AvailabilityZone", ""))

    def vpc(self, subnet_id: str) -> str:
        """The VPC of a subnet."""
        return str((self._subnet(subnet_id) or {}).get("VpcId", ""))

    def check(self, subnet_id: str, groups: Sequence[str]) -> None:
        """Check that a subnet and security groups exist in one VPC. Raises ``Refusal``."""
        if self._subnet(subnet_id) is None:
            raise Refusal("InvalidSubnetID.NotFound", f"The subnet ID '{subnet_id}' does not exist")
        for group in groups:
            vpc = self._vpc_of_group(group)
            if vpc is None:
                raise Refusal("InvalidGroup.NotFound", f"The security group '{group}' does not exist")
            if vpc != self.vpc(subnet_id):
                raise Refusal(
                    "InvalidParameter", f"Security group {group} and subnet {subnet_id} belong to different networks."
                )

    def check_profile(self, name: str | None) -> None:
        """Check that an instance profile exists. Raises ``Refusal``."""
        if not name or name in self._profiles:
            return
        try:
            self._moto.ask("iam", "GetInstanceProfile", {"InstanceProfileName": name})
        except Refusal:
            raise Refusal(
                "InvalidParameterValue",
                f"Value ({name}) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name",
            ) from None
        self._profiles.add(name)

    def free_addresses(self, entry: Fields, instances: Sequence[DoubleInstance]) -> int:
        """Free addresses of a subnet with these instances."""
        taken = sum(instance.addresses for instance in instances if instance.subnet_id == entry["SubnetId"])
        return max(0, int(entry["AvailableIpAddressCount"]) - taken)

    def check_addresses(self, subnet_id: str, wanted: int, instances: Sequence[DoubleInstance]) -> None:
        """Check that a subnet has enough free addresses. Raises ``Refusal``."""
        entry = self._subnet(subnet_id)
        if entry is None or self.free_addresses(entry, instances) < wanted:
            raise Refusal(
                "InsufficientFreeAddressesInSubnet",
                f"There are not enough free addresses in subnet '{subnet_id}' to satisfy the requested number of instances.",
            )

    def address(self, subnet_id: str, number: int) -> str:
        """An address of a subnet: AWS reserves the first four."""
        network = ip_network((self._subnet(subnet_id) or {})["CidrBlock"])
        return str(network[4 + number % (network.num_addresses - 5)])

    def host_name(self, address: str) -> str:
        """The private DNS name of an address."""
        region = self._moto.region
        domain = "ec2.internal" if region == "us-east-1" else f"{region}.compute.internal"
        return f"ip-{address.replace('.', '-')}.{domain}"
