"""What the cluster's scheduler was configured to do for pods that say nothing, as far as plans must know (OPS-330).

Only the default spread constraints. The text is YAML or JSON, as in the scheduler's own configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from karpenter.api.core import TopologySpreadConstraint
from karpenter.model import labels

_PATH = "podTopologySpread.defaultConstraints"
_MODES = ("DoNotSchedule", "ScheduleAnyway")
_POLICIES = (None, "Honor", "Ignore")


class SchedulerConfigError(ValueError):
    """The text cannot be used; the message says what is wrong in it, and where."""


@dataclass(frozen=True)
class SchedulerConfig:
    """Spread constraints of pods that have none of their own."""

    default_constraints: tuple[TopologySpreadConstraint, ...] = ()

    def __str__(self) -> str:
        return ", ".join(f"{item.topology_key} {item.when_unsatisfiable}" for item in self.default_constraints)


class _Strict(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A part of the text as written."""


class _Constraint(_Strict, frozen=True):
    max_skew: int
    topology_key: str = ""
    when_unsatisfiable: str = ""
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    label_selector: object = None
    match_label_keys: object = None


class _Spread(_Strict, frozen=True):
    default_constraints: tuple[_Constraint, ...] = ()


class _Document(_Strict, frozen=True):
    pod_topology_spread: _Spread = _Spread()


def parse(text: str) -> SchedulerConfig:
    """The configuration in a text; an empty one has no constraints. Raises ``SchedulerConfigError``."""
    if not text.strip():
        return SchedulerConfig()
    try:
        document = msgspec.convert(_content(text), _Document)
    except msgspec.ValidationError as error:
        raise SchedulerConfigError(str(error)) from error
    written = document.pod_topology_spread.default_constraints
    for index, item in enumerate(written):
        for field, wrong in _faults(item):
            raise SchedulerConfigError(f"{_PATH}[{index}].{field} {wrong}")
    kinds = [(item.topology_key, item.when_unsatisfiable) for item in written]
    for index, kind in enumerate(kinds):
        if kind in kinds[:index]:
            raise SchedulerConfigError(f"{_PATH}[{index}] repeats {kind[0]} with {kind[1]}")
    return SchedulerConfig(tuple(_typed(item) for item in written))


def _content(text: str) -> object:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SchedulerConfigError(f"not YAML: {' '.join(str(error).split())}") from error


def _faults(item: _Constraint) -> Iterator[tuple[str, str]]:
    """Field and what is wrong with it."""
    if item.max_skew <= 0:
        yield "maxSkew", f"is {item.max_skew}, but must be greater than 0"
    if not item.topology_key:
        yield "topologyKey", "is missing"
    elif not labels.is_qualified_name(item.topology_key):
        yield "topologyKey", f"is {item.topology_key!r}, which cannot be a label"
    if item.when_unsatisfiable not in _MODES:
        yield "whenUnsatisfiable", f"is {item.when_unsatisfiable!r}, but must be one of {', '.join(_MODES)}"
    if item.label_selector is not None:
        yield "labelSelector", "must not be set: it is worked out for each pod"
    if item.match_label_keys is not None:
        yield "matchLabelKeys", "must not be set: the selector is worked out for each pod"
    if item.min_domains is not None and item.min_domains <= 0:
        yield "minDomains", f"is {item.min_domains}, but must be greater than 0"
    for field, policy in (
        ("nodeAffinityPolicy", item.node_affinity_policy),
        ("nodeTaintsPolicy", item.node_taints_policy),
    ):
        if policy not in _POLICIES:
            yield field, f"is {policy!r}, but must be Honor or Ignore"


def _typed(item: _Constraint) -> TopologySpreadConstraint:
    return TopologySpreadConstraint(
        max_skew=item.max_skew,
        topology_key=item.topology_key,
        when_unsatisfiable=item.when_unsatisfiable,
        min_domains=item.min_domains,
        node_affinity_policy=item.node_affinity_policy,
        node_taints_policy=item.node_taints_policy,
    )
