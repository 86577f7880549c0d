"""What is admitted in an EC2NodeClass and probably not meant (AWS-052 to AWS-054, API-022, API-031, API-222 to API-227).

Users could store all of it before, so it cannot be refused. What happens to it at run time is what the findings say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from karpenter.api.ec2_node_class import AMISelectorTerm, EC2NodeClass, EC2NodeClassSpec
from karpenter.model import labels
from karpenter.model.ec2_volume_size import VolumeSizeError, volume_size_gib
from karpenter.model.structural_schema import Finding


class _SelectorTermWithId(Protocol):
    """A selector term that may have an id."""

    @property
    def id(self) -> str | None:
        """The id; None if the term selects by other fields."""


#: What an id looks like; admission finds such a text anywhere in what is written (API-227).
_ID = re.compile(r"(subnet|sg|ami)-[0-9a-z]+", re.ASCII)


def advise_ec2_node_class(node_class: EC2NodeClass) -> Iterator[Finding]:
    """What the owner of an admitted class should know."""
    spec = node_class.spec
    yield from _name(node_class.metadata.name)
    if not spec.subnet_selector_terms:
        yield Finding("spec", "required", "is missing: nothing can be launched with this class")
    yield from _subnets(spec)
    yield from _security_groups(spec)
    yield from _reservations(spec)
    yield from _images(spec.ami_selector_terms)
    yield from _volumes(spec)


def _name(name: str) -> Iterator[Finding]:
    if len(name) > labels.MAX_VALUE_LENGTH:
        text = f"is {len(name)} characters long, but becomes a label value of at most {labels.MAX_VALUE_LENGTH}"
        yield Finding("metadata.name", "length", f"{text}; make a class with a shorter name")


def _subnets(spec: EC2NodeClassSpec) -> Iterator[Finding]:
    path = "spec.subnetSelectorTerms"
    yield from _malformed_ids(path, spec.subnet_selector_terms)
    for index, term in enumerate(spec.subnet_selector_terms):
        if term.id is not None:
            yield from _ignored_fields(f"{path}[{index}]", "id", {"tags": bool(term.tags)})


def _security_groups(spec: EC2NodeClassSpec) -> Iterator[Finding]:
    path = "spec.securityGroupSelectorTerms"
    yield from _malformed_ids(path, spec.security_group_selector_terms)
    for index, term in enumerate(spec.security_group_selector_terms):
        here = f"{path}[{index}]"
        if term.id is not None:
            yield from _ignored_fields(here, "id", {"name": term.name is not None, "tags": bool(term.tags)})
        elif term.name is not None:
            yield from _ignored_fields(here, "name", {"tags": bool(term.tags)})


def _reservations(spec: EC2NodeClassSpec) -> Iterator[Finding]:
    for index, term in enumerate(spec.capacity_reservation_selector_terms):
        if term.id is not None:
            others = {
                "tags": bool(term.tags),
                "ownerID": term.owner_id is not None,
                "instanceMatchCriteria": term.instance_match_criteria is not None,
            }
            yield from _ignored_fields(f"spec.capacityReservationSelectorTerms[{index}]", "id", others)


def _images(terms: Sequence[AMISelectorTerm]) -> Iterator[Finding]:
    """AWS-053: ``id`` wins over ``ssmParameter``, which wins over the rest."""
    path = "spec.amiSelectorTerms"
    yield from _malformed_ids(path, terms)
    for index, term in enumerate(terms):
        here = f"{path}[{index}]"
        if term.ssm_parameter is None:
            continue
        if term.id is not None:
            yield from _ignored_fields(here, "id", {"ssmParameter": True})
        else:
            others = {"name": term.name is not None, "tags": bool(term.tags), "owner": term.owner is not None}
            yield from _ignored_fields(here, "ssmParameter", others)


def _volumes(spec: EC2NodeClassSpec) -> Iterator[Finding]:
    """Volume sizes that are admitted although nothing can be launched with them (AWS-054)."""
    for index, mapping in enumerate(spec.block_device_mappings):
        size = mapping.ebs.volume_size if mapping.ebs is not None else None
        if size is not None:
            try:
                volume_size_gib(size)
            except VolumeSizeError as error:
                yield Finding(f"spec.blockDeviceMappings[{index}].ebs.volumeSize", "quantity", str(error))


def _malformed_ids(path: str, terms: Sequence[_SelectorTermWithId]) -> Iterator[Finding]:
    for index, term in enumerate(terms):
        if term.id is not None and _ID.fullmatch(term.id) is None:
            yield Finding(f"{path}[{index}].id", "pattern", f"{term.id!r} is not an id and matches nothing")


def _ignored_fields(path: str, winner: str, given: Mapping[str, bool]) -> Iterator[Finding]:
    ignored = [name for name, is_given in given.items() if is_given]
    if ignored:
        text = f"{', '.join(ignored)} beside {winner} has no effect: {winner} alone decides; take it away"
        yield Finding(path, "exclusive", text)
