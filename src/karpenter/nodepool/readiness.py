"""TODO: say what belongs here."""

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
    """What is legal in a pool and probably not meant, as warnings to its owner (API §2.2 Beyond). Told again after an edit."""
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
    """That a pool contradicts the rules and is not used, as a warning to its owner (API-640). Told again after an edit."""
    values = (str(pool.metadata.generation), message)
    return ObjectEvent(
        involved_pool(pool.metadata), WARNING, NODE_POOL_INVALID, message, values, _ADVICE_DEDUPE_TIMEOUT
    )


@dataclass(frozen=True)
class NodeClassState:
    """What readiness and registration health read of a node class."""

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
    """Values of a requirement that do not exist, beside some that do."""

    key: str
    valid: list[str]
    invalid: list[str]


def invalid_requirement_values(pool: NodePool) -> Iterable[InvalidRequirementValues]:
    """Requirements of which some values are ignored (API-078)."""
    for item in pool.spec.template.spec.requirements:
        key = labels.normalise(item.key)
        known = labels.CLOSED_LABEL_VALUES.get(key, frozenset(item.values))
        valid = [value for value in item.values if value in known]
        if item.operator == "In" and valid and len(valid) < len(item.values):
            yield InvalidRequirementValues(key, valid, [value for value in item.values if value not in known])
