"""Why a machine stays, all of it at once, or what is to become of it: the answer for one machine (DIS §4, its Beyond).

A pass stops at the first thing that forbids a machine, since one is enough. Whoever wants the machine gone has to know them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from karpenter.api.karpenter import NodePool
from karpenter.catalog.index import TypeIndex
from karpenter.cluster.nodes import NodeView
from karpenter.decide.disrupt.allowances import pool_nodes
from karpenter.decide.disrupt.balanced import Scales
from karpenter.decide.disrupt.calm import RollOuts, youth
from karpenter.decide.disrupt.candidates import (
    Judge,
    consolidates,
    is_consolidatable,
    is_drifted,
    quiet_from,
)
from karpenter.decide.disrupt.command import Candidate, Command, DisruptionReason
from karpenter.decide.disrupt.costs import disruption_cost
from karpenter.decide.disrupt.daemons import Misfit, misfits
from karpenter.decide.disrupt.outlook import Opening, Outlook, opening
from karpenter.model import calm, pods
from karpenter.model.budgets import UNLIMITED
from karpenter.model.pool_rules import rules_of

_EMPTY, _DRIFTED, _UNDERUTILIZED = DisruptionReason.EMPTY, DisruptionReason.DRIFTED, DisruptionReason.UNDERUTILIZED


class Cause(StrEnum):
    """What kind of thing keeps a machine."""

    MACHINE = "machine"
    POD = "pod"
    POOL = "pool"
    QUIET_TIME = "quiet-time"
    NODE_AGE = "node-age"
    ROLL_OUT = "roll-out"
    SAVING = "saving"
    MOVE = "move"
    BUDGET = "budget"
    FREEZE = "freeze"


@dataclass(frozen=True)
class Blocker:
    """One thing that keeps a machine, and the reasons for going it forbids. ``until``: when it ends by itself, where known."""

    cause: Cause
    text: str
    forbids: tuple[DisruptionReason, ...]
    until: datetime | None = None


@dataclass(frozen=True)
class Standing:
    """All there is to say about whether a machine may go.

    ``price_per_hour``: USD, None where not known. ``reasons``: those for which it would go. ``move``: what takes it now, within
    budgets; ``waiting``: what would if there were no budgets, where nothing takes it now. ``expects``: pods of machines that go
    are meant for it. ``misfits``: DaemonSets whose pods have no room on it.
    """

    view: NodeView
    price_per_hour: float | None
    reasons: tuple[DisruptionReason, ...]
    blockers: tuple[Blocker, ...] = ()
    move: Command | None = None
    waiting: Command | None = None
    expects: int = 0
    misfits: tuple[Misfit, ...] = ()
    is_assumed_consolidatable: bool = False


def standing(view: NodeView, seen: Outlook, indexes: Mapping[str, TypeIndex]) -> Standing:
    """What keeps this machine, or what is to become of it. ``view`` is one of the outlook's snapshot."""
    return _Inquiry(view, seen, indexes).standing()


class _Inquiry:
    """Everything that is asked about one machine."""

    def __init__(self, view: NodeView, seen: Outlook, indexes: Mapping[str, TypeIndex]) -> None:
        self._view = view
        self._seen = seen
        self._indexes = indexes
        self._now = seen.at
        self._judge = Judge(seen.snapshot, indexes, seen.circumstances)
        self._pool = next((pool for pool in seen.snapshot.pools if pool.metadata.name == view.pool), None)
        moving = tuple(pod for pod in view.pods if pods.needs_a_place(pod))
        self._candidate = Candidate(view, view.pool, moving, self._judge.prices.of(view), disruption_cost(moving))
        self._reasons = tuple(self._wanted())

    def _wanted(self) -> Iterator[DisruptionReason]:
        yield _UNDERUTILIZED if self._candidate.pods else _EMPTY
        if is_drifted(self._view):
            yield _DRIFTED

    def standing(self) -> Standing:
        """The answer."""
        move, free = self._taking(self._seen.limited.commands), self._taking(self._seen.free.commands)
        blockers = self._blockers()
        return Standing(
            self._view,
            self._candidate.price_per_hour,
            self._reasons,
            () if move is not None else tuple(blockers),
            move,
            free if move is None else None,
            self._expected(),
            tuple(misfits(self._seen.snapshot.daemons, self._view)),
            self._view.key in self._seen.assumed,
        )

    def _taking(self, commands: tuple[Command, ...]) -> Command | None:
        key = self._view.key
        return next((command for command in commands if key in {c.key for c in command.candidates}), None)

    def _expected(self) -> int:
        placed = (item for command in self._seen.free.commands for item in command.placed)
        return sum(len(item.pods) for item in placed if item.key == self._view.key)

    def _blockers(self) -> Iterator[Blocker]:
        """Each text once, in the order of DIS §4; those that concern no reason of this machine are left out."""
        told: set[str] = set()
        for item in self._all():
            if item.text not in told and set(item.forbids) & set(self._reasons):
                told.add(item.text)
                yield item
        for blocked in (*self._seen.free.blocked, *self._seen.limited.blocked):
            if blocked.view.key == self._view.key and blocked.why not in told:
                told.add(blocked.why)
                yield Blocker(Cause.MOVE, blocked.why, self._reasons)

    def _all(self) -> Iterator[Blocker]:
        if self._view.claim is None:
            yield Blocker(Cause.MACHINE, "Node has no NodeClaim: it is not managed", tuple(DisruptionReason))
            return
        for text in self._judge.obstacles(self._view):
            yield Blocker(Cause.MACHINE, text, tuple(DisruptionReason))
        yield from self._pods()
        if self._pool is None:
            return
        yield from self._limits()
        yield from self._calm(self._pool)
        yield from self._budgets(self._pool)

    def _pods(self) -> Iterator[Blocker]:
        """Pods that object; drift waits for none of them where the claim says how long a drain may take (DIS-082)."""
        claim = self._view.claim
        is_waived = claim is not None and claim.spec.termination_grace_period is not None
        forbids = (_EMPTY, _UNDERUTILIZED) if is_waived else tuple(DisruptionReason)
        for pod, text in self._judge.objections(self._view):
            protection = pods.protection(pod, self._now)
            until = protection.until if protection is not None and protection.active else None
            yield Blocker(Cause.POD, text, forbids, until)

    def _limits(self) -> Iterator[Blocker]:
        """What the pool rules out for good."""
        if self._view.pool not in self._indexes:
            return  # the machine's own obstacles say so
        for text in self._judge.limits(self._candidate):
            yield Blocker(Cause.POOL, text, (_UNDERUTILIZED,))
        blocked = self._judge.for_emptiness(self._candidate)
        if blocked is not None:
            yield Blocker(Cause.POOL, blocked.why, (_EMPTY,))

    def _calm(self, pool: NodePool) -> Iterator[Blocker]:
        if not consolidates(pool):
            return
        if not is_consolidatable(self._view) and self._view.initialized:
            until = quiet_from(self._view, pool)
            text = (
                f"consolidateAfter {pool.spec.disruption.consolidate_after} since the last pod came or went is not over"
            )
            yield Blocker(Cause.QUIET_TIME, text, (_EMPTY, _UNDERUTILIZED), until)
        if young := youth(self._candidate, pool, self._now):
            yield Blocker(Cause.NODE_AGE, young, (_UNDERUTILIZED,), self._of_age(pool))
        for text in RollOuts(self._seen.snapshot).all_holding(self._candidate):
            yield Blocker(Cause.ROLL_OUT, text, (_UNDERUTILIZED,))
        yield from self._saving(pool)

    def _of_age(self, pool: NodePool) -> datetime | None:
        created = self._view.claim.metadata.creation_timestamp if self._view.claim is not None else None
        try:
            return created + calm.of_pool(pool).minimum_node_age if created is not None else None
        except OverflowError:
            return None  # a setting nobody can read holds for ever

    def _saving(self, pool: NodePool) -> Iterator[Blocker]:
        """DIS-257, in figures: what the machine would score if it went for nothing."""
        scales = Scales(self._seen.snapshot, self._judge.prices)
        if self._candidate.price_per_hour is not None and not scales.could_approve(self._candidate):
            best = scales.scores((self._candidate,), 0.0)[0].score
            least = calm.of_pool(pool).minimum_saving_ratio
            text = f"Saving is worth at most {best:.2f} of what it disrupts, the NodePool asks for {least:g}"
            yield Blocker(Cause.SAVING, text, (_UNDERUTILIZED,))

    def _budgets(self, pool: NodePool) -> Iterator[Blocker]:
        nodes = pool_nodes(self._seen.snapshot.nodes)[pool.metadata.name]
        rules = rules_of(pool, self._seen.snapshot.freeze)
        for reason in self._reasons:
            found = opening(pool, rules, nodes, reason, self._now)
            if found.frozen:
                yield Blocker(Cause.FREEZE, f'NodePool "{found.pool}" is {found.frozen}', self._reasons, found.at)
            elif not found.left:
                yield Blocker(Cause.BUDGET, budget_text(found), (reason,), found.at)


def budget_text(found: Opening) -> str:
    """What budgets allow now, as a sentence."""
    if found.allowed == UNLIMITED:
        return f'No budget of NodePool "{found.pool}" limits {found.reason.value}'
    if not found.allowed:
        return f'NodePool "{found.pool}" allows no node to go for {found.reason.value} now ({found.source})'
    away = found.allowed - found.left
    return (
        f'NodePool "{found.pool}" allows {found.allowed} node(s) at a time for {found.reason.value}, '
        f"{away} of which are away already ({found.source})"
    )
