"""Admission rules of EC2NodeClasses, as rule expressions of the API server (API-220 to API-262, AWS-031 to AWS-052).

Some are weaker than they could be: a list of subnets, security groups or reservations is refused for an ``id`` beside other
fields only when every term has one. Admission never demanded more, and what is stored must stay writable. ``model.ec2_advice``
reports the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from karpenter.api import ec2_node_class
from karpenter.api.meta import Wire
from karpenter.api.validation_rule import ValidationRule, for_each

#: Families an alias may name, and of those the ones that exist in one version only (API-225).
ALIAS_FAMILIES = ("al2", "al2023", "bottlerocket", "windows2019", "windows2022", "windows2025")
#: Tags only Karpenter may set (API-240): keys, and what keys may not begin with.
RESTRICTED_TAGS = (
    "eks:eks-cluster-name",
    "karpenter.sh/nodepool",
    "karpenter.sh/nodeclaim",
    "karpenter.k8s.aws/ec2nodeclass",
)
RESTRICTED_TAG_PREFIX = "kubernetes.io/cluster"
_REMOVE_TAG = "remove it, Karpenter sets it itself"


def _non_empty_list(name: str) -> ValidationRule:
    return ValidationRule("self.size() > 0", f"{name} cannot be empty", "size", hint="add a term")


def _needs_any_of(*names: str) -> ValidationRule:
    return for_each(_has_any(names), f"each term needs at least one of {', '.join(names)}", "empty")


def _has_any(names: Iterable[str]) -> str:
    return " || ".join(f"has(x.{name})" for name in names)


def _not_exclusive_in_every_term(name: str, *others: str) -> ValidationRule:
    """Not every term may have the field beside others; a list without terms has none that does."""
    return ValidationRule(
        f"self.size() == 0 || !self.all(x, has(x.{name}) && ({_has_any(others)}))",
        f"{name} is mutually exclusive with {', '.join(others)}",
        "exclusive",
        hint="keep one of them",
    )


def _mutually_exclusive(name: str, *others: str) -> ValidationRule:
    clash = f"has(x.{name}) && ({_has_any(others)})"
    return ValidationRule(
        f"!self.exists(x, {clash})",
        f"{name} is mutually exclusive with {', '.join(others)}",
        "exclusive",
        hint="keep one of them",
        item=f"!({clash})",
    )


_SELECTOR_TAGS = (
    ValidationRule("self.all(k, k != '' && self[k] != '')", "an empty tag key or value is not supported", "empty"),
)
_SUBNETS = (
    _non_empty_list("subnetSelectorTerms"),
    _needs_any_of("tags", "id"),
    _not_exclusive_in_every_term("id", "tags"),
)
_SECURITY_GROUPS = (
    _non_empty_list("securityGroupSelectorTerms"),
    _needs_any_of("tags", "id", "name"),
    _not_exclusive_in_every_term("id", "tags", "name"),
    _not_exclusive_in_every_term("name", "tags", "id"),
)
_RESERVATIONS = (
    _needs_any_of("tags", "id", "instanceMatchCriteria"),
    _not_exclusive_in_every_term("id", "tags", "ownerID", "instanceMatchCriteria"),
)
_PLACEMENT = (
    ValidationRule("has(self.name) || has(self.id)", "at least one of name and id is needed", "empty"),
    ValidationRule("!has(self.name) || !has(self.id)", "name and id are mutually exclusive", "exclusive"),
)
_AMIS = (
    _non_empty_list("amiSelectorTerms"),
    _needs_any_of("tags", "id", "name", "alias", "ssmParameter"),
    _mutually_exclusive("id", "alias", "tags", "name", "owner"),
    _mutually_exclusive("alias", "id", "tags", "name", "owner"),
    ValidationRule(
        "self.size() == 1 || !self.exists(x, has(x.alias))",
        "alias is mutually exclusive with other amiSelectorTerms: it must be the only term",
        "exclusive",
    ),
)
_ALIAS = (
    ValidationRule("self.matches('^[a-zA-Z0-9]+@.+$')", "alias must have the form family@version", "pattern"),
    ValidationRule(
        f"self.matches('^({'|'.join(ALIAS_FAMILIES)})(@|$)')",
        f"the family of the alias is not supported; supported are {', '.join(ALIAS_FAMILIES)}",
        "values",
    ),
    ValidationRule(
        "!self.startsWith('windows') || self.matches('^windows[0-9]+@latest(@|$)')",
        "Windows images exist in the version latest only",
        "values",
    ),
)
_SPEC = (
    ValidationRule(
        "has(self.role) != has(self.instanceProfile)", "exactly one of role, instanceProfile must be given", "exclusive"
    ),
    ValidationRule(
        "has(self.amiSelectorTerms) || (has(self.amiFamily) && self.amiFamily == 'Ubuntu')",
        "amiSelectorTerms must be given, but for amiFamily Ubuntu",
        "required",
        field="amiSelectorTerms",
    ),
    ValidationRule(
        "has(self.amiFamily) || !has(self.amiSelectorTerms) || self.amiSelectorTerms.exists(x, has(x.alias))",
        "must specify amiFamily where no term has an alias",
        "required",
        field="amiFamily",
    ),
    ValidationRule(
        "!has(self.amiFamily) || self.amiFamily == 'Custom' || !has(self.amiSelectorTerms) "
        "|| self.amiSelectorTerms.all(x, !has(x.alias) || x.alias.startsWith(self.amiFamily.lowerAscii() + '@'))",
        "amiFamily must be the alias family, or Custom",
        "values",
        field="amiFamily",
    ),
)
_TAGS = (
    ValidationRule("self.all(k, k != '')", "an empty tag key is not supported", "empty"),
    *(
        ValidationRule(
            f"!('{key}' in self)", f"tag contains a restricted tag: {key}", "restricted", field=key, hint=_REMOVE_TAG
        )
        for key in RESTRICTED_TAGS
    ),
    ValidationRule(
        f"self.all(k, !k.startsWith('{RESTRICTED_TAG_PREFIX}'))",
        f"tag contains a restricted tag: {RESTRICTED_TAG_PREFIX}",
        "restricted",
        hint=_REMOVE_TAG,
        item=f"!x.startsWith('{RESTRICTED_TAG_PREFIX}')",
    ),
)
_MAPPINGS = (
    ValidationRule(
        "self.filter(x, has(x.rootVolume) && x.rootVolume).size() <= 1",
        "only one of blockDeviceMappings may have rootVolume",
        "exclusive",
    ),
)
_VOLUME = (
    ValidationRule("has(self.snapshotID) || has(self.volumeSize)", "snapshotID or volumeSize must be given", "empty"),
    ValidationRule(
        "!has(self.volumeInitializationRate) || (has(self.snapshotID) && self.snapshotID != '')",
        "volumeInitializationRate needs a snapshotID",
        "together",
        field="volumeInitializationRate",
    ),
)
_INTERFACES = (
    ValidationRule(
        "self.size() == 0 "
        "|| self.exists(x, x.networkCardIndex == 0 && x.deviceIndex == 0 && x.interfaceType == 'interface')",
        "the primary network interface is missing: networkCardIndex 0, deviceIndex 0, interfaceType interface",
        "required",
    ),
    ValidationRule(
        "self.all(x, self.exists_one(y, x.networkCardIndex == y.networkCardIndex && x.deviceIndex == y.deviceIndex))",
        "duplicate network interface: networkCardIndex and deviceIndex are the same",
        "duplicate",
    ),
    ValidationRule(
        "self.all(x, self.filter(y, y.interfaceType == 'efa-only' && x.networkCardIndex == y.networkCardIndex).size() <= 1)",
        "only one efa-only network interface per network card is supported",
        "duplicate",
    ),
)
_TRACKING = (
    ValidationRule(
        "has(self.tcpEstablishedTimeout) || has(self.udpStreamTimeout) || has(self.udpTimeout)",
        "at least one of tcpEstablishedTimeout, udpStreamTimeout and udpTimeout is needed",
        "empty",
    ),
)


def _not_blank(name: str) -> tuple[ValidationRule, ...]:
    return (ValidationRule("self != ''", f"{name} cannot be empty", "empty"),)


#: Rules by struct and wire name of the field they are written on.
EC2_CEL_RULES: Mapping[tuple[type[Wire], str], tuple[ValidationRule, ...]] = {
    (ec2_node_class.EC2NodeClass, "spec"): _SPEC,
    (ec2_node_class.EC2NodeClassSpec, "subnetSelectorTerms"): _SUBNETS,
    (ec2_node_class.EC2NodeClassSpec, "securityGroupSelectorTerms"): _SECURITY_GROUPS,
    (ec2_node_class.EC2NodeClassSpec, "capacityReservationSelectorTerms"): _RESERVATIONS,
    (ec2_node_class.EC2NodeClassSpec, "placementGroupSelector"): _PLACEMENT,
    (ec2_node_class.EC2NodeClassSpec, "amiSelectorTerms"): _AMIS,
    (ec2_node_class.EC2NodeClassSpec, "role"): _not_blank("role"),
    (ec2_node_class.EC2NodeClassSpec, "instanceProfile"): _not_blank("instanceProfile"),
    (ec2_node_class.EC2NodeClassSpec, "tags"): _TAGS,
    (ec2_node_class.EC2NodeClassSpec, "blockDeviceMappings"): _MAPPINGS,
    (ec2_node_class.EC2NodeClassSpec, "networkInterfaces"): _INTERFACES,
    (ec2_node_class.EC2NodeClassSpec, "connectionTracking"): _TRACKING,
    (ec2_node_class.SubnetSelectorTerm, "tags"): _SELECTOR_TAGS,
    (ec2_node_class.SecurityGroupSelectorTerm, "tags"): _SELECTOR_TAGS,
    (ec2_node_class.CapacityReservationSelectorTerm, "tags"): _SELECTOR_TAGS,
    (ec2_node_class.AMISelectorTerm, "tags"): _SELECTOR_TAGS,
    (ec2_node_class.AMISelectorTerm, "alias"): _ALIAS,
    (ec2_node_class.BlockDeviceMapping, "ebs"): _VOLUME,
}
