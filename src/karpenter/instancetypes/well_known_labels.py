"""Shared by all sources of instance types: complete requirements, and the labels derived from name and capacity.

A type must say something about every well-known label, if only that it lacks it (SCH-116): a pod that asks for a GPU name
is refused by a type without GPU instead of being taken for undefined. Requirements repeat a lot between types, so single
ones are shared; a thousand types with fifty labels each would otherwise be fifty thousand objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.model.requirements import Requirement, Requirements

#: Well-known labels that describe an instance type. The NodePool label is not included: it belongs to the claim.
INSTANCE_LABELS = (labels.CORE_WELL_KNOWN | labels.AWS_WELL_KNOWN | labels.KWOK_WELL_KNOWN) - {labels.NODE_POOL}

_KWOK_SIZE = f"{labels.KWOK_GROUP}/instance-size"
_KWOK_FAMILY = f"{labels.KWOK_GROUP}/instance-family"
_KWOK_CPU = f"{labels.KWOK_GROUP}/instance-cpu"
_KWOK_MEMORY = f"{labels.KWOK_GROUP}/instance-memory"
_SIZED_NAME = re.compile(r"\w+\.(nano|micro|small|medium|large|metal|[0-9]*xlarge)", re.ASCII)


@lru_cache(maxsize=65536)
def label_in(key: str, *values: str) -> Requirement:
    """The label has one of these values; equal requirements are one object."""
    return Requirement(key, False, frozenset(values))


@lru_cache(maxsize=4096)
def label_absent(key: str) -> Requirement:
    """The type lacks this label."""
    return Requirement(key, False)


def complete_requirements(
    requirements: Mapping[str, Requirement], well_known: Iterable[str] = INSTANCE_LABELS
) -> Requirements:
    """Requirements of a type: the given ones, and DoesNotExist for every other well-known label (SCH-116)."""
    absent = _absent(frozenset(well_known))
    missing = [requirement for key, requirement in absent if key not in requirements]
    return Requirements((*requirements.values(), *missing))


@lru_cache(maxsize=16)
def _absent(keys: frozenset[str]) -> tuple[tuple[str, Requirement], ...]:
    """Each key in order with the requirement that the label is absent."""
    return tuple((key, label_absent(key)) for key in sorted(keys))


def derived_labels(name: str, cpu: str, memory: str) -> dict[str, str]:
    """The ``karpenter.kwok.sh`` labels of a type, from its name and two quantities (OPS-254)."""
    sized = _SIZED_NAME.fullmatch(name)
    family, separator, _ = name.replace("-", ".").partition(".")
    return {
        _KWOK_SIZE: sized.group(1) if sized else cpu,
        _KWOK_FAMILY: family if separator else name[:1],
        _KWOK_CPU: cpu,
        _KWOK_MEMORY: memory,
    }


def well_known_labels_of(types: Iterable[InstanceType]) -> frozenset[str]:
    """Label keys of types and offerings, and the core ones, all of which count as well known (OPS-254)."""
    well_known = set(labels.CORE_WELL_KNOWN)
    # Most offerings share the object that says what is required of them.
    of_offerings: dict[int, Requirements] = {}
    for instance_type in types:
        well_known.update(instance_type.requirements.keys())
        of_offerings.update((id(sold.requirements), sold.requirements) for sold in instance_type.offerings)
    for requirements in of_offerings.values():
        well_known.update(requirements.keys())
    return frozenset(well_known)
