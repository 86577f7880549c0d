"""Feature gates as users write them: ``NodeRepair=true,ReservedCapacity=false`` (OPS-355 to OPS-357)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from karpenter.model.gates import DEFAULT, Gate, Gates

#: Values the reference's readers take for yes and no, wherever something else than a flag of ours carries them.
SPELLINGS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), "true"),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), "false"),
}
#: Gates there are no more: what they switched is always on. Naming one is no mistake (OPS-356).
_PAST = frozenset({"Drift"})
_NODE_CLASS_CEL = "NodeClassCEL"


class GateError(ValueError):
    """A list of gates that cannot be read; the message names the entry."""


@dataclass(frozen=True)
class FeatureGates:
    """What is switched on, and the names in the list that mean nothing here."""

    enabled: Gates = DEFAULT
    unknown: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ",".join(f"{gate}={'true' if gate in self.enabled else 'false'}" for gate in Gate)

    def remarks(self) -> Iterator[str]:
        """What whoever wrote the list should know."""
        for name in self.unknown:
            near = get_close_matches(name, list(Gate), 1)
            yield f"feature gate {name}: unknown and ignored" + (f"; did you mean {near[0]}?" if near else "")


@dataclass(frozen=True)
class AwsGates:
    """The AWS provider's own gates (AWS-013). Names it does not know are ignored."""

    node_class_cel: bool = False

    def __str__(self) -> str:
        return f"{_NODE_CLASS_CEL}={'true' if self.node_class_cel else 'false'}"


def parse_aws(text: str) -> AwsGates:
    """The gates of a list. Raises ``GateError``."""
    said = dict(_entry(entry) for entry in filter(None, text.split(",")))
    return AwsGates(said.get(_NODE_CLASS_CEL, False))


def parse(text: str) -> FeatureGates:
    """The gates a list leaves on: those it names as it says, the others as they are by default. Raises ``GateError``."""
    enabled = set(DEFAULT)
    unknown: dict[str, None] = {}
    for entry in filter(None, text.split(",")):
        name, is_on = _entry(entry)
        if name in Gate.__members__.values():
            (enabled.add if is_on else enabled.discard)(Gate(name))
        elif name not in _PAST:
            unknown[name] = None
    return FeatureGates(frozenset(enabled), tuple(unknown))


def _entry(entry: str) -> tuple[str, bool]:
    name, equals, value = (part.strip() for part in entry.partition("="))
    if not equals:
        raise GateError(f"{entry.strip()!r} has no value; write {name or 'Name'}=true or {name or 'Name'}=false")
    if value not in SPELLINGS:
        raise GateError(f"{name}={value!r} is neither true nor false")
    return name, SPELLINGS[value] == "true"
