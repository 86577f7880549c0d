"""What is legal in an object and probably not meant: each finding is worth a warning to its owner, and nothing else.

An API server takes such objects, and a pool that has them is used. So advice is where everything belongs that we know better than
the admission rules users are used to (API §§1-4, "Beyond").
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from karpenter.api.capacity_buffer import CapacityBuffer
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodePool, NodeSelectorRequirementWithMinValues
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.api.node_overlay import NodeOverlay
from karpenter.model import (
    budget_advice,
    disruption_rules,
    durations,
    ec2_advice,
    feature_gates,
    labels,
    structural_schema,
)
from karpenter.model.feature_gates import FeatureGate, FeatureGates
from karpenter.model.quantity_checks import check_quantities
from karpenter.model.shares import ShareError, parse_share
from karpenter.model.structural_schema import Finding
from karpenter.model.texts import shorten

_REQUIREMENTS = "spec.template.spec.requirements"
_LONGEST_SHOWN = 40
#: What is written on NodePools, by users and by us.
_KNOWN_ANNOTATIONS = frozenset({*labels.POOL_SETTINGS, labels.NODE_POOL_HASH, labels.NODE_POOL_HASH_VERSION})
#: How much two keys must be alike, of 1; they share their domain.
_MIN_SIMILARITY = 0.85
_RESERVATION = f"{labels.AWS_GROUP}/capacity-reservation-"


#: Objects advice can be given about.
AdvisedObject = NodePool | NodeClaim | KWOKNodeClass | EC2NodeClass | NodeOverlay | CapacityBuffer


def advise_object(
    obj: AdvisedObject, enabled_gates: FeatureGates = feature_gates.DEFAULT_FEATURE_GATES
) -> tuple[Finding, ...]:
    """What the owner of an admitted object should know; ``enabled_gates`` are the feature gates that are on."""
    match obj:
        case NodePool():
            return tuple(_pool(obj, enabled_gates))
        case NodeClaim():
            return tuple(_claim(obj))
        case NodeOverlay():
            return tuple(check_quantities(obj))
        case CapacityBuffer():
            return tuple(_buffer(obj))
        case EC2NodeClass():
            return tuple(ec2_advice.advise_ec2_node_class(obj))
        case KWOKNodeClass():
            return tuple(_duration_out_of_range("spec.nodeRegistrationDelay", obj.spec.node_registration_delay))


def _pool(pool: NodePool, enabled: FeatureGates) -> Iterator[Finding]:
    yield from _ignored_values(pool)
    yield from _gated_fields(pool, enabled)
    yield from _negative_limits(pool)
    yield from _spread_replicas_annotation(pool)
    yield from _share_annotations(pool)
    yield from _replace_for_daemon_sets_annotation(pool)
    yield from _misspelt_annotations(pool)
    yield from disruption_rules.unparseable_settings(pool)
    yield from budget_advice.advise_budgets(pool)


def _claim(claim: NodeClaim) -> Iterator[Finding]:
    yield from _duration_out_of_range("spec.expireAfter", claim.spec.expire_after)
    yield from _duration_out_of_range("spec.terminationGracePeriod", claim.spec.termination_grace_period)
    yield from check_quantities(claim)


def _buffer(buffer: CapacityBuffer) -> Iterator[Finding]:
    yield from check_quantities(buffer)
    if buffer.spec.percentage is not None and buffer.spec.scalable_ref is None:
        yield Finding(
            "spec.percentage", "percentage", "has no effect: only a workload (scalableRef) has replicas to share"
        )


def _ignored_values(pool: NodePool) -> Iterator[Finding]:
    """Values that do not exist beside some that do (API-078); without any, the pool is not used."""
    for index, requirement in enumerate(pool.spec.template.spec.requirements):
        valid = labels.CLOSED_LABEL_VALUES.get(labels.normalise(requirement.key), frozenset())
        wrong = sorted(set(requirement.values) - valid)
        if wrong and requirement.operator == "In" and valid.intersection(requirement.values):
            text = f"ignores the values {', '.join(wrong)}; use {', '.join(sorted(valid))}"
            yield Finding(f"{_REQUIREMENTS}[{index}].values", "values", text)


def _gated_fields(pool: NodePool, enabled: FeatureGates) -> Iterator[Finding]:
    """Fields without effect because their function is off (API-032)."""
    if pool.spec.replicas is not None and FeatureGate.STATIC_CAPACITY not in enabled:
        yield _gate_off("spec.replicas", "replicas keep no nodes", FeatureGate.STATIC_CAPACITY)
    if FeatureGate.RESERVED_CAPACITY in enabled:
        return
    for index, requirement in enumerate(pool.spec.template.spec.requirements):
        if _asks_for_reservations(requirement):
            path = f"{_REQUIREMENTS}[{index}]"
            yield _gate_off(
                path, f"reserved capacity, which {requirement.key} asks for, is not used", FeatureGate.RESERVED_CAPACITY
            )


def _asks_for_reservations(requirement: NodeSelectorRequirementWithMinValues) -> bool:
    by_type = (
        requirement.key == labels.CAPACITY_TYPE
        and requirement.operator == "In"
        and labels.RESERVED in requirement.values
    )
    return by_type or (
        requirement.key.startswith(_RESERVATION) and requirement.operator not in ("NotIn", "DoesNotExist")
    )


def _gate_off(path: str, what: str, gate: FeatureGate) -> Finding:
    return Finding(path, "gate", f"{what}, because the feature gate {gate} is off")


def _negative_limits(pool: NodePool) -> Iterator[Finding]:
    """A limit below zero is admitted, and means that the pool never launches anything (API-027)."""
    for name, value in pool.spec.limits.items():
        if str(value).startswith("-"):
            text = f"{value} is below zero, so the pool never launches anything"
            yield Finding(structural_schema.child_path("spec.limits", name), "range", text)


def _spread_replicas_annotation(pool: NodePool) -> Iterator[Finding]:
    """The annotation that spreads replicas of static pools, where its value is not understood."""
    asked = pool.metadata.annotations.get(labels.SPREAD_REPLICAS)
    path = structural_schema.child_path("metadata.annotations", labels.SPREAD_REPLICAS)
    if asked is not None and asked != labels.ZONE:
        yield Finding(path, "value", f"replicas cannot be spread over {asked!r}, only over {labels.ZONE}")
    elif asked is not None and pool.spec.replicas is None:
        yield Finding(path, "static", "has no effect: only the nodes of a static NodePool (replicas) are spread")


def _share_annotations(pool: NodePool) -> Iterator[Finding]:
    """Our own annotations that name a share, where it does not parse."""
    for annotation in (labels.EXPOSURE, labels.MAX_NODE_SHARE):
        asked = pool.metadata.annotations.get(annotation)
        try:
            parse_share(asked if asked is not None else "off")
        except ShareError as error:
            path = structural_schema.child_path("metadata.annotations", annotation)
            yield Finding(path, "value", f"{error}; the default holds")


def _replace_for_daemon_sets_annotation(pool: NodePool) -> Iterator[Finding]:
    asked = pool.metadata.annotations.get(labels.REPLACE_FOR_DAEMON_SETS)
    if asked not in (None, "true", "false"):
        path = structural_schema.child_path("metadata.annotations", labels.REPLACE_FOR_DAEMON_SETS)
        yield Finding(path, "value", "has no effect: it is 'true' or 'false'")


def _misspelt_annotations(pool: NodePool) -> Iterator[Finding]:
    """Unknown annotations that resemble one of ours: a misspelt freeze would have no effect."""
    for key in pool.metadata.annotations:
        if key.startswith(f"{labels.GROUP}/") and key not in _KNOWN_ANNOTATIONS:
            near = difflib.get_close_matches(key, labels.POOL_SETTINGS, n=1, cutoff=_MIN_SIMILARITY)
            if near:
                path = structural_schema.child_path("metadata.annotations", key)
                yield Finding(path, "unknown", f"has no effect: nobody reads {key!r}; did you mean {near[0]!r}?")


def _duration_out_of_range(path: str, text: str | None) -> Iterator[Finding]:
    if text is not None and not durations.is_valid_duration(text):
        yield duration_too_long(path, text)


def duration_too_long(path: str, text: str) -> Finding:
    """The finding that a duration is out of range (API-028)."""
    shown = shorten(text, _LONGEST_SHOWN)
    return Finding(
        path, "duration", f"{shown} is more than 292 years, the longest duration there is; write a shorter one"
    )
