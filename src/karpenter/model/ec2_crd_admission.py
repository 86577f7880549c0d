"""The admission rules of EC2NodeClasses as functions: what ``api.ec2_rules`` says as expressions (API-220 to API-262).

Whether a field is given decides, not what is in it: the expressions ask ``has``. A list is judged as a whole, as servers do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from karpenter.api.ec2_cel_rules import ALIAS_FAMILIES, RESTRICTED_TAG_PREFIX, RESTRICTED_TAGS
from karpenter.model import structural_schema
from karpenter.model.rule_locations import RuleLocation, ValueCheck, typed_check
from karpenter.model.structural_schema import Finding

_Term = dict[str, object]
_Hashable = TypeVar("_Hashable", bound=Hashable)
_Terms = tuple[_Term, ...]

_ALIAS = re.compile(r"[a-zA-Z0-9]+@.+")
_WINDOWS_LATEST = re.compile(r"windows[0-9]+@latest(@|\Z)", re.ASCII)


# -- selectors --------------------------------------------------------------------------------------------------------------


def _non_empty_list(terms: _Terms, path: str) -> Iterator[Finding]:
    if not terms:
        yield Finding(path, "size", f"{path.rpartition('.')[2]} cannot be empty; add a term")


def _needs_any_of(*names: str) -> ValueCheck:
    def check(terms: _Terms, path: str) -> Iterator[Finding]:
        for index, term in enumerate(terms):
            if not term.keys() & set(names):
                yield Finding(f"{path}[{index}]", "empty", f"needs at least one of {', '.join(names)}")

    return typed_check(_Terms, check)


def _exclusive(name: str, others: Sequence[str]) -> str:
    return f"{name} is mutually exclusive with {', '.join(others)}; keep one of them"


def _not_exclusive_in_every_term(name: str, *others: str) -> ValueCheck:
    """Refused only where no term heeds it (AWS-052)."""

    def check(terms: _Terms, path: str) -> Iterator[Finding]:
        if terms and all(name in term and term.keys() & set(others) for term in terms):
            yield Finding(f"{path}[0]", "exclusive", _exclusive(name, others))

    return typed_check(_Terms, check)


def _mutually_exclusive(name: str, *others: str) -> ValueCheck:
    def check(terms: _Terms, path: str) -> Iterator[Finding]:
        for index, term in enumerate(terms):
            if name in term and term.keys() & set(others):
                yield Finding(f"{path}[{index}]", "exclusive", _exclusive(name, others))

    return typed_check(_Terms, check)


def _selector_tags(terms: _Terms, path: str) -> Iterator[Finding]:
    for index, term in enumerate(terms):
        tags = term.get("tags")
        if isinstance(tags, Mapping) and any(key == "" or value == "" for key, value in tags.items()):
            yield Finding(f"{path}[{index}].tags", "empty", "an empty tag key or value is not supported")


def _alias_must_be_only_term(terms: _Terms, path: str) -> Iterator[Finding]:
    if len(terms) > 1 and any("alias" in term for term in terms):
        text = "alias is mutually exclusive with other amiSelectorTerms; it must be the only term"
        yield Finding(path, "exclusive", text)


def _aliases(terms: _Terms, path: str) -> Iterator[Finding]:
    for index, term in enumerate(terms):
        alias = term.get("alias")
        if isinstance(alias, str):
            yield from _alias(alias, f"{path}[{index}].alias")


def _alias(alias: str, path: str) -> Iterator[Finding]:
    """API-225."""
    if _ALIAS.fullmatch(alias) is None:
        yield Finding(path, "pattern", f"{alias!r} does not have the form family@version")
    family = alias.partition("@")[0]
    if family not in ALIAS_FAMILIES:
        text = f"the family {family!r} is not supported; use {', '.join(ALIAS_FAMILIES)}"
        yield Finding(path, "values", text)
    if alias.startswith("windows") and _WINDOWS_LATEST.match(alias) is None:
        yield Finding(path, "values", "Windows images exist in the version latest only")


class _PlacementGroupFields(msgspec.Struct, frozen=True):
    name: object = None
    id: object = None


def _placement(choice: _PlacementGroupFields, path: str) -> Iterator[Finding]:
    if choice.name is None and choice.id is None:
        yield Finding(path, "empty", "needs at least one of name, id")
    if choice.name is not None and choice.id is not None:
        yield Finding(path, "exclusive", "name and id are mutually exclusive; keep one of them")


# -- the rest ---------------------------------------------------------------------------------------------------------------


def _role_or_instance_profile(spec: object, path: str) -> Iterator[Finding]:
    if _has(spec, "role") == _has(spec, "instanceProfile"):
        yield Finding(path, "exclusive", "exactly one of role, instanceProfile must be given")


class _ImageFields(msgspec.Struct, frozen=True, rename="camel"):
    ami_selector_terms: _Terms
    ami_family: str | None = None


def _family(spec: _ImageFields, path: str) -> Iterator[Finding]:
    """API-230, API-231."""
    aliases = [str(term["alias"]) for term in spec.ami_selector_terms if "alias" in term]
    family = spec.ami_family
    if family is None and not aliases:
        yield Finding(f"{path}.amiFamily", "required", "must specify amiFamily, as no term has an alias")
    others = [alias for alias in aliases if not alias.startswith(f"{(family or '').lower()}@")]
    if family not in (None, "Custom") and others:
        yield Finding(f"{path}.amiFamily", "values", f"amiFamily must be the alias family of {others[0]!r}, or Custom")


def _not_empty(text: str, path: str) -> Iterator[Finding]:
    if not text:
        yield Finding(path, "empty", f"{path.rpartition('.')[2]} cannot be empty")


def _tags(tags: dict[str, object], path: str) -> Iterator[Finding]:
    """API-240."""
    for key in tags:
        if key == "":
            yield Finding(path, "empty", "an empty tag key is not supported")
        if key in RESTRICTED_TAGS or key.startswith(RESTRICTED_TAG_PREFIX):
            yield Finding(
                structural_schema.child_path(path, key),
                "restricted",
                f"restricted tag {key}: we set it ourselves; take it away",
            )


def _mappings(items: _Terms, path: str) -> Iterator[Finding]:
    """API-246, API-247, API-252."""
    if sum(item.get("rootVolume") is True for item in items) > 1:
        yield Finding(path, "exclusive", "only one of blockDeviceMappings may have rootVolume")
    for index, item in enumerate(items):
        ebs = item.get("ebs")
        if isinstance(ebs, dict):
            yield from _block_device(ebs, f"{path}[{index}].ebs")


def _block_device(ebs: Mapping[str, object], path: str) -> Iterator[Finding]:
    if not ebs.keys() & {"snapshotID", "volumeSize"}:
        yield Finding(path, "empty", "snapshotID or volumeSize must be given")
    if "volumeInitializationRate" in ebs and not ebs.get("snapshotID"):
        yield Finding(f"{path}.volumeInitializationRate", "together", "volumeInitializationRate needs a snapshotID")


class _NetworkInterfaceFields(msgspec.Struct, frozen=True, rename="camel"):
    network_card_index: int
    device_index: int
    interface_type: str


def _interfaces(items: tuple[_NetworkInterfaceFields, ...], path: str) -> Iterator[Finding]:
    """API-260."""
    if items and _NetworkInterfaceFields(0, 0, "interface") not in items:
        text = "the primary network interface is missing: networkCardIndex 0, deviceIndex 0, interfaceType interface"
        yield Finding(path, "required", text)
    for card, device in _repeated((item.network_card_index, item.device_index) for item in items):
        yield Finding(path, "duplicate", f"duplicate network interface: card {card}, device {device}")
    for card in _repeated(item.network_card_index for item in items if item.interface_type == "efa-only"):
        yield Finding(
            path, "duplicate", f"only one efa-only network interface per card is supported; card {card} has more"
        )


def _repeated(items: Iterable[_Hashable]) -> Iterator[_Hashable]:
    yield from (item for item, count in Counter(items).items() if count > 1)


def _tracking(value: object, path: str) -> Iterator[Finding]:
    names = ("tcpEstablishedTimeout", "udpStreamTimeout", "udpTimeout")
    if not any(_has(value, name) for name in names):
        yield Finding(path, "empty", f"needs at least one of {', '.join(names)}")


def _has(value: object, name: str) -> bool:
    return structural_schema.get_member(value, name) is not structural_schema.ABSENT


_TERMS_TAGS = typed_check(_Terms, _selector_tags)
_NON_EMPTY_LIST = typed_check(_Terms, _non_empty_list)
#: Where the rules stand.
EC2_RULE_LOCATIONS = (
    RuleLocation(("spec",), (_role_or_instance_profile, typed_check(_ImageFields, _family))),
    RuleLocation(
        ("spec", "subnetSelectorTerms"),
        (_NON_EMPTY_LIST, _needs_any_of("tags", "id"), _not_exclusive_in_every_term("id", "tags"), _TERMS_TAGS),
    ),
    RuleLocation(
        ("spec", "securityGroupSelectorTerms"),
        (
            _NON_EMPTY_LIST,
            _needs_any_of("tags", "id", "name"),
            _not_exclusive_in_every_term("id", "tags", "name"),
            _not_exclusive_in_every_term("name", "tags", "id"),
            _TERMS_TAGS,
        ),
    ),
    RuleLocation(
        ("spec", "capacityReservationSelectorTerms"),
        (
            _needs_any_of("tags", "id", "instanceMatchCriteria"),
            _not_exclusive_in_every_term("id", "tags", "ownerID", "instanceMatchCriteria"),
            _TERMS_TAGS,
        ),
    ),
    RuleLocation(("spec", "placementGroupSelector"), (typed_check(_PlacementGroupFields, _placement),)),
    RuleLocation(
        ("spec", "amiSelectorTerms"),
        (
            _NON_EMPTY_LIST,
            _needs_any_of("tags", "id", "name", "alias", "ssmParameter"),
            _mutually_exclusive("id", "alias", "tags", "name", "owner"),
            _mutually_exclusive("alias", "id", "tags", "name", "owner"),
            typed_check(_Terms, _alias_must_be_only_term),
            typed_check(_Terms, _aliases),
            _TERMS_TAGS,
        ),
    ),
    RuleLocation(("spec", "role"), (typed_check(str, _not_empty),)),
    RuleLocation(("spec", "instanceProfile"), (typed_check(str, _not_empty),)),
    RuleLocation(("spec", "tags"), (typed_check(dict[str, object], _tags),)),
    RuleLocation(("spec", "blockDeviceMappings"), (typed_check(_Terms, _mappings),)),
    RuleLocation(("spec", "networkInterfaces"), (typed_check(tuple[_NetworkInterfaceFields, ...], _interfaces),)),
    RuleLocation(("spec", "connectionTracking"), (_tracking,)),
)
