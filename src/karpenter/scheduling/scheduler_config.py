"""The part of kube-scheduler's configuration that plans depend on: default topology spread constraints (OPS-330).

The text is YAML or JSON, as in ``KubeSchedulerConfiguration``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from karpenter.api.scheduling_constraints import TopologySpreadConstraint
from karpenter.model import labels
from karpenter.model.setting_kinds import SettingKind, SettingValueError

_PATH = "podTopologySpread.defaultConstraints"
_WHEN_UNSATISFIABLE = ("DoNotSchedule", "ScheduleAnyway")
_LABEL_NAME = "it must be a name of letters, digits, '-', '_' and '.', optionally after a DNS prefix and '/'"
_NODE_INCLUSION_POLICIES = (None, "Honor", "Ignore")


class SchedulerConfigError(SettingValueError):
    """The text is invalid; the message says what is wrong in it, and where."""


@dataclass(frozen=True)
class SchedulerConfig:
    """Spread constraints of pods that have none of their own."""

    default_constraints: tuple[TopologySpreadConstraint, ...] = ()

    def __str__(self) -> str:
        return ", ".join(
            f"{spread_constraint.topology_key} {spread_constraint.when_unsatisfiable}"
            for spread_constraint in self.default_constraints
        )


class _StrictStruct(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A part of the text as written."""


class _Constraint(_StrictStruct, frozen=True):
    max_skew: int
    topology_key: str = ""
    when_unsatisfiable: str = ""
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    label_selector: object = None
    match_label_keys: object = None


class _Spread(_StrictStruct, frozen=True):
    default_constraints: tuple[_Constraint, ...] = ()


class _Document(_StrictStruct, frozen=True):
    pod_topology_spread: _Spread = _Spread()


def parse_scheduler_config(text: str) -> SchedulerConfig:
    """The configuration in a text; an empty one has no constraints. Raises ``SchedulerConfigError``."""
    if not text.strip():
        return SchedulerConfig()
    try:
        document = msgspec.convert(_load_yaml(text), _Document)
    except msgspec.ValidationError as error:
        raise SchedulerConfigError(f"parsing scheduler config, decoding scheduler config, {error}") from error
    written = document.pod_topology_spread.default_constraints
    for index, constraint in enumerate(written):
        for field, wrong in _field_errors(constraint):
            raise _invalid(index, f".{field} {wrong}")
    kinds = [(constraint.topology_key, constraint.when_unsatisfiable) for constraint in written]
    for index, kind in enumerate(kinds):
        if kind in kinds[:index]:
            raise _invalid(index, f" is a duplicate of [{kinds.index(kind)}], {{{kind[0]}, {kind[1]}}}")
    return SchedulerConfig(tuple(_spread_constraint(constraint) for constraint in written))


def _invalid(index: int, wrong: str) -> SchedulerConfigError:
    """What is wrong with a constraint, in the words of K15-048."""
    return SchedulerConfigError(f"parsing scheduler config, validating scheduler config, {_PATH}[{index}]{wrong}")


def _load_yaml(text: str) -> object:
    import yaml

    from karpenter.model.bounded_yaml import load_yaml, yaml_error_line

    try:
        return load_yaml(text)
    except yaml.YAMLError as error:
        wrong = yaml_error_line(error)
        raise SchedulerConfigError(f"parsing scheduler config, decoding scheduler config, not YAML: {wrong}") from error


def _field_errors(constraint: _Constraint) -> Iterator[tuple[str, str]]:
    """Field and what is wrong with it."""
    if constraint.max_skew <= 0:
        yield "maxSkew", "must be greater than 0"
    if not constraint.topology_key:
        yield "topologyKey", "must be set"
    elif not labels.is_qualified_name(constraint.topology_key):
        yield "topologyKey", f'"{constraint.topology_key}" is not a valid label name, {_LABEL_NAME}'
    if constraint.when_unsatisfiable not in _WHEN_UNSATISFIABLE:
        allowed = " or ".join(f'"{value}"' for value in _WHEN_UNSATISFIABLE)
        yield "whenUnsatisfiable", f'"{constraint.when_unsatisfiable}" must be one of {allowed}'
    if constraint.label_selector is not None:
        yield "labelSelector", "must not be set, as selectors are deduced for each pod"
    if constraint.match_label_keys is not None:
        yield "matchLabelKeys", "must not be set, as it has no effect on default constraints"
    if constraint.min_domains is not None and constraint.min_domains <= 0:
        yield "minDomains", f"is {constraint.min_domains}, but must be greater than 0"
    for field, policy in (
        ("nodeAffinityPolicy", constraint.node_affinity_policy),
        ("nodeTaintsPolicy", constraint.node_taints_policy),
    ):
        if policy not in _NODE_INCLUSION_POLICIES:
            yield field, f"is {policy!r}, but must be Honor or Ignore"


def _spread_constraint(constraint: _Constraint) -> TopologySpreadConstraint:
    return TopologySpreadConstraint(
        max_skew=constraint.max_skew,
        topology_key=constraint.topology_key,
        when_unsatisfiable=constraint.when_unsatisfiable,
        min_domains=constraint.min_domains,
        node_affinity_policy=constraint.node_affinity_policy,
        node_taints_policy=constraint.node_taints_policy,
    )


SCHEDULER_CONFIG: SettingKind[SchedulerConfig] = SettingKind(
    parse_scheduler_config, "a scheduler configuration", "YAML"
)
