"""Feature gates as users write them: ``NodeRepair=true,ReservedCapacity=false`` (OPS-355 to OPS-357)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches

from karpenter.model.feature_gates import DEFAULT_FEATURE_GATES, FeatureGate, FeatureGates
from karpenter.model.setting_kinds import BOOLEAN_SPELLINGS, SettingKind, SettingValueError

#: Gates that Karpenter removed: what they switched is always on. Naming one is no mistake (OPS-356).
_REMOVED_GATES = frozenset({"Drift"})


class FeatureGateError(SettingValueError):
    """A list of gates cannot be parsed; the message names the entry."""


@dataclass(frozen=True)
class ParsedFeatureGates:
    """What is switched on, and the names in the list that mean nothing here.

    ``requested``: what the user switched on by name, and not by a default.
    """

    enabled: FeatureGates = DEFAULT_FEATURE_GATES
    unknown: tuple[str, ...] = ()
    requested: FeatureGates = field(default=frozenset(), compare=False)

    def __str__(self) -> str:
        return ",".join(f"{gate}={'true' if gate in self.enabled else 'false'}" for gate in FeatureGate)

    def warnings(self) -> Iterator[str]:
        """Names in the list that have no effect."""
        for name in self.unknown:
            near = get_close_matches(name, list(FeatureGate), 1)
            yield f"feature gate {name}: unknown and ignored" + (f"; did you mean {near[0]}?" if near else "")


def parse_feature_gates(text: str) -> ParsedFeatureGates:
    """The gates a list leaves on: those it names as it says, the others as they are by default. Raises ``FeatureGateError``."""
    return _parse_gates_over("", text)


def _parse_gates_over(default: str, text: str) -> ParsedFeatureGates:
    """The same with another default, which is a list of gates, too."""
    enabled, requested = set(DEFAULT_FEATURE_GATES), set[FeatureGate]()
    unknown: dict[str, None] = {}
    for entries, changed in ((default, (enabled,)), (text, (enabled, requested))):
        for entry in filter(None, entries.split(",")):
            name, is_on = parse_gate(entry)
            if name in FeatureGate.__members__.values():
                for gates in changed:
                    (gates.add if is_on else gates.discard)(FeatureGate(name))
            elif name not in _REMOVED_GATES:
                unknown[name] = None
    return ParsedFeatureGates(frozenset(enabled), tuple(unknown), frozenset(requested))


def parse_gate(entry: str) -> tuple[str, bool]:
    """Name and value of one entry. Raises ``FeatureGateError``."""
    name, equals, value = (part.strip() for part in entry.partition("="))
    if not equals:
        raise FeatureGateError(f"{entry.strip()!r} has no value; write {name or 'Name'}=true or {name or 'Name'}=false")
    if value not in BOOLEAN_SPELLINGS:
        raise FeatureGateError(f"{name}={value!r} is neither true nor false")
    return name, BOOLEAN_SPELLINGS[value] == "true"


#: A list of gates.
FEATURE_GATES: SettingKind[ParsedFeatureGates] = SettingKind(
    parse_feature_gates, "a list of gates", "GATE=true|false,...", _parse_gates_over
)
