"""A test double of CloudFormation: which resources of a template are created, and which names are in use.

It resolves parameters, conditions and ``Fn::If``, knows which properties name a resource in an account, and refuses what AWS
refuses: a name that a resource outside the stack has, and an access entry on a cluster of authentication mode CONFIG_MAP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Template = Mapping[str, Any]
#: The properties that name a resource. Types not listed get a generated, unique name.
NAMING_PROPERTIES = {
    "AWS::IAM::Role": ("RoleName",),
    "AWS::IAM::ManagedPolicy": ("ManagedPolicyName",),
    "AWS::SQS::Queue": ("QueueName",),
    "AWS::EKS::AccessEntry": ("ClusterName", "PrincipalArn"),
    "AWS::EKS::PodIdentityAssociation": ("ClusterName", "Namespace", "ServiceAccount"),
}
Identity = tuple[str, ...]


class DeploymentFailed(Exception):
    """The stack rolls back; the message has the resource and the reason."""


@dataclass(frozen=True)
class Changes:
    """Logical IDs that a deployment created, updated and deleted."""

    created: tuple[str, ...]
    updated: tuple[str, ...]
    deleted: tuple[str, ...]


@dataclass
class StackAccount:
    """An account with one cluster of an authentication mode, and the stacks in it."""

    authentication_mode: str = "API_AND_CONFIG_MAP"
    #: Resources outside the stacks, for example of eksctl: type and naming properties.
    foreign: set[Identity] = field(default_factory=set)
    _stacks: dict[str, dict[str, Identity]] = field(default_factory=dict)

    def deploy(self, stack: str, template: Template, **parameters: str) -> Changes:
        """Create or update a stack. Raises ``DeploymentFailed``, without any change."""
        wanted = {
            logical: _identity(stack, logical, resource) for logical, resource in active(template, parameters).items()
        }
        present = self._stacks.get(stack, {})
        for logical, identity in wanted.items():
            if present.get(logical) != identity:
                self._check_free(logical, identity)
        self._stacks[stack] = wanted
        return Changes(
            tuple(sorted(wanted.keys() - present.keys())),
            tuple(sorted(wanted.keys() & present.keys())),
            tuple(sorted(present.keys() - wanted.keys())),
        )

    def _check_free(self, logical: str, identity: Identity) -> None:
        if identity[0] == "AWS::EKS::AccessEntry" and self.authentication_mode == "CONFIG_MAP":
            raise DeploymentFailed(f"{logical}: the cluster's authentication mode must be API or API_AND_CONFIG_MAP")
        if identity in self.foreign.union(*(resources.values() for resources in self._stacks.values())):
            raise DeploymentFailed(f"{logical}: {identity[0]} {'/'.join(identity[1:])} already exists")


def active(template: Template, parameters: Mapping[str, str]) -> dict[str, Mapping[str, Any]]:
    """The resources of a template whose conditions hold, with conditional values resolved."""
    unknown = parameters.keys() - template.get("Parameters", {}).keys()
    if unknown:
        raise DeploymentFailed(f"parameters {', '.join(sorted(unknown))} do not exist in the template")
    values = {
        name: parameters.get(name, entry.get("Default")) for name, entry in template.get("Parameters", {}).items()
    }
    for name, value in values.items():
        if value not in template["Parameters"][name].get("AllowedValues", [value]):
            raise DeploymentFailed(f"parameter {name} may not be {value!r}")
    holds = {name: _holds(condition, values) for name, condition in template.get("Conditions", {}).items()}
    return {
        logical: _resolved(resource, holds, values)
        for logical, resource in template["Resources"].items()
        if holds.get(resource.get("Condition"), True)
    }


def _holds(condition: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    ((function, arguments),) = condition.items()
    if function == "Fn::Equals":
        left, right = (_resolved(argument, {}, values) for argument in arguments)
        return bool(left == right)
    results = [_holds(argument, values) for argument in arguments]
    return {"Fn::Not": not results[0], "Fn::And": all(results)}[function]


def _resolved(value: Any, holds: Mapping[str, bool], values: Mapping[str, Any]) -> Any:
    match value:
        case {"Ref": str(name)} if name in values:
            return values[name]
        case {"Fn::If": [name, if_so, otherwise]}:
            return _resolved(if_so if holds[name] else otherwise, holds, values)
        case dict():
            return {key: _resolved(inner, holds, values) for key, inner in value.items()}
        case list() | tuple():
            return [_resolved(inner, holds, values) for inner in value]
    return value


def _identity(stack: str, logical: str, resource: Mapping[str, Any]) -> Identity:
    kind = resource["Type"]
    named = NAMING_PROPERTIES.get(kind)
    return (kind, *(resource["Properties"][name] for name in named)) if named else (kind, stack, logical)
