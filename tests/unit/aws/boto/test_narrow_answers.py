"""Answers decoded only as far as they are read give the same values as whole answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, get_args

import msgspec
import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.parsers import create_parser

from karpenter.metrics import Metrics
from karpenter.providers.aws.aws_metrics import SdkMetrics
from karpenter.providers.aws.aws_types import AwsStruct
from karpenter.providers.aws.sdk import api_clients, doctor_client
from karpenter.providers.aws.sdk.aws_session import AwsSession
from karpenter.providers.aws.sdk.lazy_models import LazyModelFiles
from karpenter.providers.aws.sdk.narrow_answers import narrow_answer, restore_answer
from karpenter.providers.aws.sdk.service_client import ApiOperation, RateLimitGroup

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
_LAST_PAGE = _ANSWER.replace(b"<nextToken>more</nextToken>", b"")

_SERVICES = (
    "ec2",
    "eks",
    "sqs",
    "ssm",
    "iam",
    "pricing",
    "sts",
    "arc-zonal-shift",
    "events",
    "kms",
    "service-quotas",
)
#: Names of pagination tokens.
_TOKENS = {"NextToken", "nextToken", "Marker"}


@cache
def _description(service: str) -> Any:
    version = Loader().determine_latest_version(service, "service-2")
    return LazyModelFiles().load_file(f"{Loader.BUILTIN_DATA_PATH}/{service}/{version}/service-2")


def _model(service: str = "ec2") -> ServiceModel:
    return ServiceModel(_description(service), service)


def _operations() -> Iterator[tuple[str, ApiOperation[Any]]]:
    """All operations whose answers are decoded partly, with their services."""
    for module in (api_clients, doctor_client):
        for operation in vars(module).values():
            if isinstance(operation, ApiOperation) and operation.used_members:
                (service,) = (each for each in _SERVICES if operation.name in _model(each).operation_names)
                yield service, operation


_OPERATIONS = [pytest.param(*each, id=each[1].name) for each in _operations()]
_INSTANCES: ApiOperation[Any] = next(each for _, each in _operations() if each.name == "DescribeInstances")


def _parsed(model: ServiceModel) -> dict[str, Any]:
    answer = {"status_code": 200, "headers": {}, "body": _ANSWER}
    result: dict[str, Any] = create_parser("ec2").parse(answer, model.operation_model("DescribeInstances").output_shape)
    return result


def test_fields_read_of_an_instance_equal_those_of_a_whole_answer() -> None:
    whole, narrow = _model(), _model()
    narrow_answer(narrow, "DescribeInstances", _INSTANCES.used_members)
    expected, parsed = _parsed(whole), _parsed(narrow)
    read = [msgspec.convert(each["Reservations"], _INSTANCES.type, strict=False) for each in (expected, parsed)]
    assert read[0] == read[1]
    assert parsed["NextToken"] == "more"


def test_fields_that_are_not_read_are_not_decoded() -> None:
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


@pytest.mark.parametrize(("service", "operation"), _OPERATIONS)
def test_every_member_that_a_type_reads_and_the_service_describes_stays(
    service: str, operation: ApiOperation[Any]
) -> None:
    """A member that is missing in the narrowed description would always have its default."""
    narrow = _model(service)
    narrow_answer(narrow, operation.name, operation.used_members)
    whole = _model(service).operation_model(operation.name).output_shape
    assert set(operation.used_members) <= set(whole.members)
    kept = narrow.operation_model(operation.name).output_shape
    assert set(kept.members) == set(operation.used_members)
    assert list(_read(whole, operation)) == list(_read(kept, operation))


@pytest.mark.parametrize(("service", "operation"), _OPERATIONS)
def test_answers_have_pages_where_the_service_describes_them(service: str, operation: ApiOperation[Any]) -> None:
    """Without its token only the first page would be read."""
    described = _TOKENS & set(_model(service).operation_model(operation.name).output_shape.members)
    assert described == ({operation.pagination.output_token} if operation.pagination is not None else set())


def _read(output: Any, operation: ApiOperation[Any]) -> Iterator[tuple[str, str]]:
    """Paths and kinds of all members that the operation's type names, as far as the description has them."""
    for member, of_type in operation.used_members.items():
        yield from _paths(output.members[member], of_type, member)


def _paths(shape: Any, of_type: object, path: str) -> Iterator[tuple[str, str]]:
    yield path, shape.type_name
    while shape.type_name in ("list", "map"):
        shape = shape.member if shape.type_name == "list" else shape.value
    if shape.type_name == "structure":
        for struct in _structs(of_type):
            for field in msgspec.structs.fields(struct):
                if field.encode_name in shape.members:
                    yield from _paths(shape.members[field.encode_name], field.type, f"{path}.{field.encode_name}")


def _structs(of_type: object) -> list[type[msgspec.Struct]]:
    if isinstance(of_type, type) and issubclass(of_type, msgspec.Struct):
        return [of_type]
    return [struct for part in get_args(of_type) for struct in _structs(part)]


class _Owner(AwsStruct, frozen=True, kw_only=True):
    """Fields that another caller reads of the same answer."""

    owner_id: str = ""


_OWNERS = ApiOperation("DescribeInstances", "Reservations", tuple[_Owner, ...], RateLimitGroup.EC2_READ)


@asynccontextmanager
async def _session(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AwsSession]:
    """A session whose EC2 gives the same answer to every call."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for name, value in (
        ("REGION", "us-west-2"),
        ("ACCESS_KEY_ID", "key"),
        ("SECRET_ACCESS_KEY", "secret"),
        ("ENDPOINT_URL", f"http://127.0.0.1:{port}"),
        ("CONFIG_FILE", "/nonexistent"),
        ("SHARED_CREDENTIALS_FILE", "/nonexistent"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    session = AwsSession(SdkMetrics(Metrics()))
    try:
        await session.open()
        yield session
    finally:
        session.close()
        server.close()
        await server.wait_closed()


async def test_a_session_does_not_decode_unread_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """An invalid time shows which fields are decoded."""
    answer = _LAST_PAGE.replace(b"<attachTime>2026-01-01T00:00:00.000Z", b"<attachTime>no time")
    async with _session(answer, monkeypatch) as session:
        (instance,) = await session.services.ec2.describe_instances(("i-1",))
        assert instance.instance_id == "i-1"
        with pytest.raises(ValueError, match="no time"):
            await session.service("ec2").call(_OWNERS, {})


async def test_an_operation_that_two_callers_read_differently_is_decoded_for_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _session(_LAST_PAGE, monkeypatch) as session:
        for _ in range(2):
            (instance,) = await session.services.ec2.describe_instances(("i-1",))
            assert (instance.instance_id, instance.instance_type) == ("i-1", "m5.large")
            assert await session.service("ec2").call(_OWNERS, {}) == (_Owner(owner_id="1"),)
