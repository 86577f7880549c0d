"""Machines that were bought: what EC2 tells of them, their way through the states, their health (AWS-970, AWS-973 to AWS-976).

A machine's state follows from when it was bought and when it was told to go; nothing happens in the background.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from support.aws.capacity import Pool
from support.aws.moto_side import ACCOUNT
from support.aws.queries import at, select
from support.aws.wire import Fields, Refusal

PENDING, RUNNING, STOPPED = "pending", "running", "stopped"
SHUTTING_DOWN, TERMINATED = "shutting-down", "terminated"
_CODES = {PENDING: 0, RUNNING: 16, SHUTTING_DOWN: 32, TERMINATED: 48, STOPPED: 80}
_LIFECYCLES = ("spot", "capacity-block", "interruptible-capacity-reservation")
_BY_USER = ("Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")


@dataclass
class Timing:
    """How long a machine stays in a state, in seconds. A terminated one is told of for ``remembered``.

    ``visible_after`` is how late EC2's describe calls know of a new machine.
    """

    pending: float = 0.0
    shutting_down: float = 0.0
    remembered: float = 3600.0
    visible_after: float = 0.0


@dataclass(frozen=True)
class Machine:
    """A machine. ``data`` is what its launch template and its request said together; times are seconds since the epoch."""

    instance_id: str
    pool: Pool
    zone_id: str
    subnet_id: str
    vpc_id: str
    private_ip: str
    private_dns: str
    image_id: str
    architecture: str
    launched_at: float
    data: Fields
    tags: dict[str, str]
    fleet_id: str = ""
    reservation_id: str = ""
    lifecycle: str = ""
    partition: int = 0
    addresses: int = 1
    vcpus: int = 0
    stopped: bool = False
    ended_at: float | None = None
    end_reason: tuple[str, str] = _BY_USER

    @property
    def provider_id(self) -> str:
        """As the Node has it (AWS-465)."""
        return f"aws:///{self.pool.zone}/{self.instance_id}"

    @property
    def is_alive(self) -> bool:
        """Not told to go."""
        return self.ended_at is None


@dataclass(frozen=True)
class Health:
    """What EC2's checks say of a machine, and what EC2 plans for it."""

    instance: str = "ok"
    system: str = "ok"
    since: datetime | None = None
    events: tuple[Fields, ...] = ()


_FILTERS = {
    "instance-id": at("InstanceId"),
    "instance-state-name": at("State", "Name"),
    "instance-type": at("InstanceType"),
    "instance-lifecycle": at("InstanceLifecycle"),
    "availability-zone": at("Placement", "AvailabilityZone"),
    "subnet-id": at("SubnetId"),
    "vpc-id": at("VpcId"),
    "image-id": at("ImageId"),
    "private-dns-name": at("PrivateDnsName"),
}
_STATUS_FILTERS = {
    "instance-status.status": at("InstanceStatus", "Status"),
    "system-status.status": at("SystemStatus", "Status"),
    "event.code": at("Events", "Code"),
    "instance-state-name": at("InstanceState", "Name"),
    "availability-zone": at("AvailabilityZone"),
}


@dataclass
class Instances:
    """All machines of the region. ``now`` is seconds since the epoch; ``released`` hears of every machine that ends."""

    now: Callable[[], float]
    released: Callable[[Machine], None]
    timing: Timing = field(default_factory=Timing)
    machines: dict[str, Machine] = field(default_factory=dict)
    consoles: dict[str, str] = field(default_factory=dict)
    _health: dict[str, Health] = field(default_factory=dict)

    def reset(self) -> None:
        """Forget all."""
        self.machines.clear()
        self.consoles.clear()
        self._health.clear()
        self.timing = Timing()

    def add(self, machine: Machine) -> None:
        """A machine was bought."""
        self.machines[machine.instance_id] = machine

    def alive(self) -> list[Machine]:
        """Machines that were not told to go."""
        return [machine for machine in self.machines.values() if machine.is_alive]

    def state(self, machine: Machine) -> str:
        """The state now."""
        now = self.now()
        if machine.ended_at is None and machine.stopped:
            return STOPPED
        if machine.ended_at is None:
            return RUNNING if now >= machine.launched_at + self.timing.pending else PENDING
        return TERMINATED if now >= machine.ended_at + self.timing.shutting_down else SHUTTING_DOWN

    def set_health(self, instance_id: str, health: Health) -> None:
        """From now on the checks say so."""
        self._health[instance_id] = health

    def end(self, instance_id: str, reason: tuple[str, str] = _BY_USER) -> None:
        """A machine is told to go; one that was told before goes on going."""
        machine = self.machines[instance_id]
        if machine.is_alive:
            self.machines[instance_id] = replace(machine, ended_at=self.now(), end_reason=reason)
            self.released(machine)

    def stop(self, instance_id: str) -> None:
        """A machine is stopped: it keeps its place and does nothing."""
        self.machines[instance_id] = replace(self.machines[instance_id], stopped=True)

    # -- answers --------------------------------------------------------------------------------------------------------------

    def describe(self, parameters: Fields) -> Fields:
        """DescribeInstances. Raises ``Refusal``."""
        wanted = parameters.get("InstanceIds") or ()
        described = {machine.instance_id: machine for machine in self.machines.values() if self._is_told_of(machine)}
        _check_ids(wanted, described)
        result = [described[name] for name in dict.fromkeys(wanted)] if wanted else list(described.values())
        entries = select(map(self._entry, result), parameters.get("Filters"), _FILTERS)
        return {"Reservations": [_purchase(entry) for entry in entries]}

    def _is_told_of(self, machine: Machine) -> bool:
        now = self.now()
        gone_at = (
            None if machine.ended_at is None else machine.ended_at + self.timing.shutting_down + self.timing.remembered
        )
        return machine.launched_at + self.timing.visible_after <= now and (gone_at is None or now < gone_at)

    def terminate(self, parameters: Fields) -> Fields:
        """TerminateInstances: all or none. Raises ``Refusal``."""
        wanted = list(dict.fromkeys(parameters.get("InstanceIds") or ()))
        _check_ids(wanted, self.machines)
        before = {name: self.state(self.machines[name]) for name in wanted}
        for name in wanted:
            self.end(name)
        changes = [
            {
                "InstanceId": name,
                "PreviousState": _state(before[name]),
                "CurrentState": _state(TERMINATED if before[name] == TERMINATED else SHUTTING_DOWN),
            }
            for name in wanted
        ]
        return {"TerminatingInstances": changes}

    def reboot(self, parameters: Fields) -> Fields:
        """RebootInstances: the machines stay what they are, and running (K15-A124). Raises ``Refusal``."""
        _check_ids(list(parameters.get("InstanceIds") or ()), self.machines)
        return {}

    def check_tags(self, ids: Sequence[str]) -> None:
        """Whether machines can be tagged. Raises ``Refusal``."""
        _check_ids([name for name in ids if name.startswith("i-")], self.machines)

    def tag(self, ids: Sequence[str], tags: dict[str, str]) -> None:
        """Tag machines."""
        for name in ids:
            machine = self.machines[name]
            self.machines[name] = replace(machine, tags={**machine.tags, **tags})

    def describe_status(self, parameters: Fields) -> Fields:
        """DescribeInstanceStatus: of running machines unless ``IncludeAllInstances``. Raises ``Refusal``."""
        wanted = parameters.get("InstanceIds") or ()
        _check_ids(wanted, self.machines)
        result = [machine for name, machine in self.machines.items() if not wanted or name in wanted]
        if not parameters.get("IncludeAllInstances"):
            result = [machine for machine in result if self.state(machine) == RUNNING]
        entries = [self._status(machine) for machine in result]
        return {"InstanceStatuses": select(entries, parameters.get("Filters"), _STATUS_FILTERS)}

    def console(self, parameters: Fields) -> Fields:
        """GetConsoleOutput: the latest of a machine that runs, or what is kept of one that is gone. Raises ``Refusal``."""
        name = parameters["InstanceId"]
        _check_ids([name], self.machines)
        state = self.state(self.machines[name])
        if parameters.get("Latest") and state != RUNNING:
            raise Refusal("UnsupportedOperation", "The latest console output is there while the instance runs.")
        shown = self.consoles.get(name, "") if parameters.get("Latest") or state == TERMINATED else ""
        output = {"Output": b64encode(shown.encode()).decode()} if shown else {}
        return {"InstanceId": name, "Timestamp": datetime.fromtimestamp(self.now(), UTC), **output}

    def user_data(self, parameters: Fields) -> Fields:
        """DescribeInstanceAttribute, of the user data. Raises ``Refusal``."""
        name = parameters["InstanceId"]
        _check_ids([name], self.machines)
        return {"InstanceId": name, "UserData": {"Value": self.machines[name].data.get("UserData") or ""}}

    def _status(self, machine: Machine) -> Fields:
        health = self._health.get(machine.instance_id, Health())
        return {
            "InstanceId": machine.instance_id,
            "AvailabilityZone": machine.pool.zone,
            "InstanceState": _state(self.state(machine)),
            "InstanceStatus": _checks(health.instance, health.since),
            "SystemStatus": _checks(health.system, health.since),
            "Events": list(health.events),
        }

    def _entry(self, machine: Machine) -> Fields:
        state = self.state(machine)
        entry: Fields = {
            "InstanceId": machine.instance_id,
            "ImageId": machine.image_id,
            "InstanceType": machine.pool.instance_type,
            "State": _state(state),
            "Placement": _placement(machine, state),
            "LaunchTime": datetime.fromtimestamp(machine.launched_at, UTC),
            "SubnetId": machine.subnet_id,
            "VpcId": machine.vpc_id,
            "Architecture": machine.architecture,
            "PrivateIpAddress": machine.private_ip,
            "PrivateDnsName": machine.private_dns,
            "Tags": [{"Key": key, "Value": machine.tags[key]} for key in sorted(machine.tags)],
            "AmiLaunchIndex": 0,
            "ClientToken": "",
            **_inherited(machine),
        }
        if not machine.is_alive:
            code, message = machine.end_reason
            entry["StateReason"] = {"Code": code, "Message": message}
        # A machine that is gone has neither addresses nor interfaces.
        gone = {"NetworkInterfaces", "PrivateIpAddress", "SubnetId", "VpcId", "SecurityGroups", "BlockDeviceMappings"}
        return {key: value for key, value in entry.items() if state != TERMINATED or key not in gone}


def _check_ids(wanted: Sequence[str], described: dict[str, Machine]) -> None:
    for name in wanted:
        if not re.fullmatch(r"i-[0-9a-f]{8,17}", name):
            raise Refusal("InvalidInstanceID.Malformed", f'Invalid id: "{name}"')
    missing = [name for name in wanted if name not in described]
    if len(missing) == 1:
        raise Refusal("InvalidInstanceID.NotFound", f"The instance ID '{missing[0]}' does not exist")
    if missing:
        raise Refusal("InvalidInstanceID.NotFound", f"The instance IDs '{', '.join(missing)}' do not exist")


def _state(name: str) -> Fields:
    return {"Name": name, "Code": _CODES[name]}


def _checks(status: str, since: datetime | None) -> Fields:
    detail: Fields = {"Name": "reachability", "Status": "passed" if status == "ok" else "failed"}
    if since is not None and status != "ok":
        detail["ImpairedSince"] = since
    return {"Status": status, "Details": [detail]}


def _placement(machine: Machine, state: str) -> Fields:
    asked = machine.data.get("Placement") or {}
    placement: Fields = {
        "AvailabilityZone": machine.pool.zone,
        "AvailabilityZoneId": machine.zone_id,
        "Tenancy": asked.get("Tenancy") or "default",
    }
    if asked.get("GroupId"):
        placement["GroupId"] = asked["GroupId"]
    # A partition EC2 chose itself is known once the machine runs.
    partition = asked.get("PartitionNumber") or (machine.partition if state != PENDING else 0)
    return {**placement, "PartitionNumber": partition} if partition else placement


def _inherited(machine: Machine) -> Fields:
    """What a machine has from its launch template (AWS-970)."""
    data = machine.data
    interfaces = data.get("NetworkInterfaces") or [{"DeviceIndex": 0, "Groups": data.get("SecurityGroupIds") or []}]
    groups = [{"GroupId": name} for name in interfaces[0].get("Groups") or ()]
    entry: Fields = {
        "SecurityGroups": groups,
        "NetworkInterfaces": [_interface(machine, index, interface) for index, interface in enumerate(interfaces)],
        "BlockDeviceMappings": [
            _disk(machine, block_device_mapping) for block_device_mapping in data.get("BlockDeviceMappings") or ()
        ],
        "Monitoring": {"State": "enabled" if (data.get("Monitoring") or {}).get("Enabled") else "disabled"},
        "MetadataOptions": {"State": "applied", **(data.get("MetadataOptions") or {})},
    }
    profile = (data.get("IamInstanceProfile") or {}).get("Name")
    if profile:
        entry["IamInstanceProfile"] = {"Arn": f"arn:aws:iam::{ACCOUNT}:instance-profile/{profile}", "Id": "AIPA0DOUBLE"}
    if machine.lifecycle in _LIFECYCLES:
        entry["InstanceLifecycle"] = machine.lifecycle
    if machine.lifecycle == "spot":
        entry["SpotInstanceRequestId"] = f"sir-{machine.instance_id[2:10]}"
    if machine.reservation_id:
        entry["CapacityReservationId"] = machine.reservation_id
    asked = data.get("CapacityReservationSpecification")
    if asked:
        target = (asked.get("CapacityReservationTarget") or {}).get("CapacityReservationId")
        reservation: Fields = {"CapacityReservationPreference": asked.get("CapacityReservationPreference") or "open"}
        if target:
            reservation["CapacityReservationTarget"] = {"CapacityReservationId": target}
        entry["CapacityReservationSpecification"] = reservation
    return entry


def _interface(machine: Machine, index: int, asked: Fields) -> Fields:
    return {
        "NetworkInterfaceId": f"eni-{machine.instance_id[2:15]}{index:04x}",
        "InterfaceType": asked.get("InterfaceType") or "interface",
        "SubnetId": machine.subnet_id,
        "VpcId": machine.vpc_id,
        "PrivateIpAddress": machine.private_ip if index == 0 else "",
        "Groups": [{"GroupId": name} for name in asked.get("Groups") or ()],
        "Attachment": {
            "DeviceIndex": asked.get("DeviceIndex") or 0,
            "NetworkCardIndex": asked.get("NetworkCardIndex") or 0,
            "Status": "attached",
        },
    }


def _disk(machine: Machine, asked: Fields) -> Fields:
    device = asked.get("DeviceName") or "/dev/xvda"
    volume = f"vol-{machine.instance_id[2:14]}{sum(device.encode()):05x}"
    ebs = {"VolumeId": volume, "Status": "attached", "DeleteOnTermination": True}
    return {"DeviceName": device, "Ebs": ebs}


def _purchase(entry: Fields) -> Fields:
    """Every machine is a purchase of its own, as fleets make them."""
    return {"ReservationId": f"r-{entry['InstanceId'][2:]}", "OwnerId": ACCOUNT, "Instances": [entry]}
