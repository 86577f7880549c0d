"""Launches: CreateFleet and RunInstances with checks, quotas, reservations and addresses (AWS-969 to AWS-972, AWS-980)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import count
from typing import NamedTuple, Protocol
from uuid import uuid4

from karpenter.instancetypes import ec2_capacity
from support.aws.capacity import Capacity, LaunchTarget, Pool
from support.aws.ec2_types import Ec2Types
from support.aws.images import Images
from support.aws.instances import DoubleInstance, Instances
from support.aws.network import Network
from support.aws.reservations_and_groups import ReservationsAndGroups
from support.aws.templates import Templates
from support.aws.wire import Fields, Refusal

_MOST_OVERRIDES = 300
_SPREAD_LIMIT = 7
_TEMPLATE = "launch-template"
#: Errors for missing capacity; all others mean that the request is invalid.
_NO_CAPACITY = frozenset(
    {"InsufficientInstanceCapacity", "InsufficientFreeAddressesInSubnet", "ReservationCapacityExceeded"}
)


@dataclass
class LaunchFault:
    """Launches that fail, by patterns of type, zone and capacity type; ``times`` counts down."""

    code: str
    message: str
    instance_type: str = "*"
    zone: str = "*"
    capacity_type: str = "*"
    times: float = math.inf

    def applies_to(self, pool: Pool) -> bool:
        """Whether the fault applies to a pool; if so, count it."""
        patterns = (self.instance_type, self.zone, self.capacity_type)
        if self.times <= 0 or not all(map(fnmatchcase, pool, patterns)):
            return False
        self.times -= 1
        return True


@dataclass
class FleetBehavior:
    """Behavior of launches that tests set.

    ``pods_take_addresses``: an instance uses one address for each pod that it can run.
    """

    pods_take_addresses: bool = False
    launch_faults: list[LaunchFault] = field(default_factory=list)


class RegionState(NamedTuple):
    """The state of the region that launches read and change."""

    instance_types: Ec2Types
    images: Images
    templates: Templates
    reservations_and_groups: ReservationsAndGroups
    capacity: Capacity
    instances: Instances
    network: Network


class _LaunchOption(NamedTuple):
    """A launch target with its launch template, override and merged launch data."""

    target: LaunchTarget
    specification: Fields
    override: Fields
    data: Fields


class _FleetOrder(NamedTuple):
    """What a request asks for; ``capacity_type`` is ``DefaultTargetCapacityType``."""

    units: int
    capacity_type: str
    tags: dict[str, str]
    fleet_id: str


class CheckAllowed(Protocol):
    """Raises ``Refusal`` for an action that is denied, in general or on a kind of resource."""

    def __call__(self, action: str, resource: str = "*") -> None: ...


class Fleets:
    """CreateFleet and RunInstances."""

    def __init__(self, region: RegionState, check_allowed: CheckAllowed) -> None:
        self._region = region
        self._check_allowed = check_allowed
        self._hosts = count()
        self.behavior = FleetBehavior()

    def reset(self) -> None:
        """Restore the default behavior."""
        self.behavior = FleetBehavior()

    # -- CreateFleet ----------------------------------------------------------------------------------------------------------

    def create(self, parameters: Fields) -> Fields:
        """CreateFleet of type ``instant``. Raises ``Refusal``."""
        self.check_fleet(parameters)
        target = parameters["TargetCapacitySpecification"]
        order = _FleetOrder(
            units=target["TotalTargetCapacity"],
            capacity_type=target.get("DefaultTargetCapacityType") or "on-demand",
            tags=_tags(parameters, "instance"),
            fleet_id=f"fleet-{uuid4()}",
        )
        options = self._options(parameters, order.capacity_type)
        made, errors = self._launch_options(self._ranked(options, parameters, order.capacity_type), order)
        return {
            "FleetId": order.fleet_id,
            "Instances": [_made_entry(option, ids, order.capacity_type) for option, ids in made],
            "Errors": [_error_entry(option, error, order.capacity_type) for option, error in errors],
        }

    def check_fleet(self, parameters: Fields) -> None:
        """Checks of CreateFleet before it launches. Raises ``Refusal``."""
        if parameters.get("Type") != "instant":
            raise Refusal("InvalidParameterValue", "this double makes instant fleets only")
        configs = parameters.get("LaunchTemplateConfigs") or ()
        overrides = [override for config in configs for override in config.get("Overrides") or ()]
        if len(overrides) > _MOST_OVERRIDES:
            raise Refusal("InvalidParameterValue", f"The number of overrides {len(overrides)} exceeds the limit of 300")
        for config in configs:
            self._region.templates.find(config["LaunchTemplateSpecification"])
            self._check_allowed("ec2:CreateFleet", _TEMPLATE)
        for override in overrides:
            if override.get("InstanceType") not in self._region.instance_types.types:
                raise Refusal(
                    "InvalidParameterValue",
                    f"Value ({override.get('InstanceType')}) for parameter InstanceType is invalid",
                )

    def _options(self, parameters: Fields, capacity_type: str) -> list[_LaunchOption]:
        options: list[_LaunchOption] = []
        for config in parameters["LaunchTemplateConfigs"]:
            specification = config["LaunchTemplateSpecification"]
            template = self._region.templates.find(specification)
            template_reference = {
                "LaunchTemplateId": template.template_id,
                "LaunchTemplateName": template.name,
                "Version": "1",
            }
            for override in config.get("Overrides") or ():
                data = {**template.data, "ImageId": override.get("ImageId") or template.data.get("ImageId", "")}
                options.append(
                    _LaunchOption(
                        self._target(override, capacity_type, len(options)), template_reference, override, data
                    )
                )
        return options

    def _target(self, override: Fields, capacity_type: str, index: int) -> LaunchTarget:
        subnet_id = override.get("SubnetId") or ""
        zone = self._region.network.zone(subnet_id) or override.get("AvailabilityZone") or ""
        priority = override.get("Priority")
        pool = Pool(override["InstanceType"], zone, "spot" if capacity_type == "spot" else "on-demand")
        return LaunchTarget(pool, subnet_id, math.inf if priority is None else priority, index)

    def _ranked(self, options: Sequence[_LaunchOption], parameters: Fields, capacity_type: str) -> list[_LaunchOption]:
        strategies = {
            "spot": (parameters.get("SpotOptions") or {}).get("AllocationStrategy") or "lowest-price",
            "on-demand": (parameters.get("OnDemandOptions") or {}).get("AllocationStrategy") or "lowest-price",
        }
        strategy = strategies.get(capacity_type, "lowest-price")
        by_target = {option.target: option for option in options}
        return [by_target[target] for target in self._region.capacity.rank(list(by_target), strategy)]

    def _launch_options(
        self, options: Sequence[_LaunchOption], order: _FleetOrder
    ) -> tuple[list[tuple[_LaunchOption, list[str]]], list[tuple[_LaunchOption, Refusal]]]:
        made: list[tuple[_LaunchOption, list[str]]] = []
        errors: list[tuple[_LaunchOption, Refusal]] = []
        left = order.units
        for option in options:
            ids: list[str] = []
            try:
                while left > 0:
                    ids.append(self._launch(option, order))
                    left -= 1
            except Refusal as error:
                errors.append((option, error))
            if ids:
                made.append((option, ids))
            if left <= 0:
                break
        if not made and errors and all(error.code in _NO_CAPACITY for _, error in errors):
            message = "Unable to fulfill capacity due to your request configuration. Please adjust your request and try again."
            errors.append((errors[0][0], Refusal("UnfulfillableCapacity", message)))
        return made, errors

    # -- RunInstances ---------------------------------------------------------------------------------------------------------

    def run(self, parameters: Fields) -> Fields:
        """RunInstances, of one type in one subnet. Raises ``Refusal``."""
        option = self.check_run(parameters)
        capacity_type = option.target.pool.capacity_type
        order = _FleetOrder(parameters.get("MinCount") or 1, capacity_type, _tags(parameters, "instance"), "")
        ids = [self._launch(option, order) for _ in range(order.units)]
        reservations = self._region.instances.describe({"InstanceIds": ids})["Reservations"]
        return {
            **reservations[0],
            "Instances": [instance for reservation in reservations for instance in reservation["Instances"]],
        }

    def check_run(self, parameters: Fields) -> _LaunchOption:
        """Checks of RunInstances before it launches. Raises ``Refusal``."""
        template = parameters.get("LaunchTemplate")
        base = self._region.templates.find(template).data if template else {}
        data = {**base, **{key: value for key, value in parameters.items() if key != "LaunchTemplate"}}
        if data.get("NetworkInterfaces") and (data.get("SubnetId") or data.get("SecurityGroupIds")):
            raise Refusal(
                "InvalidParameterCombination",
                "Network interfaces and an instance-level subnet ID may not be specified on the same request",
            )
        interfaces = data.get("NetworkInterfaces") or ()
        subnet_id = data.get("SubnetId") or (interfaces[0].get("SubnetId") if interfaces else "") or ""
        capacity_type = (data.get("InstanceMarketOptions") or {}).get("MarketType") or "on-demand"
        if capacity_type != "spot" and any(_names(tagged, "spot-instances-request") for tagged in (base, parameters)):
            raise Refusal(
                "InvalidParameterValue",
                "You cannot specify tags for Spot instances requests if there are no Spot instances requests being created by "
                "the request.",
            )
        override = {"InstanceType": data.get("InstanceType") or "m5.large", "SubnetId": subnet_id}
        option = _LaunchOption(self._target(override, capacity_type, 0), template or {}, override, data)
        self._check_request(option)
        return option

    # -- launch of one instance -----------------------------------------------------------------------------------------------

    def _check_request(self, option: _LaunchOption) -> str:
        """The architecture of the image. Raises ``Refusal`` for an error that does not depend on capacity."""
        self._check_allowed("ec2:RunInstances")
        if option.specification:
            self._check_allowed("ec2:RunInstances", _TEMPLATE)
        image = self._region.images.check(option.data.get("ImageId") or "")
        interfaces = option.data.get("NetworkInterfaces") or ()
        groups = {name for interface in interfaces for name in interface.get("Groups") or ()}
        self._region.network.check(
            option.target.subnet_id, sorted(groups | set(option.data.get("SecurityGroupIds") or ()))
        )
        self._region.network.check_profile((option.data.get("IamInstanceProfile") or {}).get("Name"))
        pool = option.target.pool
        if not self._region.instance_types.is_offered(pool.instance_type, pool.zone):
            raise Refusal(
                "InvalidFleetConfiguration",
                f"Your requested instance type ({pool.instance_type}) is not supported in your requested "
                f"Availability Zone ({pool.zone}).",
            )
        architectures = self._region.instance_types.types[pool.instance_type]["ProcessorInfo"]["SupportedArchitectures"]
        if image.architecture not in architectures:
            raise Refusal(
                "InvalidParameterValue",
                f"The architecture '{','.join(architectures)}' of the specified instance type does not match the architecture "
                f"'{image.architecture}' of the specified AMI.",
            )
        return image.architecture

    def _launch(self, option: _LaunchOption, order: _FleetOrder) -> str:
        """Launch one instance; return its id. Raises ``Refusal`` without using capacity."""
        pool = option.target.pool
        architecture = self._check_request(option)
        for launch_fault in self.behavior.launch_faults:
            if launch_fault.applies_to(pool):
                raise Refusal(launch_fault.code, launch_fault.message)
        self._check_quotas(pool)
        addresses = self._addresses(pool.instance_type)
        self._region.network.check_addresses(option.target.subnet_id, addresses, self._region.instances.alive())
        self._check_group(option)
        reservation_id = self._take_capacity(option)
        instance = self._new_instance(option, order, reservation_id, architecture)
        self._region.instances.add(instance)
        return instance.instance_id

    def _check_quotas(self, pool: Pool) -> None:
        quotas, instances = self._region.capacity.quotas, self._region.instances
        same = [instance for instance in instances.alive() if instance.pool.capacity_type == pool.capacity_type]
        vcpus = sum(instance.vcpus for instance in same) + self._region.instance_types.vcpus(pool.instance_type)
        if pool.capacity_type == "spot" and (len(same) + 1 > quotas.spot_instances or vcpus > quotas.spot_vcpus):
            raise Refusal("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
        if pool.capacity_type == "on-demand" and vcpus > quotas.on_demand_vcpus:
            raise Refusal(
                "VcpuLimitExceeded",
                f"You have requested more vCPU capacity than your current vCPU limit of {quotas.on_demand_vcpus:g} allows "
                "for the instance bucket that the specified instance type belongs to.",
            )

    def _addresses(self, instance_type: str) -> int:
        if not self.behavior.pods_take_addresses:
            return 1
        network = self._region.instance_types.types[instance_type]["NetworkInfo"]
        return ec2_capacity.max_pods(network["MaximumNetworkInterfaces"], network["Ipv4AddressesPerInterface"])

    def _check_group(self, option: _LaunchOption) -> None:
        group_id = (option.data.get("Placement") or {}).get("GroupId")
        if not group_id:
            return
        group = self._region.reservations_and_groups.groups.get(group_id)
        if group is None:
            raise Refusal("InvalidPlacementGroup.Unknown", f"The Placement Group '{group_id}' is unknown.")
        neighbours = [
            instance
            for instance in self._region.instances.alive()
            if (instance.data.get("Placement") or {}).get("GroupId") == group_id
            and instance.pool.zone == option.target.pool.zone
        ]
        if group.strategy == "spread" and group.spread_level != "host" and len(neighbours) >= _SPREAD_LIMIT:
            raise Refusal(
                "InsufficientInstanceCapacity",
                "You have reached the limit of instances in this spread placement group in this Availability Zone.",
            )

    def _take_capacity(self, option: _LaunchOption) -> str:
        """Use capacity; return the id of the capacity reservation, or an empty text. Raises ``Refusal``."""
        asked = option.data.get("CapacityReservationSpecification") or {}
        target = (asked.get("CapacityReservationTarget") or {}).get("CapacityReservationId")
        if target:
            self._check_reservation(target, option.target.pool)
            self._region.reservations_and_groups.take(target)
            return str(target)
        pool = option.target.pool
        if self._region.capacity.free(pool) <= 0:
            raise Refusal(
                "InsufficientInstanceCapacity",
                f"We currently do not have sufficient {pool.instance_type} capacity in the Availability Zone you requested "
                f"({pool.zone}).",
            )
        self._region.capacity.take(pool)
        return ""

    def _check_reservation(self, reservation_id: str, pool: Pool) -> None:
        reservation = self._region.reservations_and_groups.reservations.get(reservation_id)
        if reservation is not None and (reservation.instance_type, reservation.zone) != (pool.instance_type, pool.zone):
            raise Refusal(
                "InvalidParameterValue", "The instance's attributes do not match those of the Capacity Reservation."
            )

    def _new_instance(
        self, option: _LaunchOption, order: _FleetOrder, reservation_id: str, architecture: str
    ) -> DoubleInstance:
        region, pool = self._region, option.target.pool
        number = next(self._hosts)
        address = region.network.address(option.target.subnet_id, number)
        return DoubleInstance(
            instance_id=f"i-{uuid4().hex[:17]}",
            pool=pool,
            zone_id=region.instance_types.zones[pool.zone],
            subnet_id=option.target.subnet_id,
            vpc_id=region.network.vpc(option.target.subnet_id),
            private_ip=address,
            private_dns=region.network.host_name(address),
            image_id=option.data["ImageId"],
            architecture=architecture,
            launched_at=region.instances.now(),
            data=option.data,
            tags={**_tags(option.data, "instance"), **order.tags, **_fleet_tag(order)},
            fleet_id=order.fleet_id,
            reservation_id=reservation_id,
            lifecycle=self._lifecycle(pool, reservation_id),
            partition=self._partition(option, number),
            addresses=self._addresses(pool.instance_type),
            vcpus=region.instance_types.vcpus(pool.instance_type),
        )

    def _lifecycle(self, pool: Pool, reservation_id: str) -> str:
        if pool.capacity_type == "spot":
            return "spot"
        reservation = self._region.reservations_and_groups.reservations.get(reservation_id)
        if reservation is None:
            return ""
        return (
            "interruptible-capacity-reservation"
            if reservation.interruptible
            else reservation.kind.replace("default", "")
        )

    def _partition(self, option: _LaunchOption, number: int) -> int:
        group = self._region.reservations_and_groups.groups.get(
            (option.data.get("Placement") or {}).get("GroupId") or ""
        )
        return number % group.partitions + 1 if group is not None and group.partitions else 0

    def release(self, instance: DoubleInstance) -> None:
        """Return the capacity of a terminated instance."""
        if instance.reservation_id:
            self._region.reservations_and_groups.give_back(instance.reservation_id)
        else:
            self._region.capacity.give_back(instance.pool)


def _tags(parameters: Mapping[str, object], resource_type: str) -> dict[str, str]:
    specifications = parameters.get("TagSpecifications") or ()
    assert isinstance(specifications, list | tuple)
    return {
        tag["Key"]: tag.get("Value") or ""
        for specification in specifications
        if specification.get("ResourceType") == resource_type
        for tag in specification.get("Tags") or ()
    }


def _names(parameters: Fields, resource_type: str) -> bool:
    """Whether a request tags resources of this type."""
    return any(tagged.get("ResourceType") == resource_type for tagged in parameters.get("TagSpecifications") or ())


def _fleet_tag(order: _FleetOrder) -> dict[str, str]:
    return {"aws:ec2:fleet-id": order.fleet_id} if order.fleet_id else {}


def _overrides_entry(option: _LaunchOption) -> Fields:
    return {"LaunchTemplateSpecification": option.specification, "Overrides": option.override}


def _made_entry(option: _LaunchOption, ids: Sequence[str], capacity_type: str) -> Fields:
    return {
        "LaunchTemplateAndOverrides": _overrides_entry(option),
        "Lifecycle": "spot" if capacity_type == "spot" else "on-demand",
        "InstanceIds": list(ids),
        "InstanceType": option.target.pool.instance_type,
    }


def _error_entry(option: _LaunchOption, error: Refusal, capacity_type: str) -> Fields:
    return {
        "LaunchTemplateAndOverrides": _overrides_entry(option),
        "Lifecycle": "spot" if capacity_type == "spot" else "on-demand",
        "ErrorCode": error.code,
        "ErrorMessage": error.message,
    }
