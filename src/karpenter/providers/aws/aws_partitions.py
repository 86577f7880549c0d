"""AWS partitions: separate clouds with their own accounts, endpoints, currency and price list.

botocore knows the endpoints of most services by region. What it does not say stands here; a test compares the rest with it.
"""

from __future__ import annotations

from typing import NamedTuple


class AwsPartition(NamedTuple):
    """A partition, as in an ARN.

    ``region_prefix`` begins the names of its regions. ``pricing_region`` serves its price list; empty where no endpoint does.
    """

    id: str
    region_prefix: str
    dns_suffix: str
    pricing_region: str
    currency: str = "USD"

    @property
    def ec2_principal(self) -> str:
        """EC2 as the service that node roles trust."""
        return f"ec2.{self.dns_suffix}"


_COMMERCIAL = AwsPartition("aws", "", "amazonaws.com", "us-east-1")
_OTHERS = (
    AwsPartition("aws-cn", "cn-", "amazonaws.com.cn", "cn-northwest-1", "CNY"),
    AwsPartition("aws-us-gov", "us-gov-", "amazonaws.com", ""),
    AwsPartition("aws-iso", "us-iso-", "c2s.ic.gov", "us-iso-east-1"),
    AwsPartition("aws-iso-b", "us-isob-", "sc2s.sgov.gov", "us-isob-east-1"),
    AwsPartition("aws-iso-e", "eu-isoe-", "cloud.adc-e.uk", "eu-isoe-west-1"),
    AwsPartition("aws-iso-f", "us-isof-", "csp.hci.ic.gov", "us-isof-south-1"),
    AwsPartition("aws-eusc", "eusc-", "amazonaws.eu", "eusc-de-east-1", "EUR"),
)
PARTITIONS = (_COMMERCIAL, *_OTHERS)
#: The commercial partition serves its price list in three regions; this one to regions whose name begins so (AWS-362).
_NEAREST_PRICING_REGIONS = {"ap-": "ap-south-1", "eu-": "eu-central-1"}


def partition_of(region: str) -> AwsPartition:
    """The partition a region belongs to, by its name."""
    return next((partition for partition in _OTHERS if region.startswith(partition.region_prefix)), _COMMERCIAL)


def partition_by_id(partition_id: str) -> AwsPartition:
    """The partition of an ARN; the commercial one for ids we do not know."""
    return next((partition for partition in _OTHERS if partition.id == partition_id), _COMMERCIAL)


def pricing_region(region: str) -> str:
    """Where to read the price list of a region's partition; empty where it cannot be read (AWS-362, AWS-364)."""
    partition = partition_of(region)
    if partition is not _COMMERCIAL:
        return partition.pricing_region
    return next(
        (nearest for start, nearest in _NEAREST_PRICING_REGIONS.items() if region.startswith(start)),
        partition.pricing_region,
    )
