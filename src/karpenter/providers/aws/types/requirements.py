"""What a type says about every well-known label, for one class (AWS-320)."""

from __future__ import annotations

from collections.abc import Iterable

from karpenter.catalog.ec2 import ZONE_ID
from karpenter.catalog.well_known import MACHINE_LABELS, among, complete
from karpenter.model import labels
from karpenter.model.requirements import Requirement, Requirements
from karpenter.providers.aws.types.hardware import Hardware
from karpenter.providers.aws.types.terms import ClassTerms
from karpenter.providers.aws.userdata.families import WINDOWS_BUILDS

RESERVATION_TYPE = f"{labels.AWS_GROUP}/capacity-reservation-type"
RESERVATION_INTERRUPTIBLE = f"{labels.AWS_GROUP}/capacity-reservation-interruptible"
GROUP_ID = f"{labels.AWS_GROUP}/placement-group-id"
GROUP_PARTITION = f"{labels.AWS_GROUP}/placement-group-partition"
TENANCY = f"{labels.AWS_GROUP}/instance-tenancy"

_WITHOUT_ZONE_IDS = MACHINE_LABELS - {ZONE_ID}


def requirements(hardware: Hardware, terms: ClassTerms, region: str) -> Requirements:
    """All well-known labels of a type; DoesNotExist for those it lacks."""
    known = dict(hardware.labels)
    known[labels.REGION] = among(labels.REGION, region)
    known[labels.OS] = _system(hardware, terms)
    known[TENANCY] = among(TENANCY, "default", "dedicated")
    if terms.family.is_windows:
        known[labels.WINDOWS_BUILD] = among(labels.WINDOWS_BUILD, WINDOWS_BUILDS[terms.family.name])
    for key, values in (_zones(hardware, terms) | _reservations(hardware, terms) | _group(terms)).items():
        if values:
            known[key] = among(key, *values)
    # Where no zone's id is known the label is not denied: it is left open.
    return complete(known, MACHINE_LABELS if ZONE_ID in known else _WITHOUT_ZONE_IDS)


def open_zones(hardware: Hardware, terms: ClassTerms) -> tuple[str, ...]:
    """Where the type is sold and the class has a subnet; sorted."""
    return tuple(sorted(hardware.zones & terms.zone_ids.keys()))


def truth(value: bool) -> str:
    """A truth value as a label."""
    return "true" if value else "false"


def _system(hardware: Hardware, terms: ClassTerms) -> Requirement:
    """Windows runs on amd64 only: other types are then for nobody (AWS-T301)."""
    if not terms.family.is_windows:
        return among(labels.OS, "linux")
    return among(labels.OS, "windows") if hardware.shape.arch == "amd64" else among(labels.OS)


def _zones(hardware: Hardware, terms: ClassTerms) -> dict[str, tuple[str, ...]]:
    zones = open_zones(hardware, terms)
    return {labels.ZONE: zones, ZONE_ID: tuple(terms.zone_ids[zone] for zone in zones if terms.zone_ids[zone])}


def _reservations(hardware: Hardware, terms: ClassTerms) -> dict[str, tuple[str, ...]]:
    own = terms.reservations_by_type.get(hardware.name, ())
    return {
        labels.CAPACITY_TYPE: (*hardware.capacity_types, *((labels.RESERVED,) if own else ())),
        labels.RESERVATION_ID: _distinct(item.id for item in own),
        RESERVATION_TYPE: _distinct(item.reservation_type for item in own),
        RESERVATION_INTERRUPTIBLE: _distinct(truth(item.interruptible) for item in own),
    }


def _group(terms: ClassTerms) -> dict[str, tuple[str, ...]]:
    return {GROUP_ID: (terms.group_id,) if terms.group_id else (), GROUP_PARTITION: terms.partitions}


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(values)))
