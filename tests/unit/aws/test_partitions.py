"""Settings by AWS partition: endpoints, currency, price list, service principals."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import botocore
import pytest

from karpenter.providers.aws import cloudformation, iam_policies
from karpenter.providers.aws.aws_partitions import PARTITIONS, partition_by_id, partition_of, pricing_region

_DATA = Path(botocore.__file__).parent / "data"
_PARTITIONS: Mapping[str, Any] = {
    entry["id"]: entry for entry in json.loads((_DATA / "partitions.json").read_text())["partitions"]
}
_ENDPOINTS: Mapping[str, Any] = {
    entry["partition"]: entry for entry in json.loads((_DATA / "endpoints.json").read_text())["partitions"]
}


def test_the_partitions_are_those_of_botocore() -> None:
    """A partition that AWS adds fails here once botocore knows it."""
    assert {partition.id: partition.dns_suffix for partition in PARTITIONS} == {
        name: entry["outputs"]["dnsSuffix"] for name, entry in _PARTITIONS.items()
    }


@pytest.mark.parametrize("name", sorted(_PARTITIONS))
def test_every_region_is_in_its_partition(name: str) -> None:
    """Also isolated regions, whose names begin like those of others: us-iso, us-isob, us-isof, eu-isoe."""
    regions = [region for region in _PARTITIONS[name]["regions"] if re.match(_PARTITIONS[name]["regionRegex"], region)]
    assert regions
    assert {partition_of(region).id for region in regions} == {name}
    assert partition_by_id(name).id == name


@pytest.mark.parametrize("name", sorted(_PARTITIONS))
def test_the_price_list_is_read_where_the_partition_serves_it(name: str) -> None:
    """AWS-362, AWS-364: GovCloud serves none."""
    served = _ENDPOINTS[name]["services"].get("api.pricing", {}).get("endpoints", {})
    regions = [region for region in _PARTITIONS[name]["regions"] if re.match(_PARTITIONS[name]["regionRegex"], region)]
    asked = {pricing_region(region) for region in regions}
    assert asked <= (set(served) or {""})


@pytest.mark.parametrize(
    ("region", "pricing"),
    [
        ("us-east-2", "us-east-1"),
        ("ap-east-1", "ap-south-1"),
        ("eu-west-1", "eu-central-1"),
        ("cn-north-1", "cn-northwest-1"),
        ("us-gov-west-1", ""),
        ("eu-isoe-west-1", "eu-isoe-west-1"),
        ("eusc-de-east-1", "eusc-de-east-1"),
    ],
)
def test_the_price_list_of_a_region(region: str, pricing: str) -> None:
    """AWS-362."""
    assert pricing_region(region) == pricing


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda partition: partition.id)
def test_node_roles_trust_ec2_as_the_partition_calls_it(partition: Any) -> None:
    """The trust policy and the condition of iam:PassRole name the same service."""
    place = iam_policies.ClusterLocation("shop", "region-1", "123456789012", partition.id)
    role = cloudformation.cloudformation_template(place)["Resources"]["KarpenterNodeRole"]["Properties"]
    trusted = role["AssumeRolePolicyDocument"]["Statement"][0]["Principal"]["Service"]
    assert trusted == f"ec2.{partition.dns_suffix}"
    statements = [statement for policy in iam_policies.controller_policies(place) for statement in policy.statements]
    document: dict[str, Any] = iam_policies.policy_document(statements)
    passing = next(entry for entry in document["Statement"] if entry["Sid"] == "AllowPassingInstanceRole")
    assert trusted in passing["Condition"]["StringEquals"]["iam:PassedToService"]
