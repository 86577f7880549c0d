"""One disruption command while it is carried out, and how log lines, events and the journal describe it (DIS §19, DIS-431)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from karpenter.disruption.decide.command import Candidate, Command
from karpenter.disruption.decision_journal import JournalEntry
from karpenter.model import labels
from karpenter.model.requirements import requirements_from_wire
from karpenter.runtime.events import shortened
from karpenter.scheduling.solution import NewNodeClaim
from karpenter.state.state_node import StateNode

#: Capacity types in the order a claim that admits several is described by (DIS-431).
_CAPACITY_TYPE_ORDER = (labels.RESERVED, labels.SPOT, labels.ON_DEMAND)
#: So many names are written into an annotation.
_MAX_NAMES_IN_ANNOTATION = 50


@dataclass
class QueuedCommand:
    """A command being carried out.

    ``started_at`` is on the event loop's clock. ``remaining_candidates``: those whose claim is not deleted yet.
    ``launched_replacements``: those whose instance was launched. ``ready_replacements``: those that were initialized.
    ``late_replacements``: those that were not when the command reached its timeout; they are kept.
    ``replacement_timeout_seconds``: how long they may take; None until that matters.
    """

    command_id: str
    command: Command
    started_at: float
    remaining_candidates: dict[str, Candidate] = field(init=False)
    launched_replacements: set[str] = field(default_factory=set)
    ready_replacements: set[str] = field(default_factory=set)
    #: Replacements that went while candidates stay: the command fails with its next reconcile.
    lost_replacements: set[str] = field(default_factory=set)
    late_replacements: set[str] = field(default_factory=set)
    replacement_timeout_seconds: float | None = None
    #: Whether the successors of its pods have their nominations.
    has_successor_nominations: bool = False

    def __post_init__(self) -> None:
        self.remaining_candidates = {candidate.key: candidate for candidate in self.command.candidates}

    @property
    def replacements(self) -> tuple[str, ...]:
        """Names of the claims that take the candidates' place."""
        return tuple(planned.name for planned in self.command.replacements)

    @property
    def failed_replacements(self) -> frozenset[str]:
        """The replacements because of which the command fails; empty if it fails for another reason."""
        return frozenset(self.lost_replacements | self.late_replacements)

    @property
    def unready_node_pools(self) -> frozenset[str]:
        """The NodePools of replacements that were launched, never became ready, and failed the command."""
        unready = self.failed_replacements & self.launched_replacements - self.ready_replacements
        return frozenset(planned.node_pool for planned in self.command.replacements if planned.name in unready)

    @property
    def ready_node_pools(self) -> frozenset[str]:
        """The NodePools of replacements that became ready."""
        ready = self.ready_replacements
        return frozenset(planned.node_pool for planned in self.command.replacements if planned.name in ready)

    @property
    def launching_node_pools(self) -> frozenset[str]:
        """The NodePools of replacements that are not ready yet."""
        pending = frozenset(self.pending_replacements())
        return frozenset(planned.node_pool for planned in self.command.replacements if planned.name in pending)

    def pending_replacements(self) -> Iterator[str]:
        """Replacements that were not seen initialized yet."""
        return (name for name in self.replacements if name not in self.ready_replacements)

    def remove_candidates(self, keys: Collection[str]) -> None:
        """These stay after all."""
        for key in keys:
            self.remaining_candidates.pop(key, None)

    @property
    def metric_labels(self) -> dict[str, str]:
        """How series about decisions label it (DIS-426, DIS-427)."""
        command = self.command
        return {
            "decision": command.decision.value,
            "reason": command.reason.lower(),
            "consolidation_type": command.consolidation_type.value,
        }

    def describe(self) -> str:
        """The whole command in one line (DIS §19)."""
        command = self.command
        nodes = ", ".join(candidate.state_node.name for candidate in command.candidates)
        head = f"{command.reason}/{self.command_id}: {command.decision}: nodepools=[{','.join(command.node_pools)}]: [{nodes}]"
        return head + _replacement_text(command) + _savings_text(command)

    def log_fields(self) -> dict[str, object]:
        """What its log lines carry (DIS-431, DIS-432, DIS-433)."""
        command = self.command
        return {
            "command": self.describe(),
            "command-id": self.command_id,
            "reason": command.reason.value,
            "decision": command.decision.value,
            "disrupted-node-count": len(command.candidates),
            "replacement-node-count": len(command.replacements),
            "pod-count": sum(len(candidate.reschedulable_pods) for candidate in command.candidates),
            "disrupted-nodes": [_node_fields(candidate.state_node) for candidate in command.candidates],
            "replacement-nodes": list(_replacement_fields(command.replacements)),
        }

    def journal_entry(self, now: datetime) -> JournalEntry:
        """Its first entry in the journal."""
        command = self.command
        return JournalEntry(
            command_id=self.command_id,
            decided_at=now,
            reason=command.reason.value,
            decision=command.decision.value,
            consolidation_type=command.consolidation_type.value,
            pools=command.node_pools,
            nodes=tuple((candidate.state_node.name, candidate.key) for candidate in command.candidates),
            replacements=self.replacements,
            pods=sum(len(candidate.reschedulable_pods) for candidate in command.candidates),
            saving_per_hour=command.saving_per_hour,
        )

    def candidate_annotations(self) -> dict[str, str]:
        """Annotations that link a deleted claim to this decision."""
        annotations = {labels.DISRUPTION_DECISION: self.command_id}
        if self.replacements:
            annotations[labels.DISRUPTION_REPLACEMENTS] = shortened(self.replacements, _MAX_NAMES_IN_ANNOTATION)
        return annotations

    def replacement_annotations(self) -> dict[str, str]:
        """Annotations that link a replacement to this decision."""
        replaced = [candidate.key for candidate in self.command.candidates]
        return {
            labels.DISRUPTION_DECISION: self.command_id,
            labels.DISRUPTION_REPLACES: shortened(replaced, _MAX_NAMES_IN_ANNOTATION),
        }


def command_summary(command: Command) -> str:
    """A command that is not carried out yet, as events name it (DIS §19)."""
    nodes = ", ".join(candidate.state_node.name for candidate in command.candidates)
    return f"{command.decision}: [{nodes}]{_replacement_text(command)}"


def candidate_summary(command: Command, candidate: Candidate) -> str:
    """The same for one of several nodes."""
    if len(command.candidates) == 1:
        return command_summary(command)
    return f"{command.decision}: [{candidate.state_node.name}] (part of {len(command.candidates)}-node consolidation)"


def _replacement_text(command: Command) -> str:
    return f" -> [{len(command.replacements)} replacement(s)]" if command.replacements else ""


def _savings_text(command: Command) -> str:
    return "" if command.saving_per_hour is None else f" (savings: ${command.saving_per_hour:.2f})"


def _node_fields(view: StateNode) -> dict[str, object]:
    node_labels = view.node.metadata.labels if view.node else {}
    return {
        "Node": {"name": view.node.metadata.name if view.node else ""},
        "NodeClaim": {"name": view.key},
        "capacity-type": node_labels.get(labels.CAPACITY_TYPE, ""),
        "instance-type": node_labels.get(labels.INSTANCE_TYPE, ""),
    }


def _replacement_fields(replacements: tuple[NewNodeClaim, ...]) -> Iterator[dict[str, object]]:
    for planned in replacements:
        wanted = requirements_from_wire(planned.claim.spec.requirements).requirement_for(labels.CAPACITY_TYPE)
        sold = next((kind for kind in _CAPACITY_TYPE_ORDER if wanted.allows(kind)), "")
        types = {"instance-types": shortened(planned.instance_types)} if len(replacements) == 1 else {}
        yield {"capacity-type": sold, **types}
