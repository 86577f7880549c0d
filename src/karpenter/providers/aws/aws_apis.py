"""Protocols of the AWS services: each method is one typed API call and raises ``AwsError``.

Describe calls read all pages. ``sdk`` implements them on botocore; tests run that against a double of AWS, or pass small fakes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from karpenter.providers.aws.aws_types import Ec2Filter, EksCluster, InstanceProfile, SqsMessage, ZonalShift
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
    TemplateReference,
)


class ImageQuery(NamedTuple):
    """Which images: filters, and owners (empty: any). Deprecated ones are included (AWS-195)."""

    filters: tuple[Ec2Filter, ...]
    owners: tuple[str, ...] = ()


class ReservationQuery(NamedTuple):
    """Which capacity reservations: ids or filters (AWS-148)."""

    ids: tuple[str, ...] = ()
    filters: tuple[Ec2Filter, ...] = ()


class PlacementGroupQuery(NamedTuple):
    """Which placement group: by ids or by names (AWS-153)."""

    ids: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


class RunInstancesDryRun(NamedTuple):
    """A RunInstances dry run: one instance in one subnet (AWS-117, AWS-128).

    ``data`` is what the request says itself, beside its launch ``template``. Without one, ``data`` is everything.
    """

    instance_type: str
    data: LaunchTemplateData
    subnet_id: str
    template: TemplateReference | None = None


class InstanceTypeApi(Protocol):
    """EC2: what is sold."""

    async def describe_instance_types(self) -> tuple[InstanceTypeInfo, ...]:
        """All hvm types of x86_64 and arm64 (AWS-280)."""

    async def describe_instance_type_offerings(self) -> tuple[InstanceTypeOffering, ...]:
        """Which types are sold in which zones (AWS-280)."""

    async def describe_spot_price_history(self) -> tuple[SpotPrice, ...]:
        """Spot prices of this moment (AWS-365)."""


class DiscoveryApi(Protocol):
    """EC2: what selectors find."""

    async def describe_subnets(self, filters: Sequence[Ec2Filter]) -> tuple[SubnetInfo, ...]:
        """Subnets (AWS-143)."""

    async def describe_security_groups(self, filters: Sequence[Ec2Filter]) -> tuple[SecurityGroupInfo, ...]:
        """Security groups (AWS-144)."""

    async def describe_images(self, query: ImageQuery) -> tuple[ImageInfo, ...]:
        """Images (AWS-191 to AWS-195)."""

    async def describe_capacity_reservations(self, query: ReservationQuery) -> tuple[CapacityReservationInfo, ...]:
        """Capacity reservations (AWS-148)."""

    async def describe_placement_groups(self, query: PlacementGroupQuery) -> tuple[PlacementGroupInfoEntry, ...]:
        """Placement groups that are available (AWS-153)."""


class LaunchTemplateApi(Protocol):
    """EC2: launch templates."""

    async def describe_launch_templates(
        self, names: Sequence[str] = (), filters: Sequence[Ec2Filter] = ()
    ) -> tuple[LaunchTemplate, ...]:
        """Launch templates by name or by filters."""

    async def create_launch_template(
        self, name: str, data: LaunchTemplateData, tags: TagSpecification
    ) -> LaunchTemplate:
        """Make one."""

    async def delete_launch_template(self, template_id: str) -> None:
        """Delete one."""


class FleetApi(Protocol):
    """EC2: launches."""

    async def create_fleet(self, request: FleetRequest) -> FleetAnswer:
        """Launch instances. Never repeated by the port itself once the request may have arrived."""

    async def dry_run_fleet(self, request: FleetRequest) -> None:
        """The same as a dry run, without retries; a passed one raises ``AwsError`` (``is_dry_run_passed``)."""

    async def dry_run_instances(self, dry_run: RunInstancesDryRun) -> None:
        """RunInstances as a dry run; a passed one raises ``AwsError`` (``is_dry_run_passed``)."""


class InstanceApi(Protocol):
    """EC2: instances that were launched."""

    async def describe_instances(
        self, ids: Sequence[str] = (), filters: Sequence[Ec2Filter] = ()
    ) -> tuple[InstanceInfo, ...]:
        """Instances by ids or filters. One unknown id fails the whole call, as EC2 does."""

    async def terminate_instances(self, ids: Sequence[str]) -> tuple[StateChange, ...]:
        """End instances."""

    async def reboot_instances(self, ids: Sequence[str]) -> None:
        """Restart instances in place."""

    async def create_tags(self, ids: Sequence[str], tags: Mapping[str, str]) -> None:
        """Tag resources."""

    async def get_console_output(self, instance_id: str) -> str:
        """What EC2 stored of an instance's console after it booted or ended; empty where it has nothing yet (AWS-932)."""

    async def get_latest_console_output(self, instance_id: str) -> str:
        """What an instance on Nitro that runs has printed up to now; ``UnsupportedOperation`` for others (AWS-932)."""

    async def describe_instance_status(self, filters: Sequence[Ec2Filter]) -> tuple[InstanceStatus, ...]:
        """What AWS's checks say (AWS-665)."""


class Ec2Api(InstanceTypeApi, DiscoveryApi, LaunchTemplateApi, FleetApi, InstanceApi, Protocol):
    """All of EC2. Functions ask for the part they use."""


class IamApi(Protocol):
    """Instance profiles."""

    async def get_instance_profile(self, name: str) -> InstanceProfile:
        """One profile; ``NoSuchEntity``."""

    async def create_instance_profile(self, name: str, path: str, tags: Mapping[str, str]) -> InstanceProfile:
        """Make one."""

    async def delete_instance_profile(self, name: str) -> None:
        """Delete one, without roles."""

    async def add_role_to_instance_profile(self, name: str, role: str) -> None:
        """Attach a role, by its name."""

    async def remove_role_from_instance_profile(self, name: str, role: str) -> None:
        """Detach a role, by its name."""

    async def list_instance_profiles(self, path_prefix: str) -> tuple[InstanceProfile, ...]:
        """Profiles below a path."""


class SsmApi(Protocol):
    """Parameters."""

    async def get_parameter(self, name: str) -> str:
        """A parameter's value; ``ParameterNotFound``."""

    async def put_secure_parameter(self, name: str, value: str) -> None:
        """Store an encrypted parameter; one of this name is overwritten."""

    async def delete_parameter(self, name: str) -> None:
        """Delete a parameter; ``ParameterNotFound``."""


class PricingApi(Protocol):
    """The price list."""

    async def get_products(self, filters: Mapping[str, str]) -> tuple[str, ...]:
        """Products that match all filters, each a JSON text (AWS-360)."""


class SqsApi(Protocol):
    """The interruption queue."""

    async def get_queue_url(self, name: str) -> str:
        """Where a queue is; ``QueueDoesNotExist``."""

    async def receive_messages(self, url: str) -> tuple[SqsMessage, ...]:
        """Up to ten messages, waiting up to 20 s for the first (AWS-640)."""

    async def delete_message(self, url: str, receipt_handle: str) -> None:
        """Delete a handled message."""


class EksApi(Protocol):
    """The managed control plane."""

    async def describe_cluster(self, name: str) -> EksCluster:
        """A cluster; ``ResourceNotFoundException``."""


class ZonalShiftApi(Protocol):
    """Zones a cluster is to keep away from."""

    async def get_managed_resource(self, arn: str) -> tuple[ZonalShift, ...]:
        """The shifts of a cluster."""


class StsApi(Protocol):
    """The STS API."""

    async def get_caller_identity(self) -> str:
        """The ARN of the caller."""


class AwsApis(NamedTuple):
    """All ports."""

    ec2: Ec2Api
    iam: IamApi
    ssm: SsmApi
    pricing: PricingApi
    sqs: SqsApi
    eks: EksApi
    zonal_shift: ZonalShiftApi
    sts: StsApi
