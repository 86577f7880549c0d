"""Backoff of commands that failed, were undone or refused: their nodes are excluded for exponentially growing periods.

Without it the same move would be chosen again at once, and a replacement created and deleted each time. Entries are kept in
memory by reason and key: a move of a node (deletion, or replacement by an offering), or an owner of pods whose move was undone;
and by NodePool where replacements were launched and did not become ready (K15-360, K15-361).
After a restart everything may be tried again. Periods are measured on the event loop's clock, which changes of the wall clock do
not affect.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from karpenter.api.core import Pod
from karpenter.disruption.decide.command import Command, DisruptionReason
from karpenter.disruption.decide.failed_moves import FailedMoves, moves_by_node
from karpenter.model.backoff import Backoff
from karpenter.model.pods import controller_of
from karpenter.scheduling.solution import Solution
from karpenter.state.state_node import StateNode

#: The first pause, and the longest; in between each is twice the one before (DIS §9.3 Beyond).
_BACKOFF = Backoff(60.0, 3600.0)
#: The same for commands that failed before they deleted a node: nothing was lost, and capacity may be back soon.
_HARMLESS_BACKOFF = Backoff(60.0, 600.0)
#: Pauses are longer by up to this part, so that what failed together is not tried again together.
_JITTER = 0.2
#: After so long without a failure it counts as the first again.
_RESET_AFTER_SECONDS = 6 * 3600.0
_MAX_BACKOFF_ENTRIES = 10_000


class NodeMove(NamedTuple):
    """A move of a node (by key): see ``failed_moves.moves_by_node``."""

    node: str
    move: str


#: What is in backoff: a move of a node, or the owner of pods.
BackoffKey = NodeMove | str


@dataclass(frozen=True)
class BackoffEntry:
    """How often in a row something failed, until when it is in backoff, and the cause of the last failure."""

    failures: int
    until: float
    failed_at: float
    cause: str


class CommandBackoff:
    """A bounded memory of failures; the oldest are forgotten first. ``now`` gives seconds that never go back."""

    def __init__(self, now: Callable[[], float], max_entries: int = _MAX_BACKOFF_ENTRIES) -> None:
        self._now = now
        self._max_entries = max_entries
        self._entries: OrderedDict[tuple[str, BackoffKey], BackoffEntry] = OrderedDict()
        #: NodePools whose last replacement did not become ready; after ``_RESET_AFTER_SECONDS`` that is forgotten.
        self._unready_pools: dict[str, BackoffEntry] = {}

    def record_failure(self, reason: str, keys: Iterable[BackoffKey], cause: str, backoff: Backoff = _BACKOFF) -> None:
        """These keys failed for a reason: each is in backoff for it, longer than last time."""
        now = self._now()
        for key in keys:
            last = self._entries.pop((reason, key), None)
            failures = last.failures + 1 if last is not None and now - last.failed_at < _RESET_AFTER_SECONDS else 1
            until = now + _backoff_seconds(backoff, key, failures)
            self._entries[reason, key] = BackoffEntry(failures, until, now, cause)
        while len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def record_failed_command(
        self, command: Command, cause: str, failed_replacements: Collection[str] = (), *, has_deleted_nodes: bool
    ) -> None:
        """The command failed: each of its nodes is in backoff for the moves that failed.

        Those are its moves by the failed replacements (by name), or all its moves where it failed for another reason.
        """
        keys = [
            NodeMove(key, move)
            for key, moves in moves_by_node(command, failed_replacements).items()
            for move in sorted(moves)
        ]
        self.record_failure(command.reason, keys, cause, _BACKOFF if has_deleted_nodes else _HARMLESS_BACKOFF)

    def record_unready_pools(self, node_pools: Iterable[str], cause: str) -> None:
        """Replacements in these NodePools were launched and did not become ready.

        What fails while the NodePool is in backoff began before, so it does not count as another failure.
        """
        now = self._now()
        self._unready_pools = self._recently_unready(now)
        for name in node_pools:
            last = self._unready_pools.get(name)
            if last is not None and last.until > now:
                continue
            failures = last.failures + 1 if last is not None else 1
            until = now + _backoff_seconds(_HARMLESS_BACKOFF, name, failures)
            self._unready_pools[name] = BackoffEntry(failures, until, now, cause)

    def reset_pools(self, node_pools: Iterable[str]) -> None:
        """Replacements in these NodePools became ready."""
        for name in node_pools:
            self._unready_pools.pop(name, None)

    def reset(self, reason: str, keys: Iterable[BackoffKey]) -> None:
        """These succeeded, or are gone."""
        for key in keys:
            self._entries.pop((reason, key), None)

    def reset_nodes(self, reason: str, nodes: Iterable[str]) -> None:
        """A move of these nodes succeeded."""
        gone = frozenset(nodes)
        moves = [key for of_reason, key in self._entries if of_reason == reason and isinstance(key, NodeMove)]
        self.reset(reason, [move for move in moves if move.node in gone])

    def failed_moves(self, now: float, launching_pools: Collection[str] = ()) -> FailedMoves:
        """The moves that failed, as a decision at a time sees them.

        ``launching_pools``: NodePools in which commands under way have replacements that are not ready yet.
        """
        in_backoff: defaultdict[DisruptionReason, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        failures: defaultdict[DisruptionReason, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        for (reason, key), entry in self._entries.items():
            if isinstance(key, NodeMove) and now - entry.failed_at < _RESET_AFTER_SECONDS:
                failures[DisruptionReason(reason)][key.node] += entry.failures
                if entry.until > now:
                    in_backoff[DisruptionReason(reason)][key.node].add(key.move)
        return FailedMoves(
            {
                reason: {node: frozenset(moves) for node, moves in by_node.items()}
                for reason, by_node in in_backoff.items()
            },
            {reason: dict(by_node) for reason, by_node in failures.items()},
            *self._unready_pools_at(now, launching_pools),
        )

    def _unready_pools_at(self, now: float, launching: Collection[str]) -> tuple[frozenset[str], frozenset[str]]:
        """The NodePools in which nothing may be launched at a time, and those in which one replacement may be tried."""
        unready = self._recently_unready(now)
        closed = frozenset(name for name, entry in unready.items() if entry.until > now or name in launching)
        return closed, frozenset(unready) - closed

    def _recently_unready(self, now: float) -> dict[str, BackoffEntry]:
        return {
            name: entry for name, entry in self._unready_pools.items() if now - entry.failed_at < _RESET_AFTER_SECONDS
        }

    def excluded_nodes(self, nodes: Sequence[StateNode], now: float) -> Mapping[DisruptionReason, frozenset[str]]:
        """By reason, the nodes with pods of an owner in backoff at a time."""
        active: defaultdict[str, set[str]] = defaultdict(set)
        for (reason, key), entry in self._entries.items():
            if isinstance(key, str) and entry.until > now:
                active[reason].add(key)
        keys_by_node = {node.key: frozenset(owner_backoff_keys(node.pods)) for node in nodes} if active else {}
        return {
            reason: frozenset(key for key, keys in keys_by_node.items() if not keys.isdisjoint(active[reason]))
            for reason in DisruptionReason
            if reason in active
        }

    def next_expiry(self) -> float | None:
        """When the next backoff ends, on the clock of ``now``; None if nothing is in backoff."""
        now = self._now()
        entries = (*self._entries.values(), *self._unready_pools.values())
        return min((entry.until for entry in entries if entry.until > now), default=None)


def _backoff_seconds(backoff: Backoff, key: BackoffKey, failures: int) -> float:
    """Doubling, with a part that depends on the key and the count and on nothing else."""
    seconds = backoff.delay(failures)
    name = key if isinstance(key, str) else "|".join(key)
    share = zlib.crc32(f"{name}/{failures}".encode()) / 2**32
    return float(seconds * (1 + _JITTER * share))


#: How long after a move a new node for its pods' owner undoes it.
_REVERSAL_PERIOD_SECONDS = 900.0
_MAX_OWNERS = 10_000
_log = structlog.get_logger()


class ConsolidationReversals:
    """Remembers whose pods were moved, and notices when that was for nothing. ``now`` gives seconds that never go back."""

    def __init__(self, backoff: CommandBackoff, now: Callable[[], float]) -> None:
        self._backoff = backoff
        self._now = now
        self._moved_at: OrderedDict[str, float] = OrderedDict()

    def record_command(self, command: Command) -> None:
        """A command was carried out."""
        if command.reason is not DisruptionReason.UNDERUTILIZED:
            return
        now = self._now()
        for name in owner_backoff_keys(pod for candidate in command.candidates for pod in candidate.reschedulable_pods):
            self._moved_at[name] = now
            self._moved_at.move_to_end(name)
        while len(self._moved_at) > _MAX_OWNERS:
            self._moved_at.popitem(last=False)

    def record_plan(self, plan: Solution) -> None:
        """New nodes are launched for pending pods: a reversal if their owner's pods were moved just before."""
        if not self._moved_at:
            return
        soonest = self._now() - _REVERSAL_PERIOD_SECONDS
        waiting = (pod for claim in plan.new_claims for pod in claim.pods if not pod.spec.node_name)
        for name in sorted(set(owner_backoff_keys(waiting))):
            if self._moved_at.pop(name, soonest) > soonest:
                cause = "a node was launched for pods of an owner whose pods had been moved just before"
                self._backoff.record_failure(DisruptionReason.UNDERUTILIZED, (name,), cause)
                _log.info("consolidation was undone", owner=name, error=cause)


def owner_backoff_keys(pods: Iterable[Pod]) -> Iterator[str]:
    """The keys under which owners of pods are in backoff."""
    for pod in pods:
        if (owner := controller_of(pod.metadata)) is not None:
            yield f"{owner.kind}/{pod.metadata.namespace}/{owner.name}"
