"""Long lists of EC2, decoded by ourselves: the same as the library makes of them, and what is not XML."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from botocore import xform_name
from botocore.session import get_session

from karpenter.providers.aws.sdk import api_clients
from karpenter.providers.aws.sdk.api_clients import LIST_DECODER
from karpenter.providers.aws.sdk.ec2_xml_lists import Ec2ListDecoder
from karpenter.providers.aws.sdk.service_client import ApiOperation
from support.aws.clients import client
from support.aws.double import Double
from support.aws.seeds import Seeds, fleet, template

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def machine(aws: Double, seeds: Seeds) -> str:
    """One machine, with tags and an interface."""
    aws.control.set_spot_price("m5.large", "us-west-2a", 0.0123)
    api = client(aws, "ec2")
    api.create_launch_template(LaunchTemplateName="nodes", LaunchTemplateData=template(seeds))
    made = api.create_fleet(**fleet(seeds, ["m5.large"], "spot"))
    return str(made["Instances"][0]["InstanceIds"][0])


@pytest.mark.parametrize(
    ("operation", "request_"),
    [
        (api_clients._TYPES, {"InstanceTypes": ["m5.large", "g5.xlarge", "p5.48xlarge", "i4i.metal", "inf2.xlarge"]}),
        (api_clients._TYPES, {"MaxResults": 5}),
        (api_clients._OFFERINGS, {"LocationType": "availability-zone", "MaxResults": 50}),
        (api_clients._SPOT_PRICES, {"InstanceTypes": ["m5.large"], "StartTime": NOW}),
        (api_clients._INSTANCES, {}),
        (api_clients._STATUSES, {}),
    ],
    ids=lambda value: value.name if isinstance(value, ApiOperation) else "-".join(value) or "all",
)
def test_a_list_is_what_the_library_makes_of_it(
    machine: str, aws: Double, operation: ApiOperation[Any], request_: dict[str, object]
) -> None:
    method = xform_name(operation.name)
    theirs = getattr(client(aws, "ec2"), method)(**request_)
    ours = getattr(_client(aws), method)(**request_)
    found = msgspec.convert(ours[operation.member], operation.type, strict=False)
    expected = msgspec.convert(theirs[operation.member], operation.type)
    assert len(found) > 0
    if operation is api_clients._SPOT_PRICES:  # told with the moment they were asked for
        found, expected = (
            [msgspec.structs.replace(price, timestamp=None) for price in each] for each in (found, expected)
        )
    assert list(found) == list(expected)
    assert ours.get("NextToken") == theirs.get("NextToken")


def test_a_refusal_is_left_to_the_library(aws: Double) -> None:
    aws.control.deny("ec2:DescribeInstances")
    with pytest.raises(Exception, match="ec2:DescribeInstances"):
        _client(aws).describe_instances()


@pytest.mark.parametrize("body", [b"", b"<html><body>Bad Gateway", b"{}"])
def test_what_is_no_xml_is_left_to_the_library(body: bytes) -> None:
    model = get_session().get_service_model("ec2").operation_model("DescribeInstances")
    answer: dict[str, object] = {"status_code": 200, "body": body}
    put: dict[str, object] = {}
    LIST_DECODER.before_parse(model, answer, put)
    assert (answer["body"], put) == (body, {})


def test_an_operation_that_is_no_long_list_is_left_to_the_library() -> None:
    model = get_session().get_service_model("ec2").operation_model("DescribeVpcs")
    answer: dict[str, object] = {"status_code": 200, "body": b"<a/>"}
    put: dict[str, object] = {}
    Ec2ListDecoder({"DescribeInstances": api_clients._INSTANCES}).before_parse(model, answer, put)
    assert (answer["body"], put) == (b"<a/>", {})


def _client(aws: Double) -> Any:
    """A client of the library's own, with our decoder."""
    api = get_session().create_client(
        "ec2",
        region_name=aws.region_name,
        endpoint_url=aws.url,
        aws_access_key_id="AKIADOUBLE",
        aws_secret_access_key="secret",
    )
    api.meta.events.register("before-parse.ec2", LIST_DECODER.before_parse)
    return api
