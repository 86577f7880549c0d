"""EC2 over boto3 (``Ec2Port``)."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import cast

import msgspec

from karpenter.providers.aws import shapes
from karpenter.providers.aws.boto.lists import Lists
from karpenter.providers.aws.boto.operations import Operation, Repetition
from karpenter.providers.aws.boto.pacing import Group
from karpenter.providers.aws.boto.service import Service
from karpenter.providers.aws.ports import GroupQuery, ImageQuery, MachineTrial, ReservationQuery
from karpenter.providers.aws.shapes import (
    CapacityReservationInfo,
    Filter,
    FleetAnswer,
    FleetRequest,
    ImageInfo,
    InstanceInfo,
    InstanceStatus,
    InstanceTypeInfo,
    LaunchTemplate,
    LaunchTemplateData,
    PlacementGroupInfoEntry,
    SecurityGroupInfo,
    Shape,
    SpotPrice,
    StateChange,
    SubnetInfo,
    TagSpecification,
    TypeOffering,
)

#: Page sizes: those of the specification, where EC2 lets one ask for them.
_TYPES_AT_ONCE, _AT_ONCE, _PRICES_AT_ONCE = 100, 1000, 2000
_PRODUCTS = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")

Request = dict[str, object]


class _Reservation(Shape, frozen=True, kw_only=True):
    """Machines of one request, as DescribeInstances groups them."""

    instances: tuple[InstanceInfo, ...] = ()


_TYPES = Operation("DescribeInstanceTypes", "InstanceTypes", tuple[InstanceTypeInfo, ...], Group.EC2_READ)
_OFFERINGS = Operation(
    "DescribeInstanceTypeOfferings", "InstanceTypeOfferings", tuple[TypeOffering, ...], Group.EC2_READ
)
_SPOT_PRICES = Operation("DescribeSpotPriceHistory", "SpotPriceHistory", tuple[SpotPrice, ...], Group.EC2_READ)
_SUBNETS = Operation("DescribeSubnets", "Subnets", tuple[SubnetInfo, ...], Group.EC2_READ)
_SECURITY_GROUPS = Operation("DescribeSecurityGroups", "SecurityGroups", tuple[SecurityGroupInfo, ...], Group.EC2_READ)
_IMAGES = Operation("DescribeImages", "Images", tuple[ImageInfo, ...], Group.EC2_READ)
_RESERVATIONS = Operation(
    "DescribeCapacityReservations", "CapacityReservations", tuple[CapacityReservationInfo, ...], Group.EC2_READ
)
_PLACEMENT_GROUPS = Operation(
    "DescribePlacementGroups", "PlacementGroups", tuple[PlacementGroupInfoEntry, ...], Group.EC2_READ
)
_TEMPLATES = Operation("DescribeLaunchTemplates", "LaunchTemplates", tuple[LaunchTemplate, ...], Group.EC2_READ)
_INSTANCES = Operation("DescribeInstances", "Reservations", tuple[_Reservation, ...], Group.EC2_READ)
_STATUSES = Operation("DescribeInstanceStatus", "InstanceStatuses", tuple[InstanceStatus, ...], Group.EC2_READ)

_CREATE_TEMPLATE = Operation("CreateLaunchTemplate", "LaunchTemplate", LaunchTemplate, Group.EC2_WRITE, Repetition.ONCE)
_TRY_TEMPLATE = Operation("CreateLaunchTemplate", "LaunchTemplate", LaunchTemplate, Group.EC2_WRITE, Repetition.TRY)
_DELETE_TEMPLATE = Operation("DeleteLaunchTemplate", "", Shape, Group.EC2_WRITE, Repetition.ONCE)
_FLEET_ONCE = Operation("CreateFleet", "", FleetAnswer, Group.EC2_LAUNCH, Repetition.ONCE)
_FLEET_WITH_TOKEN = Operation("CreateFleet", "", FleetAnswer, Group.EC2_LAUNCH, Repetition.REPEATABLE)
_TRY_FLEET = Operation("CreateFleet", "", Shape, Group.EC2_LAUNCH, Repetition.TRY)
_TRY_RUN = Operation("RunInstances", "", Shape, Group.EC2_LAUNCH, Repetition.TRY)
_TERMINATE = Operation("TerminateInstances", "TerminatingInstances", tuple[StateChange, ...], Group.EC2_TERMINATE)
_TAG = Operation("CreateTags", "", Shape, Group.EC2_TAG)

#: Decodes the lists that can be long.
LONG_LISTS = Lists({each.name: each for each in (_TYPES, _OFFERINGS, _SPOT_PRICES, _INSTANCES, _STATUSES)})


class Ec2:
    """All of EC2. See the ports for what the methods mean; all raise ``AwsError``."""

    def __init__(self, service: Service) -> None:
        self._service = service

    # -- what is sold ---------------------------------------------------------------------------------------------------

    async def describe_instance_types(self) -> tuple[InstanceTypeInfo, ...]:
        """See ``MarketPort`` (AWS-280)."""
        filters = (
            Filter(name="supported-virtualization-type", values=("hvm",)),
            Filter(name="processor-info.supported-architecture", values=("x86_64", "arm64")),
        )
        return await self._service.all(_TYPES, {**_filtered(filters), "MaxResults": _TYPES_AT_ONCE})

    async def describe_instance_type_offerings(self) -> tuple[TypeOffering, ...]:
        """See ``MarketPort`` (AWS-280)."""
        request = {"LocationType": "availability-zone", "MaxResults": _AT_ONCE}
        return await self._service.all(_OFFERINGS, request)

    async def describe_spot_price_history(self) -> tuple[SpotPrice, ...]:
        """See ``MarketPort`` (AWS-365)."""
        request = {
            "StartTime": datetime.now(UTC),
            "ProductDescriptions": _PRODUCTS,
            "MaxResults": _PRICES_AT_ONCE,
        }
        return await self._service.all(_SPOT_PRICES, request)

    # -- what selectors find --------------------------------------------------------------------------------------------

    async def describe_subnets(self, filters: Sequence[Filter]) -> tuple[SubnetInfo, ...]:
        """See ``DiscoveryPort`` (AWS-143)."""
        return await self._service.all(_SUBNETS, {**_filtered(filters), "MaxResults": _AT_ONCE})

    async def describe_security_groups(self, filters: Sequence[Filter]) -> tuple[SecurityGroupInfo, ...]:
        """See ``DiscoveryPort`` (AWS-144)."""
        return await self._service.all(_SECURITY_GROUPS, {**_filtered(filters), "MaxResults": _AT_ONCE})

    async def describe_images(self, query: ImageQuery) -> tuple[ImageInfo, ...]:
        """See ``DiscoveryPort`` (AWS-191 to AWS-195)."""
        request = {**_filtered(query.filters), "IncludeDeprecated": True, "MaxResults": _AT_ONCE}
        if query.owners:
            request["Owners"] = query.owners
        return await self._service.all(_IMAGES, request)

    async def describe_capacity_reservations(self, query: ReservationQuery) -> tuple[CapacityReservationInfo, ...]:
        """See ``DiscoveryPort`` (AWS-148)."""
        request = _filtered(query.filters)
        if query.ids:
            request["CapacityReservationIds"] = query.ids
        else:
            request["MaxResults"] = _AT_ONCE
        return await self._service.all(_RESERVATIONS, request)

    async def describe_placement_groups(self, query: GroupQuery) -> tuple[PlacementGroupInfoEntry, ...]:
        """See ``DiscoveryPort`` (AWS-153)."""
        request = _filtered((Filter(name="state", values=("available",)),))
        if query.ids:
            request["GroupIds"] = query.ids
        if query.names:
            request["GroupNames"] = query.names
        return await self._service.call(_PLACEMENT_GROUPS, request)

    # -- launch templates -----------------------------------------------------------------------------------------------

    async def describe_launch_templates(
        self, names: Sequence[str] = (), filters: Sequence[Filter] = ()
    ) -> tuple[LaunchTemplate, ...]:
        """See ``TemplatePort``. Names and page sizes exclude each other."""
        request = _filtered(filters)
        if names:
            request["LaunchTemplateNames"] = tuple(names)
        else:
            request["MaxResults"] = 200
        return await self._service.all(_TEMPLATES, request)

    async def create_launch_template(
        self, name: str, data: LaunchTemplateData, tags: TagSpecification, dry_run: bool = False
    ) -> LaunchTemplate:
        """See ``TemplatePort``. Not repeated when it may have been done: the name would be taken then."""
        request: Request = {
            "LaunchTemplateName": name,
            "LaunchTemplateData": _written(data),
            "TagSpecifications": [_written(tags)],
        }
        if dry_run:
            return await self._service.call(_TRY_TEMPLATE, {**request, "DryRun": True})
        return await self._service.call(_CREATE_TEMPLATE, request)

    async def delete_launch_template(self, template_id: str) -> None:
        """See ``TemplatePort``."""
        await self._service.call(_DELETE_TEMPLATE, {"LaunchTemplateId": template_id})

    # -- buying ---------------------------------------------------------------------------------------------------------

    async def create_fleet(self, request: FleetRequest) -> FleetAnswer:
        """Buy machines.

        With a client token the same request is sent again where AWS asks for fewer calls or answers 5xx: EC2 carries out a token
        once and answers its repetition alike. Without one it is sent again only where it certainly did not arrive or was turned
        away for its pace. When no answer comes the error's ``has_no_answer`` is true, token or not, and nothing was repeated:
        the caller may ask again with the same token and parameters, or look for the machines by their tags.
        """
        operation = _FLEET_WITH_TOKEN if request.client_token else _FLEET_ONCE
        return await self._service.call(operation, _written(request))

    async def try_fleet(self, request: FleetRequest) -> None:
        """See ``FleetPort`` (AWS-116)."""
        await self._service.call(_TRY_FLEET, {**_written(request), "DryRun": True})

    async def try_run_instances(self, trial: MachineTrial) -> None:
        """See ``FleetPort`` (AWS-117, AWS-128)."""
        await self._service.call(_TRY_RUN, {**_run_request(trial), "DryRun": True})

    # -- machines -------------------------------------------------------------------------------------------------------

    async def describe_instances(
        self, ids: Sequence[str] = (), filters: Sequence[Filter] = ()
    ) -> tuple[InstanceInfo, ...]:
        """See ``InstancePort``. Ids and page sizes exclude each other; EC2 answers a thousand ids at most."""
        request = _filtered(filters)
        if ids:
            request["InstanceIds"] = tuple(ids)
        else:
            request["MaxResults"] = _AT_ONCE
        found = await self._service.all(_INSTANCES, request)
        return tuple(instance for reservation in found for instance in reservation.instances)

    async def terminate_instances(self, ids: Sequence[str]) -> tuple[StateChange, ...]:
        """See ``InstancePort``."""
        return await self._service.call(_TERMINATE, {"InstanceIds": tuple(ids)})

    async def create_tags(self, ids: Sequence[str], tags: Mapping[str, str]) -> None:
        """See ``InstancePort``."""
        await self._service.call(_TAG, {"Resources": tuple(ids), "Tags": _tags(tags)})

    async def describe_instance_status(self, filters: Sequence[Filter]) -> tuple[InstanceStatus, ...]:
        """See ``InstancePort`` (AWS-665)."""
        return await self._service.all(_STATUSES, {**_filtered(filters), "MaxResults": _AT_ONCE})


def _written(shape: msgspec.Struct) -> Request:
    """A request as boto3 takes it."""
    return cast(Request, msgspec.to_builtins(shape))


def _tags(values: Mapping[str, str]) -> list[Request]:
    return [_written(tag) for tag in shapes.tags(values)]


def _filtered(filters: Sequence[Filter]) -> Request:
    return {"Filters": [_written(item) for item in filters]} if filters else {}


def _run_request(trial: MachineTrial) -> Request:
    """RunInstances for one machine of a template's data.

    The library encodes user data itself here, other than in templates. A machine with interfaces of its own gets its subnet
    through each of them (AWS-128).
    """
    request = _written(trial.data)
    if trial.data.user_data:
        request["UserData"] = b64decode(trial.data.user_data)
    interfaces = cast(Sequence[Request], request.get("NetworkInterfaces", ()))
    if interfaces:
        request["NetworkInterfaces"] = [{**interface, "SubnetId": trial.subnet_id} for interface in interfaces]
    else:
        request["SubnetId"] = trial.subnet_id
    return {**request, "InstanceType": trial.instance_type, "MinCount": 1, "MaxCount": 1}
