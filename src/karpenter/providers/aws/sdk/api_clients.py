"""The API ports implemented on botocore: one class per AWS service, one method per call (``aws_apis``)."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar, cast

import msgspec

from karpenter.providers.aws import aws_types
from karpenter.providers.aws.aws_apis import ImageQuery, PlacementGroupQuery, ReservationQuery, RunInstancesDryRun
from karpenter.providers.aws.aws_types import AwsStruct, Ec2Filter, EksCluster, InstanceProfile, SqsMessage, ZonalShift
from karpenter.providers.aws.ec2_descriptions import (
    CapacityReservationInfo,
    ImageInfo,
    InstanceInfo,
    InstanceStatus,
    InstanceTypeInfo,
    InstanceTypeOffering,
    PlacementGroupInfoEntry,
    SecurityGroupInfo,
    SpotPrice,
    StateChange,
    SubnetInfo,
)
from karpenter.providers.aws.ec2_requests import (
    FleetAnswer,
    FleetRequest,
    LaunchTemplate,
    LaunchTemplateData,
    TagSpecification,
)
from karpenter.providers.aws.sdk.service_client import (
    MARKER,
    NEXT_TOKEN,
    ApiOperation,
    AwsServiceClient,
    CallRetryPolicy,
    RateLimitGroup,
)

#: Page sizes: those of the specification, where EC2 lets one ask for them.
_TYPES_PAGE_SIZE, _PAGE_SIZE, _PRICES_PAGE_SIZE = 100, 1000, 2000
_PRODUCTS = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")

R = TypeVar("R")

Request = dict[str, object]


class _InstanceReservation(AwsStruct, frozen=True, kw_only=True):
    """Instances of one request, as DescribeInstances groups them."""

    instances: tuple[InstanceInfo, ...] = ()


class _ConsoleOutput(AwsStruct, frozen=True, kw_only=True):
    """What an instance printed."""

    output: str = ""


def _ec2_list(name: str, member: str, of_type: type[R]) -> ApiOperation[R]:
    """A list of EC2 that comes in pages."""
    return ApiOperation(name, member, of_type, RateLimitGroup.EC2_READ, pagination=NEXT_TOKEN)


_TYPES = _ec2_list("DescribeInstanceTypes", "InstanceTypes", tuple[InstanceTypeInfo, ...])
_OFFERINGS = _ec2_list("DescribeInstanceTypeOfferings", "InstanceTypeOfferings", tuple[InstanceTypeOffering, ...])
_SPOT_PRICES = _ec2_list("DescribeSpotPriceHistory", "SpotPriceHistory", tuple[SpotPrice, ...])
_SUBNETS = _ec2_list("DescribeSubnets", "Subnets", tuple[SubnetInfo, ...])
_SECURITY_GROUPS = _ec2_list("DescribeSecurityGroups", "SecurityGroups", tuple[SecurityGroupInfo, ...])
_IMAGES = _ec2_list("DescribeImages", "Images", tuple[ImageInfo, ...])
_RESERVATIONS = _ec2_list("DescribeCapacityReservations", "CapacityReservations", tuple[CapacityReservationInfo, ...])
_PLACEMENT_GROUPS = ApiOperation(
    "DescribePlacementGroups", "PlacementGroups", tuple[PlacementGroupInfoEntry, ...], RateLimitGroup.EC2_READ
)
_TEMPLATES = _ec2_list("DescribeLaunchTemplates", "LaunchTemplates", tuple[LaunchTemplate, ...])
_INSTANCES = _ec2_list("DescribeInstances", "Reservations", tuple[_InstanceReservation, ...])
_STATUSES = _ec2_list("DescribeInstanceStatus", "InstanceStatuses", tuple[InstanceStatus, ...])

_CREATE_TEMPLATE = ApiOperation(
    "CreateLaunchTemplate", "LaunchTemplate", LaunchTemplate, RateLimitGroup.EC2_WRITE, CallRetryPolicy.ONCE
)
_DELETE_TEMPLATE = ApiOperation("DeleteLaunchTemplate", "", AwsStruct, RateLimitGroup.EC2_WRITE, CallRetryPolicy.ONCE)
_FLEET_ONCE = ApiOperation("CreateFleet", "", FleetAnswer, RateLimitGroup.EC2_LAUNCH, CallRetryPolicy.ONCE)
_FLEET_WITH_TOKEN = ApiOperation("CreateFleet", "", FleetAnswer, RateLimitGroup.EC2_LAUNCH, CallRetryPolicy.REPEATABLE)
_DRY_RUN_FLEET = ApiOperation("CreateFleet", "", AwsStruct, RateLimitGroup.EC2_LAUNCH, CallRetryPolicy.DRY_RUN)
_DRY_RUN_INSTANCES = ApiOperation("RunInstances", "", AwsStruct, RateLimitGroup.EC2_LAUNCH, CallRetryPolicy.DRY_RUN)
_TERMINATE = ApiOperation(
    "TerminateInstances", "TerminatingInstances", tuple[StateChange, ...], RateLimitGroup.EC2_TERMINATE
)
_REBOOT = ApiOperation("RebootInstances", "", AwsStruct, RateLimitGroup.EC2_WRITE)
_CONSOLE_OUTPUT = ApiOperation("GetConsoleOutput", "", _ConsoleOutput, RateLimitGroup.EC2_READ)
_TAG = ApiOperation("CreateTags", "", AwsStruct, RateLimitGroup.EC2_TAG)


class Ec2Client:
    """All of EC2. See the ports for what the methods mean; all raise ``AwsError``."""

    def __init__(self, service: AwsServiceClient) -> None:
        self._service = service

    # -- what is sold ---------------------------------------------------------------------------------------------------

    async def describe_instance_types(self) -> tuple[InstanceTypeInfo, ...]:
        """See ``InstanceTypeApi`` (AWS-280)."""
        filters = (
            Ec2Filter(name="supported-virtualization-type", values=("hvm",)),
            Ec2Filter(name="processor-info.supported-architecture", values=("x86_64", "arm64")),
        )
        return await self._service.call_all_pages(_TYPES, {**_filter_request(filters), "MaxResults": _TYPES_PAGE_SIZE})

    async def describe_instance_type_offerings(self) -> tuple[InstanceTypeOffering, ...]:
        """See ``InstanceTypeApi`` (AWS-280)."""
        request = {"LocationType": "availability-zone", "MaxResults": _PAGE_SIZE}
        return await self._service.call_all_pages(_OFFERINGS, request)

    async def describe_spot_price_history(self) -> tuple[SpotPrice, ...]:
        """See ``InstanceTypeApi`` (AWS-365)."""
        request = {"StartTime": datetime.now(UTC), "ProductDescriptions": _PRODUCTS, "MaxResults": _PRICES_PAGE_SIZE}
        return await self._service.call_all_pages(_SPOT_PRICES, request)

    # -- what selectors find --------------------------------------------------------------------------------------------

    async def describe_subnets(self, filters: Sequence[Ec2Filter]) -> tuple[SubnetInfo, ...]:
        """See ``DiscoveryApi`` (AWS-143)."""
        return await self._service.call_all_pages(_SUBNETS, {**_filter_request(filters), "MaxResults": _PAGE_SIZE})

    async def describe_security_groups(self, filters: Sequence[Ec2Filter]) -> tuple[SecurityGroupInfo, ...]:
        """See ``DiscoveryApi`` (AWS-144)."""
        return await self._service.call_all_pages(
            _SECURITY_GROUPS, {**_filter_request(filters), "MaxResults": _PAGE_SIZE}
        )

    async def describe_images(self, query: ImageQuery) -> tuple[ImageInfo, ...]:
        """See ``DiscoveryApi`` (AWS-191 to AWS-195)."""
        request = {**_filter_request(query.filters), "IncludeDeprecated": True, "MaxResults": _PAGE_SIZE}
        if query.owners:
            request["Owners"] = query.owners
        return await self._service.call_all_pages(_IMAGES, request)

    async def describe_capacity_reservations(self, query: ReservationQuery) -> tuple[CapacityReservationInfo, ...]:
        """See ``DiscoveryApi`` (AWS-148)."""
        request = _filter_request(query.filters)
        if query.ids:
            request["CapacityReservationIds"] = query.ids
        else:
            request["MaxResults"] = _PAGE_SIZE
        return await self._service.call_all_pages(_RESERVATIONS, request)

    async def describe_placement_groups(self, query: PlacementGroupQuery) -> tuple[PlacementGroupInfoEntry, ...]:
        """See ``DiscoveryApi`` (AWS-153)."""
        request = _filter_request((Ec2Filter(name="state", values=("available",)),))
        if query.ids:
            request["GroupIds"] = query.ids
        if query.names:
            request["GroupNames"] = query.names
        return await self._service.call(_PLACEMENT_GROUPS, request)

    # -- launch templates -----------------------------------------------------------------------------------------------

    async def describe_launch_templates(
        self, names: Sequence[str] = (), filters: Sequence[Ec2Filter] = ()
    ) -> tuple[LaunchTemplate, ...]:
        """See ``LaunchTemplateApi``. Names and page sizes exclude each other."""
        request = _filter_request(filters)
        if names:
            request["LaunchTemplateNames"] = tuple(names)
        else:
            request["MaxResults"] = 200
        return await self._service.call_all_pages(_TEMPLATES, request)

    async def create_launch_template(
        self, name: str, data: LaunchTemplateData, tags: TagSpecification
    ) -> LaunchTemplate:
        """See ``LaunchTemplateApi``. Not repeated when it may have been done: the name would be taken then."""
        request: Request = {
            "LaunchTemplateName": name,
            "LaunchTemplateData": _to_request(data),
            "TagSpecifications": [_to_request(tags)],
        }
        return await self._service.call(_CREATE_TEMPLATE, request)

    async def delete_launch_template(self, template_id: str) -> None:
        """See ``LaunchTemplateApi``."""
        await self._service.call(_DELETE_TEMPLATE, {"LaunchTemplateId": template_id})

    # -- launches -------------------------------------------------------------------------------------------------------

    async def create_fleet(self, request: FleetRequest) -> FleetAnswer:
        """Launch instances.

        With a client token the same request is sent again where AWS asks for fewer calls or answers 5xx: EC2 carries out a token
        once and answers its repetition alike. Without one it is sent again only where it certainly did not arrive or was turned
        away for its pace. When no answer comes the error's ``has_no_answer`` is true, token or not, and nothing was repeated:
        the caller may ask again with the same token and parameters, or look for the instances by their tags.
        """
        operation = _FLEET_WITH_TOKEN if request.client_token else _FLEET_ONCE
        return await self._service.call(operation, _to_request(request))

    async def dry_run_fleet(self, request: FleetRequest) -> None:
        """See ``FleetApi`` (AWS-116)."""
        await self._service.call(_DRY_RUN_FLEET, {**_to_request(request), "DryRun": True})

    async def dry_run_instances(self, dry_run: RunInstancesDryRun) -> None:
        """See ``FleetApi`` (AWS-117, AWS-128)."""
        await self._service.call(_DRY_RUN_INSTANCES, {**_run_request(dry_run), "DryRun": True})

    # -- instances ------------------------------------------------------------------------------------------------------

    async def describe_instances(
        self, ids: Sequence[str] = (), filters: Sequence[Ec2Filter] = ()
    ) -> tuple[InstanceInfo, ...]:
        """See ``InstanceApi``. Ids and page sizes exclude each other; EC2 answers a thousand ids at most."""
        request = _filter_request(filters)
        if ids:
            request["InstanceIds"] = tuple(ids)
        else:
            request["MaxResults"] = _PAGE_SIZE
        reservations = await self._service.call_all_pages(_INSTANCES, request)
        return tuple(instance for reservation in reservations for instance in reservation.instances)

    async def terminate_instances(self, ids: Sequence[str]) -> tuple[StateChange, ...]:
        """See ``InstanceApi``."""
        return await self._service.call(_TERMINATE, {"InstanceIds": tuple(ids)})

    async def reboot_instances(self, ids: Sequence[str]) -> None:
        """See ``InstanceApi``."""
        await self._service.call(_REBOOT, {"InstanceIds": tuple(ids)})

    async def create_tags(self, ids: Sequence[str], tags: Mapping[str, str]) -> None:
        """See ``InstanceApi``."""
        await self._service.call(_TAG, {"Resources": tuple(ids), "Tags": _tag_request(tags)})

    async def get_console_output(self, instance_id: str) -> str:
        """See ``InstanceApi`` (AWS-932). The library decodes the text."""
        return (await self._service.call(_CONSOLE_OUTPUT, {"InstanceId": instance_id})).output

    async def get_latest_console_output(self, instance_id: str) -> str:
        """See ``InstanceApi`` (AWS-932)."""
        return (await self._service.call(_CONSOLE_OUTPUT, {"InstanceId": instance_id, "Latest": True})).output

    async def describe_instance_status(self, filters: Sequence[Ec2Filter]) -> tuple[InstanceStatus, ...]:
        """See ``InstanceApi`` (AWS-665)."""
        return await self._service.call_all_pages(_STATUSES, {**_filter_request(filters), "MaxResults": _PAGE_SIZE})


def _to_request(shape: msgspec.Struct) -> Request:
    """A request as botocore takes it."""
    return cast(Request, msgspec.to_builtins(shape))


def _tag_request(values: Mapping[str, str]) -> list[Request]:
    return [_to_request(tag) for tag in aws_types.tag_list(values)]


def _filter_request(filters: Sequence[Ec2Filter]) -> Request:
    return {"Filters": [_to_request(ec2_filter) for ec2_filter in filters]} if filters else {}


def _run_request(dry_run: RunInstancesDryRun) -> Request:
    """RunInstances for one instance, through a template where there is one.

    The library encodes user data itself here, other than in templates. An instance with interfaces of its own gets its subnet
    through each of them (AWS-128).
    """
    request = _to_request(dry_run.data)
    if dry_run.data.user_data:
        request["UserData"] = b64decode(dry_run.data.user_data)
    interfaces = cast(Sequence[Request], request.get("NetworkInterfaces", ()))
    if interfaces:
        request["NetworkInterfaces"] = [{**interface, "SubnetId": dry_run.subnet_id} for interface in interfaces]
    else:
        request["SubnetId"] = dry_run.subnet_id
    if dry_run.template is not None:
        request["LaunchTemplate"] = _to_request(dry_run.template)
    return {**request, "InstanceType": dry_run.instance_type, "MinCount": 1, "MaxCount": 1}


#: How long a message, once received, is kept from other receivers, and how long to wait for the first (AWS-640), in seconds.
_VISIBILITY_SECONDS = 20
_POLL_SECONDS = 20
_MAX_MESSAGES = 10
_PRODUCTS_PAGE_SIZE = 100
_PRICING_SERVICE_CODE = "AmazonEC2"


class _Parameter(AwsStruct, frozen=True, kw_only=True):
    """A parameter; of it, its value."""

    value: str = ""


_GET_PROFILE = ApiOperation("GetInstanceProfile", "InstanceProfile", InstanceProfile, RateLimitGroup.IAM)
_CREATE_PROFILE = ApiOperation(
    "CreateInstanceProfile", "InstanceProfile", InstanceProfile, RateLimitGroup.IAM, CallRetryPolicy.ONCE
)
_DELETE_PROFILE = ApiOperation("DeleteInstanceProfile", "", AwsStruct, RateLimitGroup.IAM, CallRetryPolicy.ONCE)
_ADD_ROLE = ApiOperation("AddRoleToInstanceProfile", "", AwsStruct, RateLimitGroup.IAM, CallRetryPolicy.ONCE)
_REMOVE_ROLE = ApiOperation("RemoveRoleFromInstanceProfile", "", AwsStruct, RateLimitGroup.IAM, CallRetryPolicy.ONCE)
_LIST_PROFILES = ApiOperation(
    "ListInstanceProfiles",
    "InstanceProfiles",
    tuple[InstanceProfile, ...],
    RateLimitGroup.IAM,
    pagination=MARKER,
)
_GET_PARAMETER = ApiOperation("GetParameter", "Parameter", _Parameter, RateLimitGroup.SSM)
_PUT_PARAMETER = ApiOperation("PutParameter", "", AwsStruct, RateLimitGroup.SSM)
_DELETE_PARAMETER = ApiOperation("DeleteParameter", "", AwsStruct, RateLimitGroup.SSM, CallRetryPolicy.ONCE)
_GET_PRODUCTS = ApiOperation("GetProducts", "PriceList", tuple[str, ...], RateLimitGroup.PRICING, pagination=NEXT_TOKEN)
_GET_QUEUE_URL = ApiOperation("GetQueueUrl", "QueueUrl", str, RateLimitGroup.QUEUE)
_RECEIVE = ApiOperation("ReceiveMessage", "Messages", tuple[SqsMessage, ...], RateLimitGroup.QUEUE)
_DELETE_MESSAGE = ApiOperation("DeleteMessage", "", AwsStruct, RateLimitGroup.QUEUE)
_DESCRIBE_CLUSTER = ApiOperation("DescribeCluster", "cluster", EksCluster, RateLimitGroup.EKS)
_GET_SHIFTS = ApiOperation("GetManagedResource", "zonalShifts", tuple[ZonalShift, ...], RateLimitGroup.ZONAL_SHIFT)
_GET_IDENTITY = ApiOperation("GetCallerIdentity", "Arn", str, RateLimitGroup.IDENTITY)


class IamClient:
    """See ``IamApi``. All methods raise ``AwsError``, here and below."""

    def __init__(self, service: AwsServiceClient) -> None:
        self._service = service

    async def get_instance_profile(self, name: str) -> InstanceProfile:
        """See ``IamApi``."""
        return await self._service.call(_GET_PROFILE, {"InstanceProfileName": name})

    async def create_instance_profile(self, name: str, path: str, tags: Mapping[str, str]) -> InstanceProfile:
        """See ``IamApi``."""
        request = {
            "InstanceProfileName": name,
            "Path": path,
            "Tags": [msgspec.to_builtins(tag) for tag in aws_types.tag_list(tags)],
        }
        return await self._service.call(_CREATE_PROFILE, request)

    async def delete_instance_profile(self, name: str) -> None:
        """See ``IamApi``."""
        await self._service.call(_DELETE_PROFILE, {"InstanceProfileName": name})

    async def add_role_to_instance_profile(self, name: str, role: str) -> None:
        """See ``IamApi``."""
        await self._service.call(_ADD_ROLE, {"InstanceProfileName": name, "RoleName": role})

    async def remove_role_from_instance_profile(self, name: str, role: str) -> None:
        """See ``IamApi``."""
        await self._service.call(_REMOVE_ROLE, {"InstanceProfileName": name, "RoleName": role})

    async def list_instance_profiles(self, path_prefix: str) -> tuple[InstanceProfile, ...]:
        """See ``IamApi``."""
        return await self._service.call_all_pages(_LIST_PROFILES, {"PathPrefix": path_prefix, "MaxItems": 1000})


class SsmClient:
    """See ``SsmApi``."""

    def __init__(self, service: AwsServiceClient) -> None:
        self._service = service

    async def get_parameter(self, name: str) -> str:
        """See ``SsmApi``. Encrypted ones are decrypted, where the role may."""
        request = {"Name": name, "WithDecryption": True}
        return (await self._service.call(_GET_PARAMETER, request)).value

    async def put_secure_parameter(self, name: str, value: str) -> None:
        """See ``SsmApi``."""
        request = {"Name": name, "Value": value, "Type": "SecureString", "Overwrite": True}
        await self._service.call(_PUT_PARAMETER, request)

    async def delete_parameter(self, name: str) -> None:
        """See ``SsmApi``."""
        await self._service.call(_DELETE_PARAMETER, {"Name": name})


class PricingClient:
    """See ``PricingApi``."""

    def __init__(self, service: AwsServiceClient) -> None:
        self._service = service

    async def get_products(self, filters: Mapping[str, str]) -> tuple[str, ...]:
        """See ``PricingApi`` (AWS-360)."""
        matches = [{"Type": "TERM_MATCH", "Field": field, "Value": filters[field]} for field in sorted(filters)]
        request = {"ServiceCode": _PRICING_SERVICE_CODE, "Filters": matches, "MaxResults": _PRODUCTS_PAGE_SIZE}
        return await self._service.call_all_pages(_GET_PRODUCTS, request)


class SqsClient:
    """See ``SqsApi``."""

    def __init__(self, service: AwsServiceClient) -> None:
        self._service = service

    async def get_queue_url(self, name: str) -> str:
        """See ``SqsApi``."""
        return await self._service.call(_GET_QUEUE_URL, {"QueueName": name})

    async def receive_messages(self, url: str) -> tuple[SqsMessage, ...]:
        """See ``SqsApi`` (AWS-640). Waiting keeps a thread."""
        request = {
            "QueueUrl": url,
            "MaxNumberOfMessages": _MAX_MESSAGES,
            "VisibilityTimeout": _VISIBILITY_SECONDS,
            "WaitTimeSeconds": _POLL_SECONDS,
            "MessageSystemAttributeNames": ["SentTimestamp"],
        }
        return await self._service.call(_RECEIVE, request)

    async def delete_message(self, url: str, receipt_handle: str) -> None:
        """See ``SqsApi``."""
        await self._service.call(_DELETE_MESSAGE, {"QueueUrl": url, "ReceiptHandle": receipt_handle})


class EksClient:
    """See ``EksApi``."""

    def __init__(self, service: AwsServiceClient) -> None:
        self._service = service

    async def describe_cluster(self, name: str) -> EksCluster:
        """See ``EksApi``."""
        return await self._service.call(_DESCRIBE_CLUSTER, {"name": name})


class ZonalShiftClient:
    """See ``ZonalShiftApi``."""

    def __init__(self, service: AwsServiceClient) -> None:
        self._service = service

    async def get_managed_resource(self, arn: str) -> tuple[ZonalShift, ...]:
        """See ``ZonalShiftApi``."""
        return await self._service.call(_GET_SHIFTS, {"resourceIdentifier": arn})


class StsClient:
    """See ``StsApi``."""

    def __init__(self, service: AwsServiceClient) -> None:
        self._service = service

    async def get_caller_identity(self) -> str:
        """See ``StsApi``."""
        return await self._service.call(_GET_IDENTITY, {})
