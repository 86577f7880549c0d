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
        raise SchedulerConfigError(str(error)) from error
    written = document.pod_topology_spread.default_constraints
    for index, constraint in enumerate(written):
        for field, wrong in _field_errors(constraint):
            raise SchedulerConfigError(f"{_PATH}[{index}].{field} {wrong}")
    kinds = [(constraint.topology_key, constraint.when_unsatisfiable) for constraint in written]
    for index, kind in enumerate(kinds):
        if kind in kinds[:index]:
            raise SchedulerConfigError(f"{_PATH}[{index}] repeats {kind[0]} with {kind[1]}")
    return SchedulerConfig(tuple(_spread_constraint(constraint) for constraint in written))


def _load_yaml(text: str) -> object:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SchedulerConfigError(f"not YAML: {' '.join(str(error).split())}") from error


def _field_errors(constraint: _Constraint) -> Iterator[tuple[str, str]]:
    """Field and what is wrong with it."""
    if constraint.max_skew <= 0:
        yield "maxSkew", f"is {constraint.max_skew}, but must be greater than 0"
    if not constraint.topology_key:
        yield "topologyKey", "is missing"
    elif not labels.is_qualified_name(constraint.topology_key):
        yield "topologyKey", f"is {constraint.topology_key!r}, which cannot be a label"
    if constraint.when_unsatisfiable not in _WHEN_UNSATISFIABLE:
        yield (
            "whenUnsatisfiable",
            f"is {constraint.when_unsatisfiable!r}, but must be one of {', '.join(_WHEN_UNSATISFIABLE)}",
        )
    if constraint.label_selector is not None:
        yield "labelSelector", "must not be set: it is worked out for each pod"
    if constraint.match_label_keys is not None:
        yield "matchLabelKeys", "must not be set: the selector is worked out for each pod"
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
