"""The disruption decision: from a snapshot to commands that do not hinder each other (DIS §3, §9).

All methods look at one snapshot in the order of DIS-055, and what one of them decides is settled for those after it; budgets
are shared. So drift and emptiness never wait for a search (Beyond of DIS-053), and every command of a pass can be carried out
at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from karpenter.api.core import Pod
from karpenter.catalog.index import TypeIndex
from karpenter.cluster import nodes
from karpenter.cluster.snapshot import Snapshot
from karpenter.decide.disrupt.aftermath import aftermath
from karpenter.decide.disrupt.allowances import Allowances
from karpenter.decide.disrupt.balanced import Scales
from karpenter.decide.disrupt.calm import RollOuts, youth
from karpenter.decide.disrupt.candidates import Blocked, Circumstances, Judge, is_consolidatable
from karpenter.decide.disrupt.command import Candidate, Command, ConsolidationType, DisruptionReason
from karpenter.decide.disrupt.composed import composed
from karpenter.decide.disrupt.drift import drifted, replaced, replaced_in_place
from karpenter.decide.disrupt.emptiness import empty_candidates, within_budgets
from karpenter.decide.disrupt.moves import Moves, Settings
from karpenter.decide.disrupt.replan import Replan
from karpenter.decide.disrupt.selection import FEW, Selection
from karpenter.decide.disrupt.simulation import World
from karpenter.decide.provision import Options
from karpenter.model import pods
from karpenter.model.buffers import is_virtual

#: So many steps are gone through on paper; each saves money, so there is an end, and it is near.
_STEPS = 16
_EMPTY, _DRIFTED, _UNDERUTILIZED = DisruptionReason.EMPTY, DisruptionReason.DRIFTED, DisruptionReason.UNDERUTILIZED


@dataclass(frozen=True)
class DisruptionOptions:
    """Settings a decision depends on: those of provisioning, and the gate SpotToSpotConsolidation (DIS-200)."""

    provisioning: Options = field(default_factory=Options)
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
        self._shut: frozenset[str] = frozenset()

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
            self._move(moving, movable, gone | self._going_soon((*moving, *fixed)))
        blocked = {(item.view.key, item.why): item for item in self._blocked}
        commands = tuple(_without_virtual(command) for command in self._commands)
        return Disruptions(commands, tuple(blocked.values()), self._closed, self._eligible)

    def _going_soon(self, outdated: Iterable[Candidate]) -> set[str]:
        """Drifted machines whose turn will come: pods that move there would move twice."""
        return {candidate.key for candidate in outdated if self._allowances.allowed(candidate.pool, _DRIFTED)}

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

    def _move(self, moving: list[Candidate], movable: list[Candidate], shut: set[str]) -> None:
        """Drift, then consolidation of what is left. ``shut``: machines nobody moves to."""
        self._shut = frozenset(shut)
        world = self._world(shut)
        commands, blocked = replaced(moving, world, self._allowances)
        self._commands += commands
        self._blocked += blocked
        taken = self._taken()
        hosting = {placed.key for command in commands for placed in command.placed}
        left = [c for c in movable if c.key not in taken and c.key not in hosting]
        if left:
            self._consolidate(left, world)

    def _taken(self) -> set[str]:
        return {candidate.key for command in self._commands for candidate in command.candidates}

    def _world(self, shut: Iterable[str]) -> World:
        known = {view.key for view in self._snapshot.nodes}
        planned = (item for command in self._circumstances.chosen for item in command.replacements)
        coming = [
            nodes.view(None, item.claim, nodes.NO_USAGE, marked=False) for item in planned if item.name not in known
        ]
        options = self._options.provisioning
        world = World(self._snapshot, self._indexes, self._circumstances, options, self._judge, coming)
        world.leave_out(shut)
        return world

    def _consolidate(self, candidates: list[Candidate], world: World) -> None:
        chosen = self._circumstances.chosen
        found = self._replanned(candidates, world, self._allowances.copy(), chosen)
        first = found.commands if chosen or self._moves_pods() else self._weighed(candidates, found.commands)
        views = {candidate.key: candidate.view for candidate in candidates}
        self._blocked += [Blocked(views[key], why, lasting=True) for key, why in sorted(found.refused.items())]
        commands = first if found.is_bound or chosen else self._to_the_end(candidates, first)
        self._commands += commands
        for candidate in (candidate for command in commands for candidate in command.candidates):
            self._allowances.take(candidate.pool)

    def _to_the_end(self, candidates: Sequence[Candidate], first: tuple[Command, ...]) -> tuple[Command, ...]:
        """The moves, and what would follow once they are done, as one way (anti-churn)."""
        if self._moves_pods():
            return first  # drift moves pods as well; what comes of both is seen in the next pass
        best = first
        known = {candidate.key for candidate in candidates} | self._taken()
        steps = [*first]
        snapshot, step = self._snapshot, (*self._commands, *first)
        for _ in range(_STEPS if first else 0):
            snapshot = aftermath(snapshot, step, self._indexes)
            later = _Pass(snapshot, self._indexes, replace(self._circumstances, chosen=()), self._options)
            step = later._moves_alone()
            if not step:
                break
            steps += step
            end = aftermath(snapshot, step, self._indexes)
            found = composed(candidates, end, steps, Scales(self._snapshot, self._judge.prices))
            vanished = {view.key for view in self._snapshot.nodes} - {view.key for view in end.nodes}
            if found is None or not vanished <= known or not self._is_within_budgets(found):
                break
            best = found
        return best

    def _moves_pods(self) -> bool:
        """Whether something was decided that gives pods another place."""
        return any(command.placed or command.replacements for command in self._commands)

    def _weighed(self, candidates: Sequence[Candidate], found: tuple[Command, ...]) -> tuple[Command, ...]:
        """The moves, or where there are few machines what is worth more."""
        if not found or len(candidates) > FEW:
            return found
        moves, left = self._open(candidates, self._world(self._shut))
        better = Selection(left, moves, self._allowances).better(found)
        return found if better is None else (better,)

    def _moves_alone(self) -> tuple[Command, ...]:
        """What would be moved for money, whatever else there is to do."""
        movable = self._movable()
        if not movable:
            return ()
        return self._weighed(movable, self._replanned(movable, self._world(()), self._allowances.copy()).commands)

    def _is_within_budgets(self, commands: Iterable[Command]) -> bool:
        taken = Counter(candidate.pool for command in commands for candidate in command.candidates)
        return all(number <= self._allowances.left(pool, _UNDERUTILIZED) for pool, number in taken.items())

    def _replanned(
        self,
        candidates: Sequence[Candidate],
        world: World,
        allowances: Allowances,
        chosen: Iterable[Command] = (),
    ) -> Replan:
        moves, left = self._open(candidates, world)
        replan = Replan(left, moves, allowances)
        replan.run(chosen)
        return replan

    def _open(self, candidates: Iterable[Candidate], world: World) -> tuple[Moves, list[Candidate]]:
        """The world opened for moves for money, and those of the machines that nobody who waits is going to need."""
        world.shelter()
        scales = Scales(self._snapshot, self._judge.prices)
        moves = Moves(world, scales, Settings(self._options.spot_to_spot))
        return moves, [candidate for candidate in candidates if candidate.key not in world.expecting]


def _without_virtual(command: Command) -> Command:
    """As it is carried out: nobody waits for the virtual pods of capacity buffers, they only make sure of room."""
    inside = [item.pods for item in command.placed] + [item.pods for item in command.replacements]
    if not any(is_virtual(pod) for found in inside for pod in found):
        return command
    placed = (replace(item, pods=_real(item.pods)) for item in command.placed)
    return replace(
        command,
        placed=tuple(item for item in placed if item.pods),
        replacements=tuple(replace(item, pods=_real(item.pods)) for item in command.replacements),
    )


def _real(found: Iterable[Pod]) -> tuple[Pod, ...]:
    return tuple(pod for pod in found if not is_virtual(pod))
