"""Answers decoded as far as they are read are converted into the same values as whole ones."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.parsers import create_parser

from karpenter.providers.aws.sdk import api_clients
from karpenter.providers.aws.sdk.aws_session import AwsSessionOptions, _ClientFactory
from karpenter.providers.aws.sdk.lazy_models import LazyModelFiles
from karpenter.providers.aws.sdk.narrow_answers import narrow_answer, restore_answer
from karpenter.providers.aws.sdk.service_client import ApiOperation, RateLimitGroup

_INSTANCES = api_clients._INSTANCES
_ANSWER = b"""<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">
<requestId>r-1</requestId><nextToken>more</nextToken>
<reservationSet><item><reservationId>r-1</reservationId><ownerId>1</ownerId><instancesSet><item>
<instanceId>i-1</instanceId><imageId>ami-1</imageId><instanceType>m5.large</instanceType>
<instanceState><code>16</code><name>running</name></instanceState>
<placement><availabilityZone>us-west-2a</availabilityZone><tenancy>default</tenancy></placement>
<launchTime>2026-01-01T00:00:00.000Z</launchTime>
<blockDeviceMapping><item><deviceName>/dev/xvda</deviceName>
<ebs><volumeId>vol-1</volumeId><attachTime>2026-01-01T00:00:00.000Z</attachTime></ebs></item></blockDeviceMapping>
<groupSet><item><groupId>sg-1</groupId><groupName>nodes</groupName></item></groupSet>
<networkInterfaceSet><item><networkInterfaceId>eni-1</networkInterfaceId><interfaceType>efa</interfaceType></item></networkInterfaceSet>
<tagSet><item><key>Name</key><value>n</value></item></tagSet>
</item></instancesSet></item></reservationSet></DescribeInstancesResponse>"""


@cache
def _description() -> Any:
    loader = Loader()
    version = loader.determine_latest_version("ec2", "service-2")
    return LazyModelFiles().load_file(f"{Loader.BUILTIN_DATA_PATH}/ec2/{version}/service-2")


def _model() -> ServiceModel:
    return ServiceModel(_description(), "ec2")


def _parsed(model: ServiceModel) -> dict[str, Any]:
    answer = {"status_code": 200, "headers": {}, "body": _ANSWER}
    result: dict[str, Any] = create_parser("ec2").parse(answer, model.operation_model("DescribeInstances").output_shape)
    return result


def test_what_is_read_of_an_instance_is_what_a_whole_answer_says() -> None:
    whole, narrow = _model(), _model()
    narrow_answer(narrow, "DescribeInstances", _INSTANCES.used_members)
    expected, parsed = _parsed(whole), _parsed(narrow)
    read = [msgspec.convert(each["Reservations"], _INSTANCES.type, strict=False) for each in (expected, parsed)]
    assert read[0] == read[1]
    assert parsed["NextToken"] == "more"


def test_what_is_not_read_of_an_instance_is_not_decoded() -> None:
    model = _model()
    narrow_answer(model, "DescribeInstances", _INSTANCES.used_members)
    (instance,) = _parsed(model)["Reservations"][0]["Instances"]
    assert "BlockDeviceMappings" not in instance
    assert instance["State"] == {"Name": "running"}
    assert instance["NetworkInterfaces"] == [{"InterfaceType": "efa"}]


def test_a_restored_answer_is_whole() -> None:
    model = _model()
    narrow_answer(model, "DescribeInstances", _INSTANCES.used_members)
    restore_answer(model, "DescribeInstances")
    assert _parsed(model) == _parsed(_model())


_LISTS = [
    each for each in vars(api_clients).values() if isinstance(each, ApiOperation) and each.name.startswith("Describe")
]


@pytest.mark.parametrize("operation", [each for each in _LISTS if each.name in _model().operation_names])
def test_every_member_that_a_type_reads_and_ec2_describes_stays(operation: ApiOperation[object]) -> None:
    """A member that a type has and the narrowed description lacks would always have its default."""
    whole, narrow = _model(), _model()
    narrow_answer(narrow, operation.name, operation.used_members)
    shapes = [model.operation_model(operation.name).output_shape for model in (whole, narrow)]
    assert list(_read(shapes[0], operation)) == list(_read(shapes[1], operation))


def _read(output: Any, operation: ApiOperation[object]) -> Any:
    """Paths of all members that the operation's type names, as far as the description has them."""
    for member, of_type in operation.used_members.items():
        yield from _paths(output.members[member], of_type, member) if member in output.members else ()


def _paths(shape: Any, of_type: object, path: str) -> Any:
    yield path
    while shape.type_name == "list":
        shape = shape.member
    struct = _struct(of_type)
    if shape.type_name == "structure" and struct is not None:
        for field in msgspec.structs.fields(struct):
            if field.encode_name in shape.members:
                yield from _paths(shape.members[field.encode_name], field.type, f"{path}.{field.encode_name}")


def _struct(of_type: object) -> Any:
    parts = [of_type, *getattr(of_type, "__args__", ())]
    return next((part for part in parts if isinstance(part, type) and issubclass(part, msgspec.Struct)), None)


def test_an_operation_that_two_callers_read_differently_is_decoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe may ask for less than what another caller reads of the same operation."""
    for name, value in (("REGION", "us-west-2"), ("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret")):
        monkeypatch.setenv(f"AWS_{name}", value)
    factory = _ClientFactory(AwsSessionOptions("us-west-2"))
    factory.method("ec2", _INSTANCES)
    model = factory._clients["ec2"].meta.service_model
    shape = model.operation_model("DescribeInstances").output_shape
    assert set(shape.members) == {"NextToken", "Reservations"}
    assert len(shape.members["Reservations"].member.members) == 1
    probe = ApiOperation("DescribeInstances", "Reservations", tuple[str, ...], RateLimitGroup.EC2_READ)
    for operation in (probe, _INSTANCES, probe):
        factory.method("ec2", operation)
        shape = model.operation_model("DescribeInstances").output_shape
        assert len(shape.members["Reservations"].member.members) > 1
