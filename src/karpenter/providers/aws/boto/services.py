"""The smaller services over boto3: instance profiles, parameters, prices, the queue, the cluster, zonal shifts, identity."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from karpenter.providers.aws import shapes
from karpenter.providers.aws.boto.operations import Operation, Pages, Repetition
from karpenter.providers.aws.boto.pacing import Group
from karpenter.providers.aws.boto.service import Service
from karpenter.providers.aws.shapes import EksCluster, InstanceProfile, Message, Shape, ZonalShift

_MARKED = Pages("Marker", "Marker")
#: How long a message, once received, is kept from other receivers, and how long to wait for the first (AWS-640), in seconds.
_VISIBILITY_SECONDS = 20
_POLL_SECONDS = 20
_MOST_MESSAGES = 10
_PRODUCTS_AT_ONCE = 100
_EC2 = "AmazonEC2"


class _Parameter(Shape, frozen=True, kw_only=True):
    """A parameter; of it, its value."""

    value: str = ""


_GET_PROFILE = Operation("GetInstanceProfile", "InstanceProfile", InstanceProfile, Group.IAM)
_CREATE_PROFILE = Operation("CreateInstanceProfile", "InstanceProfile", InstanceProfile, Group.IAM, Repetition.ONCE)
_DELETE_PROFILE = Operation("DeleteInstanceProfile", "", Shape, Group.IAM, Repetition.ONCE)
_ADD_ROLE = Operation("AddRoleToInstanceProfile", "", Shape, Group.IAM, Repetition.ONCE)
_REMOVE_ROLE = Operation("RemoveRoleFromInstanceProfile", "", Shape, Group.IAM, Repetition.ONCE)
_LIST_PROFILES = Operation(
    "ListInstanceProfiles", "InstanceProfiles", tuple[InstanceProfile, ...], Group.IAM, pages=_MARKED
)
_GET_PARAMETER = Operation("GetParameter", "Parameter", _Parameter, Group.SSM)
_GET_PRODUCTS = Operation("GetProducts", "PriceList", tuple[str, ...], Group.PRICING)
_GET_QUEUE_URL = Operation("GetQueueUrl", "QueueUrl", str, Group.QUEUE)
_RECEIVE = Operation("ReceiveMessage", "Messages", tuple[Message, ...], Group.QUEUE)
_DELETE_MESSAGE = Operation("DeleteMessage", "", Shape, Group.QUEUE)
_DESCRIBE_CLUSTER = Operation("DescribeCluster", "cluster", EksCluster, Group.EKS)
_GET_SHIFTS = Operation("GetManagedResource", "zonalShifts", tuple[ZonalShift, ...], Group.ZONAL_SHIFT)
_GET_IDENTITY = Operation("GetCallerIdentity", "Arn", str, Group.IDENTITY)


class Iam:
    """See ``IamPort``. All methods raise ``AwsError``, here and below."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def get_instance_profile(self, name: str) -> InstanceProfile:
        """See ``IamPort``."""
        return await self._service.call(_GET_PROFILE, {"InstanceProfileName": name})

    async def create_instance_profile(self, name: str, path: str, tags: Mapping[str, str]) -> InstanceProfile:
        """See ``IamPort``."""
        request = {
            "InstanceProfileName": name,
            "Path": path,
            "Tags": [msgspec.to_builtins(tag) for tag in shapes.tags(tags)],
        }
        return await self._service.call(_CREATE_PROFILE, request)

    async def delete_instance_profile(self, name: str) -> None:
        """See ``IamPort``."""
        await self._service.call(_DELETE_PROFILE, {"InstanceProfileName": name})

    async def add_role_to_instance_profile(self, name: str, role: str) -> None:
        """See ``IamPort``."""
        await self._service.call(_ADD_ROLE, {"InstanceProfileName": name, "RoleName": role})

    async def remove_role_from_instance_profile(self, name: str, role: str) -> None:
        """See ``IamPort``."""
        await self._service.call(_REMOVE_ROLE, {"InstanceProfileName": name, "RoleName": role})

    async def list_instance_profiles(self, path_prefix: str) -> tuple[InstanceProfile, ...]:
        """See ``IamPort``."""
        return await self._service.all(_LIST_PROFILES, {"PathPrefix": path_prefix, "MaxItems": 1000})


class Ssm:
    """See ``SsmPort``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def get_parameter(self, name: str) -> str:
        """See ``SsmPort``. Encrypted ones are decrypted, where the role may."""
        request = {"Name": name, "WithDecryption": True}
        return (await self._service.call(_GET_PARAMETER, request)).value


class Pricing:
    """See ``PricingPort``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def get_products(self, filters: Mapping[str, str]) -> tuple[str, ...]:
        """See ``PricingPort`` (AWS-360)."""
        wanted = [{"Type": "TERM_MATCH", "Field": field, "Value": filters[field]} for field in sorted(filters)]
        request = {"ServiceCode": _EC2, "Filters": wanted, "MaxResults": _PRODUCTS_AT_ONCE}
        return await self._service.all(_GET_PRODUCTS, request)


class Queue:
    """See ``QueuePort``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def get_queue_url(self, name: str) -> str:
        """See ``QueuePort``."""
        return await self._service.call(_GET_QUEUE_URL, {"QueueName": name})

    async def receive_messages(self, url: str) -> tuple[Message, ...]:
        """See ``QueuePort`` (AWS-640). Waiting keeps a thread."""
        request = {
            "QueueUrl": url,
            "MaxNumberOfMessages": _MOST_MESSAGES,
            "VisibilityTimeout": _VISIBILITY_SECONDS,
            "WaitTimeSeconds": _POLL_SECONDS,
            "MessageSystemAttributeNames": ["SentTimestamp"],
        }
        return await self._service.call(_RECEIVE, request)

    async def delete_message(self, url: str, receipt_handle: str) -> None:
        """See ``QueuePort``."""
        await self._service.call(_DELETE_MESSAGE, {"QueueUrl": url, "ReceiptHandle": receipt_handle})


class Eks:
    """See ``EksPort``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def describe_cluster(self, name: str) -> EksCluster:
        """See ``EksPort``."""
        return await self._service.call(_DESCRIBE_CLUSTER, {"name": name})


class ZonalShifts:
    """See ``ZonalShiftPort``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def get_managed_resource(self, arn: str) -> tuple[ZonalShift, ...]:
        """See ``ZonalShiftPort``."""
        return await self._service.call(_GET_SHIFTS, {"resourceIdentifier": arn})


class Sts:
    """See ``StsPort``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def get_caller_identity(self) -> str:
        """See ``StsPort``."""
        return await self._service.call(_GET_IDENTITY, {})
