"""Fakes of EC2, IAM and SSM for the controller of EC2NodeClasses, each with a few tables."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from karpenter.providers.aws.aws_apis import ImageQuery, PlacementGroupQuery, ReservationQuery, RunInstancesDryRun
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_types import Ec2Filter, InstanceProfile, RoleInfo, Tag, tag_list, tag_map
from karpenter.providers.aws.ec2_descriptions import (
    CapacityReservationInfo,
    ImageInfo,
    PlacementGroupInfoEntry,
    SecurityGroupInfo,
    SubnetInfo,
)
from karpenter.providers.aws.ec2_requests import (
    FleetRequest,
    LaunchTemplate,
    LaunchTemplateData,
    TagSpecification,
)

PASSED = AwsError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", status=412)
THROTTLED = AwsError("RequestLimitExceeded", "Request limit exceeded.", status=503)
UNAUTHORIZED = AwsError("UnauthorizedOperation", "You are not authorized to perform this operation.", status=403)


START = datetime(2026, 1, 1, tzinfo=UTC)


class Recording:
    """Recorded calls, and the error that refuses each operation."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.refusals: dict[str, Callable[[Any], Exception | None]] = {}

    def refuse(self, operation: str, error: Exception | None) -> None:
        self.refusals[operation] = lambda asked: error

    def called(self, operation: str, asked: Any = None) -> None:
        self.calls.append((operation, asked))
        error = self.refusals.get(operation, lambda asked: None)(asked)
        if error is not None:
            raise error

    def asked(self, operation: str) -> list[Any]:
        return [asked for name, asked in self.calls if name == operation]

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


def _matches(filters: Iterable[Ec2Filter], attributes: Mapping[str, str], tagged: Sequence[Tag]) -> bool:
    own = tag_map(tuple(tagged))
    return all(_match(ec2_filter, attributes, own) for ec2_filter in filters)


def _match(ec2_filter: Ec2Filter, attributes: Mapping[str, str], own: Mapping[str, str]) -> bool:
    if ec2_filter.name == "tag-key":
        return any(value in own for value in ec2_filter.values)
    value = own.get(ec2_filter.name[4:]) if ec2_filter.name.startswith("tag:") else attributes[ec2_filter.name]
    return value is not None and any(fnmatch.fnmatchcase(value, pattern) for pattern in ec2_filter.values)


class Ec2(Recording):
    """EC2: describes its tables; dry runs succeed unless refused."""

    def __init__(self) -> None:
        super().__init__()
        self.subnets: list[SubnetInfo] = []
        self.groups: list[SecurityGroupInfo] = []
        self.images: list[ImageInfo] = []
        self.reservations: list[CapacityReservationInfo] = []
        self.placement_groups: list[PlacementGroupInfoEntry] = []
        self.templates: list[LaunchTemplate] = []

    async def describe_subnets(self, filters: Sequence[Ec2Filter]) -> tuple[SubnetInfo, ...]:
        self.called("DescribeSubnets", tuple(filters))
        return tuple(
            subnet_info
            for subnet_info in self.subnets
            if _matches(filters, {"subnet-id": subnet_info.subnet_id}, subnet_info.tags)
        )

    async def describe_security_groups(self, filters: Sequence[Ec2Filter]) -> tuple[SecurityGroupInfo, ...]:
        self.called("DescribeSecurityGroups", tuple(filters))
        return tuple(
            group_info
            for group_info in self.groups
            if _matches(
                filters, {"group-id": group_info.group_id, "group-name": group_info.group_name}, group_info.tags
            )
        )

    async def describe_images(self, query: ImageQuery) -> tuple[ImageInfo, ...]:
        self.called("DescribeImages", query)
        return tuple(
            image_info
            for image_info in self.images
            if _matches(
                query.filters, {"image-id": image_info.image_id, "name": image_info.name, "state": "available"}, ()
            )
        )

    async def describe_capacity_reservations(self, query: ReservationQuery) -> tuple[CapacityReservationInfo, ...]:
        self.called("DescribeCapacityReservations", query)
        reservation_infos = {
            reservation_info.capacity_reservation_id: reservation_info for reservation_info in self.reservations
        }
        if any(wanted_id not in reservation_infos for wanted_id in query.ids):
            raise AwsError("InvalidCapacityReservationId.NotFound", "it does not exist", status=400)
        return tuple(reservation_infos[wanted_id] for wanted_id in query.ids) if query.ids else tuple(self.reservations)

    async def describe_placement_groups(self, query: PlacementGroupQuery) -> tuple[PlacementGroupInfoEntry, ...]:
        self.called("DescribePlacementGroups", query)
        wanted = (*query.ids, *query.names)
        return tuple(
            group_info_entry
            for group_info_entry in self.placement_groups
            if {group_info_entry.group_id, group_info_entry.group_name} & set(wanted)
        )

    async def describe_launch_templates(
        self, names: Sequence[str] = (), filters: Sequence[Ec2Filter] = ()
    ) -> tuple[LaunchTemplate, ...]:
        self.called("DescribeLaunchTemplates", tuple(filters))
        return tuple(
            launch_template
            for launch_template in self.templates
            if _matches(filters, {}, launch_template.tags)
            and (not names or launch_template.launch_template_name in names)
        )

    async def create_launch_template(
        self, name: str, data: LaunchTemplateData, tags: TagSpecification
    ) -> LaunchTemplate:
        self.called("CreateLaunchTemplate", (name, data, tags))
        if any(template.launch_template_name == name for template in self.templates):
            raise AwsError("InvalidLaunchTemplateName.AlreadyExistsException", "in use", status=400)
        template = LaunchTemplate(launch_template_id=f"lt-{name}", launch_template_name=name, tags=tags.tags)
        self.templates.append(template)
        return template

    async def delete_launch_template(self, template_id: str) -> None:
        self.called("DeleteLaunchTemplate", template_id)
        self.templates = [
            launch_template for launch_template in self.templates if launch_template.launch_template_id != template_id
        ]

    async def dry_run_fleet(self, request: FleetRequest) -> None:
        self.called("CreateFleet", request)
        raise PASSED

    async def dry_run_instances(self, trial: RunInstancesDryRun) -> None:
        self.called("RunInstances", trial)
        raise PASSED


class Iam(Recording):
    """Instance profiles by name."""

    def __init__(self) -> None:
        super().__init__()
        self.profiles: dict[str, InstanceProfile] = {}

    async def get_instance_profile(self, name: str) -> InstanceProfile:
        self.called("GetInstanceProfile", name)
        if name not in self.profiles:
            raise AwsError("NoSuchEntity", f"Instance Profile {name} cannot be found.", status=404)
        return self.profiles[name]

    async def create_instance_profile(self, name: str, path: str, tags_: Mapping[str, str]) -> InstanceProfile:
        self.called("CreateInstanceProfile", (name, path, dict(tags_)))
        self.profiles[name] = InstanceProfile(instance_profile_name=name, path=path, tags=tag_list(tags_))
        return self.profiles[name]

    async def delete_instance_profile(self, name: str) -> None:
        self.called("DeleteInstanceProfile", name)
        assert not self.profiles[name].roles, "IAM refuses to delete a profile that has a role"
        del self.profiles[name]

    async def add_role_to_instance_profile(self, name: str, role: str) -> None:
        self.called("AddRoleToInstanceProfile", (name, role))
        self.profiles[name] = replace(self.profiles[name], roles=(RoleInfo(role_name=role),))

    async def remove_role_from_instance_profile(self, name: str, role: str) -> None:
        self.called("RemoveRoleFromInstanceProfile", (name, role))
        self.profiles[name] = replace(self.profiles[name], roles=())

    async def list_instance_profiles(self, path_prefix: str) -> tuple[InstanceProfile, ...]:
        self.called("ListInstanceProfiles", path_prefix)
        return tuple(
            instance_profile
            for instance_profile in self.profiles.values()
            if instance_profile.path.startswith(path_prefix)
        )

    def writes(self) -> list[str]:
        return [name for name in self.names() if not name.startswith(("Get", "List"))]


class Ssm(Recording):
    """Parameters by name."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, str] = {}

    async def get_parameter(self, name: str) -> str:
        self.called("GetParameter", name)
        if name not in self.values:
            raise AwsError("ParameterNotFound", f"{name} not found", status=400)
        return self.values[name]
