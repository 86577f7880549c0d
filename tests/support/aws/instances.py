"""Launched instances: how EC2 describes them, their states and status checks (AWS-970, AWS-973 to AWS-976).

The state of an instance is computed from its launch and termination times; there is no background task.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from support.aws.capacity import Pool
from support.aws.moto_backend import ACCOUNT
from support.aws.queries import at, select
from support.aws.wire import Fields, Refusal

PENDING, RUNNING, STOPPED = "pending", "running", "stopped"
SHUTTING_DOWN, TERMINATED = "shutting-down", "terminated"
_CODES = {PENDING: 0, RUNNING: 16, SHUTTING_DOWN: 32, TERMINATED: 48, STOPPED: 80}
_LIFECYCLES = ("spot", "capacity-block", "interruptible-capacity-reservation")
_BY_USER = ("Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")


@dataclass
class Timing:
    """How long an instance stays in a state, in seconds. A terminated one is described for ``remembered``.

    ``visible_after`` is the delay until EC2's describe calls return a new instance.
    """

    pending: float = 0.0
    shutting_down: float = 0.0
    remembered: float = 3600.0
    visible_after: float = 0.0


@dataclass(frozen=True)
class DoubleInstance:
    """An instance. ``data`` is the launch data of template and request, merged; times are seconds since the epoch."""

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
        """The provider id of its Node (AWS-465)."""
        return f"aws:///{self.pool.zone}/{self.instance_id}"

    @property
    def is_alive(self) -> bool:
        """Not terminated or shutting down."""
        return self.ended_at is None


@dataclass(frozen=True)
class Health:
    """Status checks and scheduled events of an instance."""

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
    """All instances of the region. ``now`` is seconds since the epoch; ``released`` is called with terminated instances."""

    now: Callable[[], float]
    released: Callable[[DoubleInstance], None]
    timing: Timing = field(default_factory=Timing)
    by_id: dict[str, DoubleInstance] = field(default_factory=dict)
    consoles: dict[str, str] = field(default_factory=dict)
    _health: dict[str, Health] = field(default_factory=dict)

    def reset(self) -> None:
        """Remove all instances."""
        self.by_id.clear()
        self.consoles.clear()
        self._health.clear()
        self.timing = Timing()

    def add(self, instance: DoubleInstance) -> None:
        """Add a launched instance."""
        self.by_id[instance.instance_id] = instance

    def alive(self) -> list[DoubleInstance]:
        """Instances that are not terminated or shutting down."""
        return [instance for instance in self.by_id.values() if instance.is_alive]

    def state(self, instance: DoubleInstance) -> str:
        """The current state."""
        now = self.now()
        if instance.ended_at is None and instance.stopped:
            return STOPPED
        if instance.ended_at is None:
            return RUNNING if now >= instance.launched_at + self.timing.pending else PENDING
        return TERMINATED if now >= instance.ended_at + self.timing.shutting_down else SHUTTING_DOWN

    def set_health(self, instance_id: str, health: Health) -> None:
        """Set the status checks of an instance."""
        self._health[instance_id] = health

    def end(self, instance_id: str, reason: tuple[str, str] = _BY_USER) -> None:
        """Terminate an instance; no effect on one that is already shutting down."""
        instance = self.by_id[instance_id]
        if instance.is_alive:
            self.by_id[instance_id] = replace(instance, ended_at=self.now(), end_reason=reason)
            self.released(instance)

    def stop(self, instance_id: str) -> None:
        """Stop an instance: it keeps its capacity and does not run."""
        self.by_id[instance_id] = replace(self.by_id[instance_id], stopped=True)

    # -- answers --------------------------------------------------------------------------------------------------------------

    def describe(self, parameters: Fields) -> Fields:
        """DescribeInstances. Raises ``Refusal``."""
        wanted = parameters.get("InstanceIds") or ()
        described = {instance.instance_id: instance for instance in self.by_id.values() if self._is_visible(instance)}
        _check_ids(wanted, described)
        result = [described[name] for name in dict.fromkeys(wanted)] if wanted else list(described.values())
        entries = select(map(self._entry, result), parameters.get("Filters"), _FILTERS)
        return {"Reservations": [_reservation_entry(entry) for entry in entries]}

    def _is_visible(self, instance: DoubleInstance) -> bool:
        now = self.now()
        gone_at = (
            None
            if instance.ended_at is None
            else instance.ended_at + self.timing.shutting_down + self.timing.remembered
        )
        return instance.launched_at + self.timing.visible_after <= now and (gone_at is None or now < gone_at)

    def terminate(self, parameters: Fields) -> Fields:
        """TerminateInstances: all or none. Raises ``Refusal``."""
        wanted = list(dict.fromkeys(parameters.get("InstanceIds") or ()))
        _check_ids(wanted, self.by_id)
        before = {name: self.state(self.by_id[name]) for name in wanted}
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
        """RebootInstances: the instances stay unchanged and running (K15-A124). Raises ``Refusal``."""
        _check_ids(list(parameters.get("InstanceIds") or ()), self.by_id)
        return {}

    def check_tags(self, ids: Sequence[str]) -> None:
        """Checks ids of instances to tag. Raises ``Refusal``."""
        _check_ids([name for name in ids if name.startswith("i-")], self.by_id)

    def tag(self, ids: Sequence[str], tags: dict[str, str]) -> None:
        """Tag instances."""
        for name in ids:
            instance = self.by_id[name]
            self.by_id[name] = replace(instance, tags={**instance.tags, **tags})

    def describe_status(self, parameters: Fields) -> Fields:
        """DescribeInstanceStatus: of running instances unless ``IncludeAllInstances``. Raises ``Refusal``."""
        wanted = parameters.get("InstanceIds") or ()
        _check_ids(wanted, self.by_id)
        result = [instance for name, instance in self.by_id.items() if not wanted or name in wanted]
        if not parameters.get("IncludeAllInstances"):
            result = [instance for instance in result if self.state(instance) == RUNNING]
        entries = [self._status(instance) for instance in result]
        return {"InstanceStatuses": select(entries, parameters.get("Filters"), _STATUS_FILTERS)}

    def console(self, parameters: Fields) -> Fields:
        """GetConsoleOutput: latest output of a running instance, kept output of a terminated one. Raises ``Refusal``."""
        name = parameters["InstanceId"]
        _check_ids([name], self.by_id)
        state = self.state(self.by_id[name])
        if parameters.get("Latest") and state != RUNNING:
            raise Refusal("UnsupportedOperation", "The latest console output is there while the instance runs.")
        shown = self.consoles.get(name, "") if parameters.get("Latest") or state == TERMINATED else ""
        output = {"Output": b64encode(shown.encode()).decode()} if shown else {}
        return {"InstanceId": name, "Timestamp": datetime.fromtimestamp(self.now(), UTC), **output}

    def user_data(self, parameters: Fields) -> Fields:
        """DescribeInstanceAttribute, of the user data. Raises ``Refusal``."""
        name = parameters["InstanceId"]
        _check_ids([name], self.by_id)
        return {"InstanceId": name, "UserData": {"Value": self.by_id[name].data.get("UserData") or ""}}

    def _status(self, instance: DoubleInstance) -> Fields:
        health = self._health.get(instance.instance_id, Health())
        return {
            "InstanceId": instance.instance_id,
            "AvailabilityZone": instance.pool.zone,
            "InstanceState": _state(self.state(instance)),
            "InstanceStatus": _checks(health.instance, health.since),
            "SystemStatus": _checks(health.system, health.since),
            "Events": list(health.events),
        }

    def _entry(self, instance: DoubleInstance) -> Fields:
        state = self.state(instance)
        entry: Fields = {
            "InstanceId": instance.instance_id,
            "ImageId": instance.image_id,
            "InstanceType": instance.pool.instance_type,
            "State": _state(state),
            "Placement": _placement(instance, state),
            "LaunchTime": datetime.fromtimestamp(instance.launched_at, UTC),
            "SubnetId": instance.subnet_id,
            "VpcId": instance.vpc_id,
            "Architecture": instance.architecture,
            "PrivateIpAddress": instance.private_ip,
            "PrivateDnsName": instance.private_dns,
            "Tags": [{"Key": key, "Value": instance.tags[key]} for key in sorted(instance.tags)],
            "AmiLaunchIndex": 0,
            "ClientToken": "",
            **_inherited(instance),
        }
        if not instance.is_alive:
            code, message = instance.end_reason
            entry["StateReason"] = {"Code": code, "Message": message}
        # A terminated instance has neither addresses nor interfaces.
        gone = {"NetworkInterfaces", "PrivateIpAddress", "SubnetId", "VpcId", "SecurityGroups", "BlockDeviceMappings"}
        return {key: value for key, value in entry.items() if state != TERMINATED or key not in gone}


def _check_ids(wanted: Sequence[str], described: dict[str, DoubleInstance]) -> None:
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


def _placement(instance: DoubleInstance, state: str) -> Fields:
    asked = instance.data.get("Placement") or {}
    placement: Fields = {
        "AvailabilityZone": instance.pool.zone,
        "AvailabilityZoneId": instance.zone_id,
        "Tenancy": asked.get("Tenancy") or "default",
    }
    if asked.get("GroupId"):
        placement["GroupId"] = asked["GroupId"]
    # A partition that EC2 chose is described once the instance runs.
    partition = asked.get("PartitionNumber") or (instance.partition if state != PENDING else 0)
    return {**placement, "PartitionNumber": partition} if partition else placement


def _inherited(instance: DoubleInstance) -> Fields:
    """What an instance has from its launch template (AWS-970)."""
    data = instance.data
    interfaces = data.get("NetworkInterfaces") or [{"DeviceIndex": 0, "Groups": data.get("SecurityGroupIds") or []}]
    groups = [{"GroupId": name} for name in interfaces[0].get("Groups") or ()]
    entry: Fields = {
        "SecurityGroups": groups,
        "NetworkInterfaces": [_interface(instance, index, interface) for index, interface in enumerate(interfaces)],
        "BlockDeviceMappings": [
            _disk(instance, block_device_mapping) for block_device_mapping in data.get("BlockDeviceMappings") or ()
        ],
        "Monitoring": {"State": "enabled" if (data.get("Monitoring") or {}).get("Enabled") else "disabled"},
        "MetadataOptions": {"State": "applied", **(data.get("MetadataOptions") or {})},
    }
    profile = (data.get("IamInstanceProfile") or {}).get("Name")
    if profile:
        entry["IamInstanceProfile"] = {"Arn": f"arn:aws:iam::{ACCOUNT}:instance-profile/{profile}", "Id": "AIPA0DOUBLE"}
    if instance.lifecycle in _LIFECYCLES:
        entry["InstanceLifecycle"] = instance.lifecycle
    if instance.lifecycle == "spot":
        entry["SpotInstanceRequestId"] = f"sir-{instance.instance_id[2:10]}"
    if instance.reservation_id:
        entry["CapacityReservationId"] = instance.reservation_id
    asked = data.get("CapacityReservationSpecification")
    if asked:
        target = (asked.get("CapacityReservationTarget") or {}).get("CapacityReservationId")
        reservation: Fields = {"CapacityReservationPreference": asked.get("CapacityReservationPreference") or "open"}
        if target:
            reservation["CapacityReservationTarget"] = {"CapacityReservationId": target}
        entry["CapacityReservationSpecification"] = reservation
    return entry


def _interface(instance: DoubleInstance, index: int, asked: Fields) -> Fields:
    return {
        "NetworkInterfaceId": f"eni-{instance.instance_id[2:15]}{index:04x}",
        "InterfaceType": asked.get("InterfaceType") or "interface",
        "SubnetId": instance.subnet_id,
        "VpcId": instance.vpc_id,
        "PrivateIpAddress": instance.private_ip if index == 0 else "",
        "Groups": [{"GroupId": name} for name in asked.get("Groups") or ()],
        "Attachment": {
            "DeviceIndex": asked.get("DeviceIndex") or 0,
            "NetworkCardIndex": asked.get("NetworkCardIndex") or 0,
            "Status": "attached",
        },
    }


def _disk(instance: DoubleInstance, asked: Fields) -> Fields:
    device = asked.get("DeviceName") or "/dev/xvda"
    volume = f"vol-{instance.instance_id[2:14]}{sum(device.encode()):05x}"
    ebs = {"VolumeId": volume, "Status": "attached", "DeleteOnTermination": True}
    return {"DeviceName": device, "Ebs": ebs}


def _reservation_entry(entry: Fields) -> Fields:
    """Each instance has its own EC2 reservation, as fleets create them."""
    return {"ReservationId": f"r-{entry['InstanceId'][2:]}", "OwnerId": ACCOUNT, "Instances": [entry]}
