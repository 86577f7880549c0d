"""Readiness and validation of NodePools: the conditions NodeClassReady and ValidationSucceeded, and events about findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

from karpenter.api.karpenter import NodeClassReference, NodePool
from karpenter.api.meta import Condition
from karpenter.model import conditions, labels, runtime_validation
from karpenter.model.structural_schema import Finding
from karpenter.runtime.events import WARNING, ObjectEvent, involved_pool

#: Why a NodePool is not used: reason of its ValidationSucceeded condition, and of the event that says so.
NODE_POOL_INVALID = "NodePoolValidationFailed"
#: Advice is repeated this often while the object stays as it is.
_ADVICE_DEDUPE_TIMEOUT = timedelta(hours=1)


def advice_events(pool: NodePool, findings: Iterable[Finding]) -> tuple[ObjectEvent, ...]:
    """Warning events for legal but probably unintended settings of a pool (API §2.2 Beyond), again after each edit."""
    generation = str(pool.metadata.generation)
    return tuple(
        ObjectEvent(
            involved_pool(pool.metadata),
            WARNING,
            "NodePoolAdvice",
            str(finding),
            (generation, finding.path, finding.code, finding.message),
            _ADVICE_DEDUPE_TIMEOUT,
        )
        for finding in findings
    )


def invalid_event(pool: NodePool, message: str) -> ObjectEvent:
    """Warning event for an invalid pool, which is not used (API-640), again after each edit."""
    values = (str(pool.metadata.generation), message)
    return ObjectEvent(
        involved_pool(pool.metadata), WARNING, NODE_POOL_INVALID, message, values, _ADVICE_DEDUPE_TIMEOUT
    )


@dataclass(frozen=True)
class NodeClassState:
    """The part of a node class that readiness and registration health need."""

    conditions: tuple[Condition, ...]
    deleting: bool
    generation: int = 0


#: Finds a node class; None when it does not exist.
FindNodeClass = Callable[[NodeClassReference], NodeClassState | None]


def node_class_ready_condition(state: NodeClassState | None) -> Condition:
    """The NodeClassReady condition of a pool whose class is in this state (API-641)."""
    if state is None:
        return _not_ready_condition("NodeClassNotFound", "NodeClass not found on cluster")
    if state.deleting:
        return _not_ready_condition("NodeClassTerminating", "NodeClass is Terminating")
    ready = conditions.find_condition(state.conditions, conditions.READY)
    if ready is None or ready.status == conditions.UNKNOWN:
        return _not_ready_condition("NodeClassReadinessUnknown", "Node Class Readiness Unknown")
    if ready.status == conditions.FALSE:
        return _not_ready_condition(ready.reason, ready.message)
    return Condition(type=conditions.NODE_CLASS_READY, status=conditions.TRUE)


def _not_ready_condition(reason: str, message: str) -> Condition:
    return Condition(type=conditions.NODE_CLASS_READY, status=conditions.FALSE, reason=reason, message=message)


def validation_condition(pool: NodePool) -> Condition:
    """The ValidationSucceeded condition of a pool (API §2.3)."""
    findings = runtime_validation.validate_node_pool(pool)
    if not findings:
        return Condition(type=conditions.VALIDATION_SUCCEEDED, status=conditions.TRUE)
    text = "; ".join(str(finding) for finding in findings)
    return Condition(
        type=conditions.VALIDATION_SUCCEEDED, status=conditions.FALSE, reason=NODE_POOL_INVALID, message=text
    )


@dataclass(frozen=True)
class InvalidRequirementValues:
    """Values of a requirement that are not valid label values, and those that are."""

    key: str
    valid: list[str]
    invalid: list[str]


def invalid_requirement_values(pool: NodePool) -> Iterable[InvalidRequirementValues]:
    """Requirements with some invalid values, which are ignored (API-078)."""
    for requirement in pool.spec.template.spec.requirements:
        key = labels.normalise(requirement.key)
        allowed = labels.CLOSED_LABEL_VALUES.get(key, frozenset(requirement.values))
        valid = [value for value in requirement.values if value in allowed]
        if requirement.operator == "In" and valid and len(valid) < len(requirement.values):
            yield InvalidRequirementValues(key, valid, [value for value in requirement.values if value not in allowed])
