"""Capacity reservations and placement groups of an account (AWS-977)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import uuid4

from support.aws.moto_backend import ACCOUNT
from support.aws.queries import at, named, select
from support.aws.wire import Fields, Refusal

_RESERVATION_FILTERS = {
    "state": at("State"),
    "owner-id": at("OwnerId"),
    "instance-type": at("InstanceType"),
    "availability-zone": at("AvailabilityZone"),
    "instance-match-criteria": at("InstanceMatchCriteria"),
}
_GROUP_FILTERS = {
    "state": at("State"),
    "group-name": at("GroupName"),
    "strategy": at("Strategy"),
}


@dataclass(frozen=True)
class Reservation:
    """A capacity reservation for ``total`` instances, of which ``available`` are unused."""

    instance_type: str
    zone: str
    total: int
    available: int = -1
    kind: str = "default"
    match: str = "targeted"
    interruptible: bool = False
    owner: str = ACCOUNT
    state: str = "active"
    end: datetime | None = None
    tags: dict[str, str] = field(default_factory=dict)
    reservation_id: str = ""


@dataclass(frozen=True)
class Group:
    """A placement group: ``cluster``, ``spread`` or ``partition``."""

    name: str
    strategy: str
    partitions: int = 0
    spread_level: str = ""
    state: str = "available"
    group_id: str = ""


class ReservationsAndGroups:
    """The account's capacity reservations and placement groups."""

    def __init__(self) -> None:
        self.reservations: dict[str, Reservation] = {}
        self.groups: dict[str, Group] = {}

    def reset(self) -> None:
        """Remove all."""
        self.reservations.clear()
        self.groups.clear()

    def reserve(self, reservation: Reservation) -> str:
        """Add a reservation; return its id. All of it is available unless it says otherwise."""
        made = replace(
            reservation,
            reservation_id=reservation.reservation_id or f"cr-{uuid4().hex[:17]}",
            available=reservation.total if reservation.available < 0 else reservation.available,
        )
        self.reservations[made.reservation_id] = made
        return made.reservation_id

    def group(self, group: Group) -> str:
        """Add a placement group; return its id."""
        made = replace(group, group_id=group.group_id or f"pg-{uuid4().hex[:17]}")
        self.groups[made.group_id] = made
        return made.group_id

    def take(self, reservation_id: str) -> None:
        """Use one instance of a reservation. Raises ``Refusal``."""
        reservation = self.reservations.get(reservation_id)
        if reservation is None:
            raise Refusal(
                "InvalidCapacityReservationId.NotFound", f"The capacity reservation '{reservation_id}' does not exist"
            )
        if reservation.state != "active" or reservation.available <= 0:
            raise Refusal(
                "ReservationCapacityExceeded",
                "The requested reservation does not have sufficient compatible and available capacity",
            )
        self.reservations[reservation_id] = replace(reservation, available=reservation.available - 1)

    def give_back(self, reservation_id: str) -> None:
        """Return one instance to its reservation."""
        reservation = self.reservations.get(reservation_id)
        if reservation is not None:
            self.reservations[reservation_id] = replace(
                reservation, available=min(reservation.available + 1, reservation.total)
            )

    # -- answers --------------------------------------------------------------------------------------------------------------

    def describe_reservations(self, parameters: Fields) -> Fields:
        """DescribeCapacityReservations. Raises ``Refusal``."""
        entries = named(
            map(_reservation, self.reservations.values()),
            "CapacityReservationId",
            parameters.get("CapacityReservationIds"),
            "InvalidCapacityReservationId.NotFound",
        )
        return {"CapacityReservations": select(entries, parameters.get("Filters"), _RESERVATION_FILTERS)}

    def create_reservation(self, parameters: Fields) -> Fields:
        """CreateCapacityReservation."""
        made = self.reserve(
            Reservation(
                instance_type=parameters["InstanceType"],
                zone=parameters["AvailabilityZone"],
                total=parameters["InstanceCount"],
                match=parameters.get("InstanceMatchCriteria") or "open",
                end=parameters.get("EndDate"),
                tags=_tags(parameters),
            )
        )
        return {"CapacityReservation": _reservation(self.reservations[made])}

    def describe_groups(self, parameters: Fields) -> Fields:
        """DescribePlacementGroups. Raises ``Refusal``."""
        code = "InvalidPlacementGroup.Unknown"
        entries = named(map(_group, self.groups.values()), "GroupId", parameters.get("GroupIds"), code)
        entries = named(entries, "GroupName", parameters.get("GroupNames"), code)
        return {"PlacementGroups": select(entries, parameters.get("Filters"), _GROUP_FILTERS)}

    def create_group(self, parameters: Fields) -> Fields:
        """CreatePlacementGroup."""
        made = self.group(
            Group(
                name=parameters["GroupName"],
                strategy=parameters.get("Strategy") or "cluster",
                partitions=parameters.get("PartitionCount") or 0,
                spread_level=parameters.get("SpreadLevel") or "",
            )
        )
        return {"PlacementGroup": _group(self.groups[made])}


def _tags(parameters: Fields) -> dict[str, str]:
    return {
        tag["Key"]: tag["Value"]
        for tag_specification in parameters.get("TagSpecifications") or ()
        for tag in tag_specification["Tags"]
    }


def _reservation(reservation: Reservation) -> Fields:
    entry: Fields = {
        "CapacityReservationId": reservation.reservation_id,
        "OwnerId": reservation.owner,
        "InstanceType": reservation.instance_type,
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": reservation.zone,
        "Tenancy": "default",
        "TotalInstanceCount": reservation.total,
        "AvailableInstanceCount": reservation.available,
        "State": reservation.state,
        "InstanceMatchCriteria": reservation.match,
        "ReservationType": reservation.kind,
        "EndDateType": "limited" if reservation.end else "unlimited",
        "Interruptible": reservation.interruptible,
        "Tags": [{"Key": key, "Value": value} for key, value in reservation.tags.items()],
    }
    return {**entry, "EndDate": reservation.end} if reservation.end else entry


def _group(group: Group) -> Fields:
    entry: Fields = {
        "GroupId": group.group_id,
        "GroupName": group.name,
        "Strategy": group.strategy,
        "State": group.state,
        "Tags": [],
    }
    if group.partitions:
        entry["PartitionCount"] = group.partitions
    if group.spread_level:
        entry["SpreadLevel"] = group.spread_level
    return entry
