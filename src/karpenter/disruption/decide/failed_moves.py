"""Moves that failed lately, as a decision sees them: which of them it may not try again yet, and which nodes it tries last.

Backoff is kept for a node, a reason and a move: deletion without replacement, or replacement by an offering. So an offering that
is sold out delays neither other nodes of the NodePool, nor a deletion, nor the replacement by another offering.

A NodePool whose instances were launched and did not become ready (an image or user data that does not work) would fail for every
node in turn. It is in backoff as a whole, and after that one replacement at a time is tried, until one becomes ready.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from karpenter.disruption.decide.command import Command, DisruptionReason
from karpenter.model import labels
from karpenter.scheduling.solution import NewNodeClaim

#: The move that launches nothing; other moves are named by the offering they launch.
DELETION = "delete"


@dataclass(frozen=True)
class FailedMoves:
    """By reason and node (by key): the moves that are in backoff, and how often in a row moves failed.

    ``closed_pools``: NodePools (by name) in which no replacement may be launched now, because the last ones did not become
    ready. ``trial_pools``: those in which one may be launched, to see whether it does.
    """

    in_backoff: Mapping[DisruptionReason, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    failures: Mapping[DisruptionReason, Mapping[str, int]] = field(default_factory=dict)
    closed_pools: frozenset[str] = frozenset()
    trial_pools: frozenset[str] = frozenset()

    def after_all(self, commands: Iterable[Command]) -> FailedMoves:
        """What the next command of the same decision may do after several."""
        return reduce(FailedMoves.after, commands, self)

    def after(self, command: Command) -> FailedMoves:
        """What the next command of the same decision may do."""
        tried = self.trial_pools.intersection(planned.node_pool for planned in command.replacements)
        if not tried:
            return self
        return replace(self, closed_pools=self.closed_pools | tried, trial_pools=self.trial_pools - tried)

    def closed_pool(self, command: Command) -> str:
        """The first NodePool in which the command would launch a replacement and may not; empty if there is none."""
        return min(self.closed_pools.intersection(planned.node_pool for planned in command.replacements), default="")

    def crowded_trial_pool(self, command: Command) -> str:
        """The first NodePool in which one replacement may be tried and the command would launch several; empty if none."""
        counts = Counter(planned.node_pool for planned in command.replacements)
        return min((name for name in self.trial_pools if counts[name] > 1), default="")

    def has_in_backoff(self, command: Command) -> bool:
        """Whether a move of the command is in backoff for its node, or a NodePool of its replacements is."""
        if self.closed_pool(command):
            return True
        by_node = self.in_backoff.get(command.reason)
        if not by_node:
            return False
        return any(not moves.isdisjoint(by_node.get(key, ())) for key, moves in moves_by_node(command).items())

    def is_deletion_in_backoff(self, reason: DisruptionReason, key: str) -> bool:
        """Whether a node may not be deleted without replacement yet."""
        return DELETION in self.in_backoff.get(reason, {}).get(key, ())

    def is_a_replacement_in_backoff(self, reason: DisruptionReason, key: str) -> bool:
        """Whether some replacement of a node is in backoff."""
        return bool(self.in_backoff.get(reason, {}).get(key, frozenset()) - {DELETION})

    def count(self, reason: DisruptionReason, key: str) -> int:
        """How often in a row moves of a node failed. Candidates are tried in this order first, so they rotate."""
        return self.failures.get(reason, {}).get(key, 0)


NO_FAILED_MOVES = FailedMoves()


def moves_by_node(command: Command, replacements: Collection[str] = ()) -> Mapping[str, frozenset[str]]:
    """What a command does with each of its nodes (by key): the offerings launched for pods of the node, or deletion.

    ``replacements``: the moves by these new nodes (by name) only. A new node for none of the pods is for all nodes.
    """
    key_by_uid = {
        pod.metadata.uid: candidate.key for candidate in command.candidates for pod in candidate.reschedulable_pods
    }
    keys = [candidate.key for candidate in command.candidates]
    moves: defaultdict[str, set[str]] = defaultdict(set)
    for replacement in command.replacements:
        if replacements and replacement.name not in replacements:
            continue
        own = {key_by_uid[pod.metadata.uid] for pod in replacement.pods if pod.metadata.uid in key_by_uid}
        for key in own or keys:
            moves[key].add(_offering_name(replacement))
    if not command.replacements:
        return dict.fromkeys(keys, frozenset((DELETION,)))
    return {key: frozenset(offerings) for key, offerings in moves.items()}


def _offering_name(replacement: NewNodeClaim) -> str:
    """Instance type, zone and capacity type that a replacement is launched as first."""
    requirements = replacement.cheapest_offering.requirements
    zone, capacity_type = (
        min(requirements.requirement_for(key).values, default="") for key in (labels.ZONE, labels.CAPACITY_TYPE)
    )
    return "/".join((replacement.instance_types[0], zone, capacity_type))
