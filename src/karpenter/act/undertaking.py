"""One disruption command while it is carried out, and how log lines, events and the journal describe it (DIS §19, DIS-431)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from karpenter.act.events import shortened
from karpenter.act.journal import Entry
from karpenter.cluster.nodes import NodeView
from karpenter.decide.disrupt.command import Candidate, Command
from karpenter.decide.plan import PlannedClaim
from karpenter.model import labels
from karpenter.model.requirements import from_wire

#: Capacity types in the order a claim that admits several is described by (DIS-431).
_BEST_FIRST = (labels.RESERVED, labels.SPOT, labels.ON_DEMAND)
#: So many names are written into an annotation.
_NAMED = 50


@dataclass
class Undertaking:
    """A command being carried out.

    ``began`` is on the event loop's clock; ``remaining`` its candidates whose claim is not deleted yet; ``ready`` the
    replacements that were seen initialised.
    """

    identity: str
    command: Command
    began: float
    remaining: dict[str, Candidate] = field(init=False)
    ready: set[str] = field(default_factory=set)
    #: Whether the successors of its pods were promised their places.
    is_promised: bool = False

    def __post_init__(self) -> None:
        self.remaining = {candidate.key: candidate for candidate in self.command.candidates}

    @property
    def replacements(self) -> tuple[str, ...]:
        """Names of the claims that take the candidates' place."""
        return tuple(planned.name for planned in self.command.replacements)

    def awaited(self) -> Iterator[str]:
        """Replacements that were not seen initialised yet."""
        return (name for name in self.replacements if name not in self.ready)

    def drop(self, keys: Collection[str]) -> None:
        """These stay after all."""
        for key in keys:
            self.remaining.pop(key, None)

    @property
    def labels(self) -> dict[str, str]:
        """How series about decisions label it (DIS-426, DIS-427)."""
        command = self.command
        return {
            "decision": command.decision.value,
            "reason": command.reason.lower(),
            "consolidation_type": command.consolidation_type.value,
        }

    def text(self) -> str:
        """The whole command in one line (DIS §19)."""
        command = self.command
        nodes = ", ".join(candidate.view.name for candidate in command.candidates)
        head = f"{command.reason}/{self.identity}: {command.decision}: nodepools=[{','.join(command.pools)}]: [{nodes}]"
        return head + _arrow(command) + _saving(command)

    def described(self) -> dict[str, object]:
        """What its log lines carry (DIS-431, DIS-432, DIS-433)."""
        command = self.command
        return {
            "command": self.text(),
            "command-id": self.identity,
            "reason": command.reason.value,
            "decision": command.decision.value,
            "disrupted-node-count": len(command.candidates),
            "replacement-node-count": len(command.replacements),
            "pod-count": sum(len(candidate.pods) for candidate in command.candidates),
            "disrupted-nodes": [_machine(candidate.view) for candidate in command.candidates],
            "replacement-nodes": list(_bought(command.replacements)),
        }

    def entry(self, now: datetime) -> Entry:
        """Its first entry in the journal."""
        command = self.command
        return Entry(
            identity=self.identity,
            at=now,
            reason=command.reason.value,
            decision=command.decision.value,
            consolidation_type=command.consolidation_type.value,
            pools=command.pools,
            machines=tuple((candidate.view.name, candidate.key) for candidate in command.candidates),
            replacements=self.replacements,
            pods=sum(len(candidate.pods) for candidate in command.candidates),
            saving_per_hour=command.saving_per_hour,
        )

    def notes_on_candidates(self) -> dict[str, str]:
        """Annotations that link a claim that goes to this decision."""
        found = {labels.DISRUPTION_DECISION: self.identity}
        if self.replacements:
            found[labels.DISRUPTION_REPLACEMENTS] = shortened(self.replacements, _NAMED)
        return found

    def notes_on_replacements(self) -> dict[str, str]:
        """Annotations that link a replacement to this decision."""
        replaced = [candidate.key for candidate in self.command.candidates]
        return {labels.DISRUPTION_DECISION: self.identity, labels.DISRUPTION_REPLACES: shortened(replaced, _NAMED)}


def simple_text(command: Command) -> str:
    """A command that is not carried out yet, as events name it (DIS §19)."""
    nodes = ", ".join(candidate.view.name for candidate in command.candidates)
    return f"{command.decision}: [{nodes}]{_arrow(command)}"


def part_text(command: Command, candidate: Candidate) -> str:
    """The same for one of several nodes."""
    if len(command.candidates) == 1:
        return simple_text(command)
    return f"{command.decision}: [{candidate.view.name}] (part of {len(command.candidates)}-node consolidation)"


def _arrow(command: Command) -> str:
    return f" -> [{len(command.replacements)} replacement(s)]" if command.replacements else ""


def _saving(command: Command) -> str:
    return "" if command.saving_per_hour is None else f" (savings: ${command.saving_per_hour:.2f})"


def _machine(view: NodeView) -> dict[str, object]:
    found = view.node.metadata.labels if view.node else {}
    return {
        "Node": {"name": view.node.metadata.name if view.node else ""},
        "NodeClaim": {"name": view.key},
        "capacity-type": found.get(labels.CAPACITY_TYPE, ""),
        "instance-type": found.get(labels.INSTANCE_TYPE, ""),
    }


def _bought(replacements: tuple[PlannedClaim, ...]) -> Iterator[dict[str, object]]:
    for planned in replacements:
        wanted = from_wire(planned.claim.spec.requirements).of(labels.CAPACITY_TYPE)
        sold = next((kind for kind in _BEST_FIRST if wanted.allows(kind)), "")
        types = {"instance-types": shortened(planned.instance_types)} if len(replacements) == 1 else {}
        yield {"capacity-type": sold, **types}
