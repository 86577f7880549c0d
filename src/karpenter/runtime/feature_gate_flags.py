"""Feature gates as users write them: ``NodeRepair=true,ReservedCapacity=false`` (OPS-355 to OPS-357)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from karpenter.model.feature_gates import DEFAULT_FEATURE_GATES, FeatureGate, FeatureGates

#: Values the reference's readers take for yes and no, wherever something else than a flag of ours carries them.
BOOLEAN_SPELLINGS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), "true"),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), "false"),
}
#: Gates there are no more: what they switched is always on. Naming one is no mistake (OPS-356).
_REMOVED_GATES = frozenset({"Drift"})
_NODE_CLASS_CEL = "NodeClassCEL"


class FeatureGateError(ValueError):
    """A list of gates that cannot be read; the message names the entry."""


@dataclass(frozen=True)
class ParsedFeatureGates:
    """What is switched on, and the names in the list that mean nothing here."""

    enabled: FeatureGates = DEFAULT_FEATURE_GATES
    unknown: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ",".join(f"{gate}={'true' if gate in self.enabled else 'false'}" for gate in FeatureGate)

    def warnings(self) -> Iterator[str]:
        """What whoever wrote the list should know."""
        for name in self.unknown:
            near = get_close_matches(name, list(FeatureGate), 1)
            yield f"feature gate {name}: unknown and ignored" + (f"; did you mean {near[0]}?" if near else "")


@dataclass(frozen=True)
class AwsFeatureGates:
    """The AWS provider's own gates (AWS-013). Names it does not know are ignored."""

    node_class_cel: bool = False

    def __str__(self) -> str:
        return f"{_NODE_CLASS_CEL}={'true' if self.node_class_cel else 'false'}"


def parse_aws_feature_gates(text: str) -> AwsFeatureGates:
    """The gates of a list. Raises ``GateError``."""
    said = dict(_parse_entry(entry) for entry in filter(None, text.split(",")))
    return AwsFeatureGates(said.get(_NODE_CLASS_CEL, False))


def parse_feature_gates(text: str) -> ParsedFeatureGates:
    """The gates a list leaves on: those it names as it says, the others as they are by default. Raises ``GateError``."""
    enabled = set(DEFAULT_FEATURE_GATES)
    unknown: dict[str, None] = {}
    for entry in filter(None, text.split(",")):
        name, is_on = _parse_entry(entry)
        if name in FeatureGate.__members__.values():
            (enabled.add if is_on else enabled.discard)(FeatureGate(name))
        elif name not in _REMOVED_GATES:
            unknown[name] = None
    return ParsedFeatureGates(frozenset(enabled), tuple(unknown))


def _parse_entry(entry: str) -> tuple[str, bool]:
    name, equals, value = (part.strip() for part in entry.partition("="))
    if not equals:
        raise FeatureGateError(f"{entry.strip()!r} has no value; write {name or 'Name'}=true or {name or 'Name'}=false")
    if value not in BOOLEAN_SPELLINGS:
        raise FeatureGateError(f"{name}={value!r} is neither true nor false")
    return name, BOOLEAN_SPELLINGS[value] == "true"
