"""Backoff of commands that failed, were undone or refused: their nodes are excluded for exponentially growing periods.

Without it the same node would be chosen again at once, and a replacement created and deleted each time. Entries are kept in
memory by reason and key (NodeClaims, NodePools, owners of pods); after a restart everything may be tried again. Periods are
measured on the event loop's clock, which changes of the wall clock do not affect.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import structlog

from karpenter.api.core import Pod
from karpenter.disruption.decide.command import Command, DisruptionReason
from karpenter.model.backoff import Backoff
from karpenter.scheduling.solution import Solution
from karpenter.state.state_node import StateNode

#: The first pause, and the longest; in between each is twice the one before (DIS §9.3 Beyond, for single nodes longer).
_BACKOFF = Backoff(60.0, 3600.0)
#: Pauses are longer by up to this part, so that what failed together is not tried again together.
_JITTER = 0.2
#: After so long without a failure it counts as the first again.
_RESET_AFTER_SECONDS = 6 * 3600.0
_MAX_BACKOFF_ENTRIES = 10_000


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
        self._entries: OrderedDict[tuple[str, str], BackoffEntry] = OrderedDict()

    def record_failure(self, reason: str, keys: Iterable[str], cause: str) -> None:
        """These keys failed for a reason: each is in backoff for it, longer than last time."""
        now = self._now()
        for name in keys:
            last = self._entries.pop((reason, name), None)
            failures = last.failures + 1 if last is not None and now - last.failed_at < _RESET_AFTER_SECONDS else 1
            until = now + _backoff_seconds(name, failures)
            self._entries[reason, name] = BackoffEntry(failures, until, now, cause)
        while len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    def reset(self, reason: str, keys: Iterable[str]) -> None:
        """These succeeded, or are gone."""
        for name in keys:
            self._entries.pop((reason, name), None)

    def active_entry(self, reason: str, keys: Iterable[str], now: float) -> BackoffEntry | None:
        """What bars one of the names from going for a reason at a time; None when nothing does."""
        found = (self._entries.get((reason, name)) for name in keys)
        return next(
            (backoff_entry for backoff_entry in found if backoff_entry is not None and backoff_entry.until > now), None
        )

    def active_keys(self, now: float) -> Mapping[str, frozenset[str]]:
        """By reason, every key that is in backoff at a time."""
        keys: defaultdict[str, set[str]] = defaultdict(set)
        for (reason, key), entry in self._entries.items():
            if entry.until > now:
                keys[reason].add(key)
        return {reason: frozenset(keys_of_reason) for reason, keys_of_reason in keys.items()}

    def excluded_nodes(self, nodes: Sequence[StateNode], now: float) -> Mapping[DisruptionReason, frozenset[str]]:
        """By reason, the nodes in backoff at a time: by their own key, their NodePool's, or that of an owner of their pods."""
        active = self.active_keys(now)
        keys_by_node = {node.key: frozenset(_keys_of_node(node)) for node in nodes} if active else {}
        return {
            reason: frozenset(key for key, keys in keys_by_node.items() if not keys.isdisjoint(active[reason]))
            for reason in DisruptionReason
            if reason in active
        }

    def next_expiry(self) -> float | None:
        """When the next backoff ends, on the clock of ``now``; None if nothing is in backoff."""
        now = self._now()
        return min(
            (backoff_entry.until for backoff_entry in self._entries.values() if backoff_entry.until > now), default=None
        )


def _keys_of_node(node: StateNode) -> Iterator[str]:
    yield node.key
    yield from nodepool_backoff_keys((node.pool,))
    yield from owner_backoff_keys(node.pods)


def _backoff_seconds(key: str, failures: int) -> float:
    """Doubling, with a part that depends on the name and the count and on nothing else."""
    seconds = _BACKOFF.delay(failures)
    share = zlib.crc32(f"{key}/{failures}".encode()) / 2**32
    return float(seconds * (1 + _JITTER * share))


#: How long after a move a node bought for its pods' owner undoes it.
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
                cause = "a machine was bought for pods of an owner whose pods had been moved just before"
                self._backoff.record_failure(DisruptionReason.UNDERUTILIZED, (name,), cause)
                _log.info("consolidation was undone", owner=name, error=cause)


def owner_backoff_keys(pods: Iterable[Pod]) -> Iterator[str]:
    """The keys under which owners of pods are in backoff."""
    for pod in pods:
        for owner in pod.metadata.owner_references:
            if owner.controller:
                yield f"{owner.kind}/{pod.metadata.namespace}/{owner.name}"


def nodepool_backoff_keys(pools: Iterable[str]) -> tuple[str, ...]:
    """The keys under which NodePools are in backoff."""
    return tuple(f"nodepool/{pool}" for pool in pools)
