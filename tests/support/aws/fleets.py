"""Buying machines: CreateFleet and RunInstances with checks, quotas, reservations and addresses (AWS-969 to AWS-972, AWS-980)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import count
from typing import NamedTuple, Protocol
from uuid import uuid4

from karpenter.instancetypes import ec2_capacity
from support.aws.capacity import Capacity, Pool, Way
from support.aws.images import Images
from support.aws.instances import Instances, Machine
from support.aws.market import Market
from support.aws.network import Network
from support.aws.reservations_and_groups import Holdings
from support.aws.templates import Templates
from support.aws.wire import Fields, Refusal

_MOST_OVERRIDES = 300
_SPREAD_LIMIT = 7
_TEMPLATE = "launch-template"
#: Errors that mean that EC2 has no room; all others mean that the request is wrong.
_NO_ROOM = frozenset(
    {"InsufficientInstanceCapacity", "InsufficientFreeAddressesInSubnet", "ReservationCapacityExceeded"}
)


@dataclass
class Stumbling:
    """Ways that fail, by pattern of type, zone and capacity type; ``times`` counts down where it is finite."""

    code: str
    message: str
    instance_type: str = "*"
    zone: str = "*"
    capacity_type: str = "*"
    times: float = math.inf

    def meets(self, pool: Pool) -> bool:
        """Whether the pool is meant, and one time fewer is left if so."""
        patterns = (self.instance_type, self.zone, self.capacity_type)
        if self.times <= 0 or not all(map(fnmatchcase, pool, patterns)):
            return False
        self.times -= 1
        return True


@dataclass
class Habits:
    """How the account's EC2 behaves beyond capacity.

    ``pods_take_addresses``: a machine takes an address for every pod it may have.
    """

    pods_take_addresses: bool = False
    stumbling: list[Stumbling] = field(default_factory=list)


class Shelves(NamedTuple):
    """Everything a purchase looks at."""

    market: Market
    images: Images
    templates: Templates
    holdings: Holdings
    capacity: Capacity
    instances: Instances
    network: Network


class _Option(NamedTuple):
    """A way to make a machine with all that would be said to EC2."""

    way: Way
    specification: Fields
    override: Fields
    data: Fields


class _Order(NamedTuple):
    """What is asked for: ``market`` is the target's capacity type in the fleet's words."""

    units: int
    market: str
    tags: dict[str, str]
    fleet_id: str


class CheckAllowed(Protocol):
    """Raises ``Refusal`` for an action that is denied, altogether or on a kind of resource."""

    def __call__(self, action: str, resource: str = "*") -> None: ...


class Fleets:
    """CreateFleet and RunInstances."""

    def __init__(self, shelves: Shelves, check_allowed: CheckAllowed) -> None:
        self._shelves = shelves
        self._check_allowed = check_allowed
        self._hosts = count()
        self.habits = Habits()

    def reset(self) -> None:
        """No habits."""
        self.habits = Habits()

    # -- CreateFleet ----------------------------------------------------------------------------------------------------------

    def create(self, parameters: Fields) -> Fields:
        """CreateFleet, instant. Raises ``Refusal``."""
        self.check_fleet(parameters)
        target = parameters["TargetCapacitySpecification"]
        order = _Order(
            units=target["TotalTargetCapacity"],
            market=target.get("DefaultTargetCapacityType") or "on-demand",
            tags=_tags(parameters, "instance"),
            fleet_id=f"fleet-{uuid4()}",
        )
        options = self._options(parameters, order.market)
        made, errors = self._buy(self._ranked(options, parameters, order.market), order)
        return {
            "FleetId": order.fleet_id,
            "Instances": [_made_entry(option, ids, order.market) for option, ids in made],
            "Errors": [_error_entry(option, error, order.market) for option, error in errors],
        }

    def check_fleet(self, parameters: Fields) -> None:
        """What EC2 looks at before it tries. Raises ``Refusal``."""
        if parameters.get("Type") != "instant":
            raise Refusal("InvalidParameterValue", "this double makes instant fleets only")
        configs = parameters.get("LaunchTemplateConfigs") or ()
        overrides = [override for config in configs for override in config.get("Overrides") or ()]
        if len(overrides) > _MOST_OVERRIDES:
            raise Refusal("InvalidParameterValue", f"The number of overrides {len(overrides)} exceeds the limit of 300")
        for config in configs:
            self._shelves.templates.find(config["LaunchTemplateSpecification"])
            self._check_allowed("ec2:CreateFleet", _TEMPLATE)
        for override in overrides:
            if override.get("InstanceType") not in self._shelves.market.types:
                raise Refusal(
                    "InvalidParameterValue",
                    f"Value ({override.get('InstanceType')}) for parameter InstanceType is invalid",
                )

    def _options(self, parameters: Fields, market: str) -> list[_Option]:
        options: list[_Option] = []
        for config in parameters["LaunchTemplateConfigs"]:
            specification = config["LaunchTemplateSpecification"]
            template = self._shelves.templates.find(specification)
            template_reference = {
                "LaunchTemplateId": template.template_id,
                "LaunchTemplateName": template.name,
                "Version": "1",
            }
            for override in config.get("Overrides") or ():
                data = {**template.data, "ImageId": override.get("ImageId") or template.data.get("ImageId", "")}
                options.append(_Option(self._way(override, market, len(options)), template_reference, override, data))
        return options

    def _way(self, override: Fields, market: str, index: int) -> Way:
        subnet_id = override.get("SubnetId") or ""
        zone = self._shelves.network.zone(subnet_id) or override.get("AvailabilityZone") or ""
        priority = override.get("Priority")
        pool = Pool(override["InstanceType"], zone, "spot" if market == "spot" else "on-demand")
        return Way(pool, subnet_id, math.inf if priority is None else priority, index)

    def _ranked(self, options: Sequence[_Option], parameters: Fields, market: str) -> list[_Option]:
        strategies = {
            "spot": (parameters.get("SpotOptions") or {}).get("AllocationStrategy") or "lowest-price",
            "on-demand": (parameters.get("OnDemandOptions") or {}).get("AllocationStrategy") or "lowest-price",
        }
        strategy = strategies.get(market, "lowest-price")
        by_way = {option.way: option for option in options}
        return [by_way[way] for way in self._shelves.capacity.rank(list(by_way), strategy)]

    def _buy(
        self, options: Sequence[_Option], order: _Order
    ) -> tuple[list[tuple[_Option, list[str]]], list[tuple[_Option, Refusal]]]:
        made: list[tuple[_Option, list[str]]] = []
        errors: list[tuple[_Option, Refusal]] = []
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
        if not made and errors and all(error.code in _NO_ROOM for _, error in errors):
            message = "Unable to fulfill capacity due to your request configuration. Please adjust your request and try again."
            errors.append((errors[0][0], Refusal("UnfulfillableCapacity", message)))
        return made, errors

    # -- RunInstances ---------------------------------------------------------------------------------------------------------

    def run(self, parameters: Fields) -> Fields:
        """RunInstances, of one type in one subnet. Raises ``Refusal``."""
        option = self.check_run(parameters)
        market = option.way.pool.capacity_type
        order = _Order(parameters.get("MinCount") or 1, market, _tags(parameters, "instance"), "")
        ids = [self._launch(option, order) for _ in range(order.units)]
        purchases = self._shelves.instances.describe({"InstanceIds": ids})["Reservations"]
        return {**purchases[0], "Instances": [machine for purchase in purchases for machine in purchase["Instances"]]}

    def check_run(self, parameters: Fields) -> _Option:
        """What RunInstances looks at before it tries. Raises ``Refusal``."""
        template = parameters.get("LaunchTemplate")
        base = self._shelves.templates.find(template).data if template else {}
        data = {**base, **{key: value for key, value in parameters.items() if key != "LaunchTemplate"}}
        if data.get("NetworkInterfaces") and (data.get("SubnetId") or data.get("SecurityGroupIds")):
            raise Refusal(
                "InvalidParameterCombination",
                "Network interfaces and an instance-level subnet ID may not be specified on the same request",
            )
        interfaces = data.get("NetworkInterfaces") or ()
        subnet_id = data.get("SubnetId") or (interfaces[0].get("SubnetId") if interfaces else "") or ""
        market = (data.get("InstanceMarketOptions") or {}).get("MarketType") or "on-demand"
        if market != "spot" and any(_names(tagged, "spot-instances-request") for tagged in (base, parameters)):
            raise Refusal(
                "InvalidParameterValue",
                "You cannot specify tags for Spot instances requests if there are no Spot instances requests being created by "
                "the request.",
            )
        override = {"InstanceType": data.get("InstanceType") or "m5.large", "SubnetId": subnet_id}
        option = _Option(self._way(override, market, 0), template or {}, override, data)
        self._check_request(option)
        return option

    # -- one machine ----------------------------------------------------------------------------------------------------------

    def _check_request(self, option: _Option) -> str:
        """The architecture of its image. Raises ``Refusal`` for what no amount of capacity would mend."""
        self._check_allowed("ec2:RunInstances")
        if option.specification:
            self._check_allowed("ec2:RunInstances", _TEMPLATE)
        image = self._shelves.images.check(option.data.get("ImageId") or "")
        interfaces = option.data.get("NetworkInterfaces") or ()
        groups = {name for interface in interfaces for name in interface.get("Groups") or ()}
        self._shelves.network.check(
            option.way.subnet_id, sorted(groups | set(option.data.get("SecurityGroupIds") or ()))
        )
        self._shelves.network.check_profile((option.data.get("IamInstanceProfile") or {}).get("Name"))
        pool = option.way.pool
        if not self._shelves.market.is_sold(pool.instance_type, pool.zone):
            raise Refusal(
                "InvalidFleetConfiguration",
                f"Your requested instance type ({pool.instance_type}) is not supported in your requested "
                f"Availability Zone ({pool.zone}).",
            )
        architectures = self._shelves.market.types[pool.instance_type]["ProcessorInfo"]["SupportedArchitectures"]
        if image.architecture not in architectures:
            raise Refusal(
                "InvalidParameterValue",
                f"The architecture '{','.join(architectures)}' of the specified instance type does not match the architecture "
                f"'{image.architecture}' of the specified AMI.",
            )
        return image.architecture

    def _launch(self, option: _Option, order: _Order) -> str:
        """Make one machine; its id. Raises ``Refusal``, and then nothing is taken."""
        pool = option.way.pool
        architecture = self._check_request(option)
        for stumbling in self.habits.stumbling:
            if stumbling.meets(pool):
                raise Refusal(stumbling.code, stumbling.message)
        self._check_quotas(pool)
        addresses = self._addresses(pool.instance_type)
        self._shelves.network.check_addresses(option.way.subnet_id, addresses, self._shelves.instances.alive())
        self._check_group(option)
        reservation_id = self._take_capacity(option)
        machine = self._machine(option, order, reservation_id, architecture)
        self._shelves.instances.add(machine)
        return machine.instance_id

    def _check_quotas(self, pool: Pool) -> None:
        quotas, instances = self._shelves.capacity.quotas, self._shelves.instances
        same = [machine for machine in instances.alive() if machine.pool.capacity_type == pool.capacity_type]
        vcpus = sum(machine.vcpus for machine in same) + self._shelves.market.vcpus(pool.instance_type)
        if pool.capacity_type == "spot" and (len(same) + 1 > quotas.spot_machines or vcpus > quotas.spot_vcpus):
            raise Refusal("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
        if pool.capacity_type == "on-demand" and vcpus > quotas.on_demand_vcpus:
            raise Refusal(
                "VcpuLimitExceeded",
                f"You have requested more vCPU capacity than your current vCPU limit of {quotas.on_demand_vcpus:g} allows "
                "for the instance bucket that the specified instance type belongs to.",
            )

    def _addresses(self, instance_type: str) -> int:
        if not self.habits.pods_take_addresses:
            return 1
        network = self._shelves.market.types[instance_type]["NetworkInfo"]
        return ec2_capacity.max_pods(network["MaximumNetworkInterfaces"], network["Ipv4AddressesPerInterface"])

    def _check_group(self, option: _Option) -> None:
        group_id = (option.data.get("Placement") or {}).get("GroupId")
        if not group_id:
            return
        group = self._shelves.holdings.groups.get(group_id)
        if group is None:
            raise Refusal("InvalidPlacementGroup.Unknown", f"The Placement Group '{group_id}' is unknown.")
        neighbours = [
            machine
            for machine in self._shelves.instances.alive()
            if (machine.data.get("Placement") or {}).get("GroupId") == group_id
            and machine.pool.zone == option.way.pool.zone
        ]
        if group.strategy == "spread" and group.spread_level != "host" and len(neighbours) >= _SPREAD_LIMIT:
            raise Refusal(
                "InsufficientInstanceCapacity",
                "You have reached the limit of instances in this spread placement group in this Availability Zone.",
            )

    def _take_capacity(self, option: _Option) -> str:
        """The reservation the machine is in, if it is in one. Raises ``Refusal``."""
        asked = option.data.get("CapacityReservationSpecification") or {}
        target = (asked.get("CapacityReservationTarget") or {}).get("CapacityReservationId")
        if target:
            self._check_reservation(target, option.way.pool)
            self._shelves.holdings.take(target)
            return str(target)
        pool = option.way.pool
        if self._shelves.capacity.free(pool) <= 0:
            raise Refusal(
                "InsufficientInstanceCapacity",
                f"We currently do not have sufficient {pool.instance_type} capacity in the Availability Zone you requested "
                f"({pool.zone}).",
            )
        self._shelves.capacity.take(pool)
        return ""

    def _check_reservation(self, reservation_id: str, pool: Pool) -> None:
        reservation = self._shelves.holdings.reservations.get(reservation_id)
        if reservation is not None and (reservation.instance_type, reservation.zone) != (pool.instance_type, pool.zone):
            raise Refusal(
                "InvalidParameterValue", "The instance's attributes do not match those of the Capacity Reservation."
            )

    def _machine(self, option: _Option, order: _Order, reservation_id: str, architecture: str) -> Machine:
        shelves, pool = self._shelves, option.way.pool
        number = next(self._hosts)
        address = shelves.network.address(option.way.subnet_id, number)
        return Machine(
            instance_id=f"i-{uuid4().hex[:17]}",
            pool=pool,
            zone_id=shelves.market.zones[pool.zone],
            subnet_id=option.way.subnet_id,
            vpc_id=shelves.network.vpc(option.way.subnet_id),
            private_ip=address,
            private_dns=shelves.network.host_name(address),
            image_id=option.data["ImageId"],
            architecture=architecture,
            launched_at=shelves.instances.now(),
            data=option.data,
            tags={**_tags(option.data, "instance"), **order.tags, **_fleet_tag(order)},
            fleet_id=order.fleet_id,
            reservation_id=reservation_id,
            lifecycle=self._lifecycle(pool, reservation_id),
            partition=self._partition(option, number),
            addresses=self._addresses(pool.instance_type),
            vcpus=shelves.market.vcpus(pool.instance_type),
        )

    def _lifecycle(self, pool: Pool, reservation_id: str) -> str:
        if pool.capacity_type == "spot":
            return "spot"
        reservation = self._shelves.holdings.reservations.get(reservation_id)
        if reservation is None:
            return ""
        return (
            "interruptible-capacity-reservation"
            if reservation.interruptible
            else reservation.kind.replace("default", "")
        )

    def _partition(self, option: _Option, number: int) -> int:
        group = self._shelves.holdings.groups.get((option.data.get("Placement") or {}).get("GroupId") or "")
        return number % group.partitions + 1 if group is not None and group.partitions else 0

    def release(self, machine: Machine) -> None:
        """A machine ended: what it took is there again."""
        if machine.reservation_id:
            self._shelves.holdings.give_back(machine.reservation_id)
        else:
            self._shelves.capacity.give_back(machine.pool)


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


def _fleet_tag(order: _Order) -> dict[str, str]:
    return {"aws:ec2:fleet-id": order.fleet_id} if order.fleet_id else {}


def _told(option: _Option) -> Fields:
    return {"LaunchTemplateSpecification": option.specification, "Overrides": option.override}


def _made_entry(option: _Option, ids: Sequence[str], market: str) -> Fields:
    return {
        "LaunchTemplateAndOverrides": _told(option),
        "Lifecycle": "spot" if market == "spot" else "on-demand",
        "InstanceIds": list(ids),
        "InstanceType": option.way.pool.instance_type,
    }


def _error_entry(option: _Option, error: Refusal, market: str) -> Fields:
    return {
        "LaunchTemplateAndOverrides": _told(option),
        "Lifecycle": "spot" if market == "spot" else "on-demand",
        "ErrorCode": error.code,
        "ErrorMessage": error.message,
    }
