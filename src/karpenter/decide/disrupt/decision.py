"""The disruption decision: from a snapshot to commands that do not hinder each other (DIS §3, §9).

All methods look at one snapshot in the order of DIS-055, and what one of them decides is settled for those after it; budgets are
shared. So drift and emptiness never wait for a search (Beyond of DIS-053), and every command of a pass can be carried out at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from karpenter.catalog.index import TypeIndex
from karpenter.cluster.snapshot import Snapshot
from karpenter.decide.disrupt.aftermath import aftermath
from karpenter.decide.disrupt.allowances import Allowances
from karpenter.decide.disrupt.balanced import Scales
from karpenter.decide.disrupt.calm import RollOuts, youth
from karpenter.decide.disrupt.candidates import Blocked, Circumstances, Judge, is_consolidatable
from karpenter.decide.disrupt.command import Candidate, Command, ConsolidationType, DisruptionReason
from karpenter.decide.disrupt.drift import drifted, replaced, replaced_in_place
from karpenter.decide.disrupt.emptiness import empty_candidates, within_budgets
from karpenter.decide.disrupt.moves import Moves, Settings
from karpenter.decide.disrupt.replan import Replan
from karpenter.decide.disrupt.simulation import World
from karpenter.decide.provision import Options
from karpenter.model import pods

#: So often moves are looked for anew because others would follow them.
_LOOKAHEADS = 4
_EMPTY, _DRIFTED, _UNDERUTILIZED = DisruptionReason.EMPTY, DisruptionReason.DRIFTED, DisruptionReason.UNDERUTILIZED


@dataclass(frozen=True)
class DisruptionOptions:
    """Settings a decision depends on: those of provisioning, and the gate SpotToSpotConsolidation (DIS-200)."""

    provisioning: Options = Options()
    spot_to_spot: bool = False


@dataclass(frozen=True)
class Disruptions:
    """The outcome.

    ``commands`` respect budgets together and can be carried out together, most urgent first. ``blocked``: machines that stay and
    why, each reason once. ``closed_pools``: by reason, pools that have candidates but whose budgets allow nothing at all
    (DIS-149). ``eligible``: by reason, how many machines would go if no budget forbade it (DIS-414).
    """

    commands: tuple[Command, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    closed_pools: Mapping[DisruptionReason, tuple[str, ...]] = field(default_factory=dict)
    eligible: Mapping[DisruptionReason, int] = field(default_factory=dict)


def decide_disruption(
    snapshot: Snapshot,
    indexes: Mapping[str, TypeIndex],
    circumstances: Circumstances,
    options: DisruptionOptions = DisruptionOptions(),
) -> Disruptions:
    """What to give back now. ``indexes`` holds the prepared instance types of each NodePool, by name.

    Deterministic. Costs little where no machine is a candidate; else the cluster is prepared once, and every question about it
    costs what the pods in question do.
    """
    return _Pass(snapshot, indexes, circumstances, options).disruptions()


class _Pass:
    """One decision while it is being made."""

    def __init__(
        self,
        snapshot: Snapshot,
        indexes: Mapping[str, TypeIndex],
        circumstances: Circumstances,
        options: DisruptionOptions,
    ) -> None:
        self._snapshot = snapshot
        self._indexes = indexes
        self._circumstances = circumstances
        self._options = options
        self._judge = Judge(snapshot, indexes, circumstances)
        self._allowances = Allowances(snapshot, circumstances.now)
        self._commands: list[Command] = []
        self._blocked: list[Blocked] = []
        self._closed: dict[DisruptionReason, tuple[str, ...]] = {}
        self._eligible: dict[DisruptionReason, int] = {}

    def disruptions(self) -> Disruptions:
        """The whole of it."""
        empty = self._empty()
        moving, fixed, kept = drifted(self._snapshot.nodes, self._judge, self._circumstances)
        self._blocked += kept
        movable = self._movable()
        self._tell(_EMPTY, empty)
        self._tell(_DRIFTED, (*moving, *fixed))
        self._tell(_UNDERUTILIZED, movable)
        gone = self._remove_empty(empty)
        fixed = [candidate for candidate in fixed if candidate.key not in gone]
        self._commands += replaced_in_place(fixed, self._snapshot, self._indexes, self._allowances)
        moving = [candidate for candidate in moving if candidate.key not in gone]
        if moving or movable:
            self._move(moving, movable, gone)
        blocked = {(item.view.key, item.why): item for item in self._blocked}
        return Disruptions(tuple(self._commands), tuple(blocked.values()), self._closed, self._eligible)

    def _tell(self, reason: DisruptionReason, candidates: Iterable[Candidate]) -> None:
        found = tuple(candidates)
        self._eligible[reason] = len(found)
        closed = {candidate.pool for candidate in found} & self._allowances.closed(reason)
        if closed:
            self._closed[reason] = tuple(sorted(closed))

    # -- machines without pods ----------------------------------------------------------------------------------------------

    def _empty(self) -> list[Candidate]:
        candidates, blocked = empty_candidates(self._snapshot, self._judge)
        self._blocked += blocked
        return [c for c in candidates if not self._circumstances.is_barred(_EMPTY, c.key)]

    def _remove_empty(self, candidates: list[Candidate]) -> set[str]:
        """All that budgets allow go in one command (DIS-220)."""
        taken = within_budgets(candidates, self._allowances, _EMPTY)
        if taken:
            known = [candidate.price_per_hour for candidate in taken]
            saving = sum(price for price in known if price is not None) if None not in known else None
            kind = ConsolidationType.EMPTY
            self._commands.append(Command(_EMPTY, taken, consolidation_type=kind, saving_per_hour=saving))
        return {candidate.key for candidate in taken}

    # -- machines with pods -------------------------------------------------------------------------------------------------

    def _movable(self) -> list[Candidate]:
        """Machines that consolidation may look at (DIS-101)."""
        found: list[Candidate] = []
        pools = {pool.metadata.name: pool for pool in self._snapshot.pools}
        roll_outs = RollOuts(self._snapshot)
        for view in self._snapshot.nodes:
            if not self._judge.is_ours(view) or not any(pods.needs_a_place(pod) for pod in view.pods):
                continue
            candidate = self._judge.candidate(view, _UNDERUTILIZED)
            if isinstance(candidate, Blocked):
                self._blocked.append(candidate)
                continue
            obstacle = self._judge.for_consolidation(candidate)
            if obstacle is not None:
                self._blocked.append(obstacle)
            elif is_consolidatable(view) and not self._circumstances.is_barred(_UNDERUTILIZED, view.key):
                why = youth(candidate, pools[candidate.pool], self._circumstances.now) or roll_outs.holding(candidate)
                if why:
                    self._blocked.append(Blocked(view, why, lasting=True))
                else:
                    found.append(candidate)
        return found

    def _move(self, moving: list[Candidate], movable: list[Candidate], gone: set[str]) -> None:
        """Drift, then consolidation of what is left."""
        world = self._world(gone)
        commands, blocked = replaced(moving, world, self._allowances)
        self._commands += commands
        self._blocked += blocked
        taken = self._taken()
        hosting = {placed.key for command in commands for placed in command.placed}
        left = [c for c in movable if c.key not in taken and c.key not in hosting]
        if left:
            found = self._consolidated(left, world)
            self._commands += found.commands
            views = {candidate.key: candidate.view for candidate in left}
            self._blocked += [Blocked(views[key], why, lasting=True) for key, why in sorted(found.refused.items())]

    def _taken(self) -> set[str]:
        return {candidate.key for command in self._commands for candidate in command.candidates}

    def _world(self, gone: Iterable[str]) -> World:
        world = World(self._snapshot, self._indexes, self._circumstances, self._options.provisioning, self._judge)
        world.leave_out(gone)
        return world

    def _consolidated(self, candidates: list[Candidate], world: World) -> Replan:
        """All moves, looking ahead: what would be moved again once they are done is moved in one go instead (anti-churn)."""
        before = self._allowances.copy()
        chosen = self._circumstances.chosen
        found = self._replanned(candidates, world, before.copy(), chosen)
        for _ in range(_LOOKAHEADS):
            later = () if found.is_bound or not found.commands else self._next_moves(found.commands)
            sets = [_together(command, found.commands) for command in later]
            if not sets:
                break
            chosen = (*chosen, *sets)
            again = self._world(self._taken())
            for command in self._commands:
                again.settle(command.candidates, command.placed)
            found = self._replanned(candidates, again, before.copy(), chosen)
        return found

    def _replanned(
        self, candidates: list[Candidate], world: World, allowances: Allowances, chosen: Iterable[frozenset[str]]
    ) -> Replan:
        world.shelter()
        moves = Moves(world, Scales(self._snapshot, self._judge.prices), Settings(self._options.spot_to_spot))
        replan = Replan(candidates, moves, allowances)
        replan.run(chosen)
        return replan

    def _next_moves(self, commands: Iterable[Command]) -> tuple[Command, ...]:
        """What would be moved for money once these are done."""
        done = (*self._commands, *commands)
        snapshot = aftermath(self._snapshot, done, self._indexes)
        later = _Pass(snapshot, self._indexes, replace(self._circumstances, chosen=()), self._options)
        movable = later._movable()
        return later._replanned(movable, later._world(()), later._allowances, ()).commands if movable else ()


def _together(later: Command, earlier: Iterable[Command]) -> frozenset[str]:
    """The machines of a move with those whose pods an earlier move has brought there."""
    keys = {candidate.key for candidate in later.candidates}
    found = set(keys)
    for command in earlier:
        bought = {planned.name for planned in command.replacements}
        if keys & (bought | {placed.key for placed in command.placed}):
            found |= {candidate.key for candidate in command.candidates}
            found -= bought
    return frozenset(found)
