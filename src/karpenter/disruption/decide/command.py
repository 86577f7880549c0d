"""What a disruption decision returns: commands, each with nodes to remove and replacements to launch first (DIS §8, §12)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property

from karpenter.api.core import Pod
from karpenter.model.repair_policies import RepairAction, RepairDecision
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods
from karpenter.state.state_node import StateNode

#: Cost of restarting an ordinary pod, for the pay-back time of moves: about a minute of a few cores.
POD_RESTART_COST_USD = 0.002
#: Namespace of the name-based UUIDs that identify commands.
_COMMAND_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "disruption-command.karpenter.sh")


class DisruptionReason(StrEnum):
    """Why a node is disrupted voluntarily; budgets name these reasons (DIS-016)."""

    EMPTY = "Empty"
    DRIFTED = "Drifted"
    UNDERUTILIZED = "Underutilized"
    UNHEALTHY = "Unhealthy"
    SLEEP = "Sleep"


class Decision(StrEnum):
    """What becomes of a command's nodes (DIS-017, K15-210)."""

    DELETE = "delete"
    REPLACE = "replace"
    TERMINATE_FIRST = "terminate-first"
    REBOOT = "reboot"


class TerminateFirstReason(StrEnum):
    """Why a node goes before its replacement is launched (K15-321)."""

    NO_RESERVED_CAPACITY = "no-reserved-capacity"
    STATIC_AT_LIMIT = "static-at-limit"


class ConsolidationType(StrEnum):
    """The kind of consolidation, as metrics label it; drift has none (DIS §9)."""

    NONE = ""
    EMPTY = "empty"
    MULTI = "multi"
    SINGLE = "single"


@dataclass(frozen=True)
class Candidate:
    """A node that may be disrupted.

    ``price_per_hour``: USD of its offering, None if unknown. ``disruption_cost`` as DIS-114. ``reschedulable_pods``: those that
    need another place.
    """

    state_node: StateNode
    node_pool: str
    reschedulable_pods: tuple[Pod, ...]
    price_per_hour: float | None
    disruption_cost: float

    @cached_property
    def key(self) -> str:
        """The NodeClaim's name."""
        return self.state_node.key


def saving_per_hour(candidates: Iterable[Candidate], replacement_price: float = 0.0) -> float | None:
    """USD per hour saved when the candidates go for replacements at this price; None if the price of a candidate is unknown."""
    prices = [candidate.price_per_hour for candidate in candidates]
    total = sum(price for price in prices if price is not None)
    return None if None in prices else total - replacement_price


@dataclass(frozen=True)
class MoveScore:
    """What a move is worth to one NodePool, relative to what it disrupts there (DIS-253).

    The fractions are of the total price and the total disruption cost of the pool's nodes; ``score`` is the first over the
    second. ``balanced``: the pool has the policy Balanced; other pools only have a low threshold.
    """

    node_pool: str
    score: float
    threshold: float
    saving_per_hour: float
    saving_fraction: float
    disruption_cost: float
    disruption_fraction: float
    pool_price_per_hour: float
    pool_disruption_cost: float
    balanced: bool = False

    @property
    def approved(self) -> bool:
        """Whether the move is worth it (DIS-254). Without known prices there is no score: only Balanced rejects the move then."""
        return self.score >= self.threshold or (not self.balanced and self.pool_price_per_hour <= 0)


@dataclass(frozen=True)
class Repair:
    """How a broken node is repaired, as far as the execution needs to know.

    ``drain_bound``: how long the drain may take at most (K15-230); None leaves it to the NodeClaim. ``has_escalated``: it is
    replaced because reboots did not help (K15-236).
    """

    decision: RepairDecision
    drain_bound: timedelta | None = None
    has_escalated: bool = False

    @property
    def is_reboot(self) -> bool:
        """Whether the node is rebooted in place."""
        return self.decision.action is RepairAction.REBOOT and not self.has_escalated


@dataclass(frozen=True)
class Command:
    """Nodes that are disrupted together, and what their pods need first.

    ``replacements`` are launched and initialized before any candidate is deleted. ``placed_on_existing``: pods planned on
    existing nodes (DIS-306). ``saving_per_hour`` in USD may be negative (drift), None if a price is unknown. ``scores``: one per
    NodePool of the candidates, for consolidation only. ``decided_at``: time of the decision, None while it is being made.
    ``repair``: for the reason Unhealthy only. ``terminate_first``: why the node goes before its replacement is launched.
    """

    reason: DisruptionReason
    candidates: tuple[Candidate, ...]
    replacements: tuple[NewNodeClaim, ...] = ()
    placed_on_existing: tuple[PlacedPods, ...] = ()
    consolidation_type: ConsolidationType = ConsolidationType.NONE
    saving_per_hour: float | None = None
    scores: tuple[MoveScore, ...] = ()
    decided_at: datetime | None = None
    repair: Repair | None = None
    terminate_first: TerminateFirstReason | None = None

    @property
    def command_id(self) -> str:
        """A UUID derived from what is decided and when: the same decision made again from a recording has the same ID.

        Two running commands never share one, since a NodeClaim belongs to at most one of them.
        """
        claims = (candidate.state_node.claim for candidate in self.candidates)
        uids = sorted(claim.metadata.uid for claim in claims if claim is not None)
        names = sorted(claim.name for claim in self.replacements)
        decided_at = self.decided_at.isoformat() if self.decided_at is not None else ""
        return str(uuid.uuid5(_COMMAND_NAMESPACE, "\n".join((self.reason, *uids, "", *names, "", decided_at))))

    @property
    def disruption_cost(self) -> float:
        """The disruption cost of all its candidates (DIS-114)."""
        return sum(candidate.disruption_cost for candidate in self.candidates)

    @property
    def pod_restarts(self) -> int:
        """Pods that have to start again elsewhere."""
        return sum(len(candidate.reschedulable_pods) for candidate in self.candidates)

    @property
    def payback_hours(self) -> float | None:
        """Hours until the saving exceeds the cost of the restarts (``POD_RESTART_COST_USD`` for an ordinary pod)."""
        if self.saving_per_hour is None or self.saving_per_hour <= 0:
            return None
        return self.disruption_cost * POD_RESTART_COST_USD / self.saving_per_hour

    @property
    def decision(self) -> Decision:
        """Reboot, terminate first, replace, or delete without replacement."""
        if self.repair is not None and self.repair.is_reboot:
            return Decision.REBOOT
        if self.terminate_first is not None:
            return Decision.TERMINATE_FIRST
        return Decision.REPLACE if self.replacements else Decision.DELETE

    @property
    def node_pools(self) -> tuple[str, ...]:
        """The NodePools its nodes are of, each once, by name."""
        return tuple(sorted({candidate.node_pool for candidate in self.candidates}))


@dataclass(frozen=True)
class PendingCommand:
    """What a later decision needs to know of a consolidation command that is due for validation (DIS-272).

    It names nodes by key and pods by uid: the later decision reads their state from its own snapshot. ``replacements``
    are without their pods. ``planned_nodes``: by uid of a pod, the node or replacement it was planned on.
    """

    candidate_keys: tuple[str, ...]
    consolidation_type: ConsolidationType
    replacements: tuple[NewNodeClaim, ...] = ()
    planned_nodes: Mapping[str, str] = field(default_factory=dict)


def pending_command(command: Command) -> PendingCommand:
    """A chosen command as a later decision sees it."""
    planned = [(replacement.name, replacement.pods) for replacement in command.replacements]
    planned += [(placed.node_key, placed.pods) for placed in command.placed_on_existing]
    return PendingCommand(
        tuple(candidate.key for candidate in command.candidates),
        command.consolidation_type,
        tuple(replace(replacement, pods=()) for replacement in command.replacements),
        {pod.metadata.uid: key for key, inside in planned for pod in inside},
    )
