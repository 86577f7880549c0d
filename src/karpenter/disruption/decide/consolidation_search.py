"""Consolidation search over the whole cluster: delete nodes whose pods fit elsewhere, then replace sets of nodes.

Every move is found with the engine that schedules pending pods, so it may be n to m: several nodes for one, fewer for many, a
few small ones for a large one. A move is applied before the next one is searched, so all moves of a pass fit together and keep
within budgets together. There is no time limit that would leave candidates unevaluated, and no NodePool waits for another.

1. *Delete.* Candidates in the order of saving per disruption cost. A node that takes pods of others stays in this pass, so that
   no pod moves twice.
2. *Replace sets.* The candidates with the highest price beyond what their pods need form a set, as many as budgets allow, then
   half as many, and so on; the set that saves most wins. Candidates whose replacement would be of their own type leave the set
   (DIS-210): keeping them costs the same and moves no pod. Parts of the set that share no replacement become commands of their
   own. Repeated until no set saves anything.
3. *Replace single nodes* that no set contains.

Cost: a question per candidate for 1 and 3, and a logarithmic number of sets per round for 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from karpenter.disruption.decide.command import Candidate, Command, DisruptionReason, PendingCommand
from karpenter.disruption.decide.connected_parts import split_into_parts
from karpenter.disruption.decide.costs import candidate_order
from karpenter.disruption.decide.move_blockers import MoveBlocker
from karpenter.disruption.decide.move_evaluation import MoveEvaluator, SameTypeReplacement, whole_move
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets
from karpenter.disruption.decide.replacement_prices import MoveRejection

_REASON = DisruptionReason.UNDERUTILIZED
#: So often a set is planned anew without nodes that would only be launched once more.
_MAX_PRUNINGS = 6
_TINY = 1e-9
#: Sets of so many nodes come first: a command is carried out as a whole or not at all.
_SMALL_SET = 16


@dataclass(frozen=True)
class ConsolidationResult:
    """The moves found. ``rejections``: why candidates that were evaluated alone stay, by key.

    ``limited_by_budgets``: whether budgets kept a candidate from being evaluated.
    """

    commands: tuple[Command, ...]
    rejections: Mapping[str, MoveBlocker]
    limited_by_budgets: bool


class ConsolidationSearch:
    """One search over the candidates."""

    def __init__(self, candidates: Sequence[Candidate], evaluator: MoveEvaluator, budgets: RemainingBudgets) -> None:
        self._failed_moves = evaluator.settings.failed_moves
        by_failures = sorted(candidates, key=lambda c: (self._failed_moves.count(_REASON, c.key), candidate_order(c)))
        self._remaining = {candidate.key: candidate for candidate in by_failures}
        self._evaluator = evaluator
        self._budgets = budgets
        self._commands: list[Command] = []
        self._rejections: dict[str, MoveBlocker] = {}

    def run(self, pending_commands: Iterable[PendingCommand] = ()) -> ConsolidationResult:
        """Find all moves. ``pending_commands`` of an earlier pass come first, as far as they are still valid."""
        for earlier in pending_commands:
            self._revalidate(earlier)
        self._delete()
        while (command := self._best_set()) is not None:
            for part in split_into_parts(command, self._evaluator):
                self._apply(part)
        self._replace_single_nodes()
        budgets, left = self._budgets, self._remaining.values()
        is_limited = any(budgets.remaining(candidate.node_pool, _REASON) <= 0 for candidate in left)
        return ConsolidationResult(tuple(self._commands), self._rejections, is_limited)

    def _apply(self, command: Command) -> None:
        self._evaluator = self._evaluator.after(command)
        for candidate in command.candidates:
            self._budgets.consume(candidate.node_pool)
            del self._remaining[candidate.key]
        for placed in command.placed_on_existing:
            self._remaining.pop(placed.node_key, None)
        self._commands.append(command)

    def _revalidate(self, pending: PendingCommand) -> None:
        keys = pending.candidate_keys
        candidates = [self._remaining[key] for key in keys if key in self._remaining]
        if len(candidates) == len(keys) == len(self._within_budgets(candidates)):
            command = self._evaluator.revalidate(pending, candidates)
            if command is not None:
                self._apply(command)

    def _delete(self) -> None:
        for candidate in tuple(self._remaining.values()):
            if candidate.key in self._remaining and self._budgets.remaining(candidate.node_pool, _REASON) > 0:
                command = self._evaluator.delete(candidate)
                if command is not None:
                    self._apply(command)

    # -- sets ---------------------------------------------------------------------------------------------------------------

    def _best_set(self) -> Command | None:
        """The set of nodes that saves most when it is planned anew; None where none saves anything."""
        wasteful = sorted(
            (
                candidate
                for candidate in self._remaining.values()
                if self._budgets.remaining(candidate.node_pool, _REASON) > 0 and self._may_join_a_set(candidate)
            ),
            key=self._excess_price_order,
        )
        candidates = self._within_budgets(wasteful)
        return self._best_of(candidates, self._sizes(1, min(_SMALL_SET, len(candidates)))) or self._best_of(
            candidates, self._sizes(_SMALL_SET, len(candidates))
        )

    def _may_join_a_set(self, candidate: Candidate) -> bool:
        """A node whose replacement failed lately would make the whole set fail."""
        if not candidate.price_per_hour or self._failed_moves.is_a_replacement_in_backoff(_REASON, candidate.key):
            return False
        return self._evaluator.scoring.could_be_approved(candidate)

    @staticmethod
    def _sizes(above: int, most: int) -> list[int]:
        """The most, half of it, and so on, as long as it is more than ``above``."""
        sizes: list[int] = []
        while most > above:
            sizes.append(most)
            most //= 2
        return sizes

    def _best_of(self, candidates: Sequence[Candidate], sizes: Iterable[int]) -> Command | None:
        best: Command | None = None
        for size in sizes:
            command = self._replace_set(candidates[:size])
            if command is not None and (best is None or _saving(command) > _saving(best)):
                best = command
        return best

    def _excess_price_order(self, candidate: Candidate) -> tuple[float, str]:
        """Sort key: what a node costs beyond what its pods cost at least, per disruption, most first."""
        needed = self._evaluator.simulation.minimum_price((candidate,))
        return (-((candidate.price_per_hour or 0.0) - needed) / candidate.disruption_cost, candidate.state_node.name)

    def _within_budgets(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """The first of each pool that budgets allow; nothing is taken from them yet."""
        taken: defaultdict[str, int] = defaultdict(int)
        within_budgets: list[Candidate] = []
        for candidate in candidates:
            if taken[candidate.node_pool] < self._budgets.remaining(candidate.node_pool, _REASON):
                taken[candidate.node_pool] += 1
                within_budgets.append(candidate)
        return within_budgets

    def _replace_set(self, candidates: Sequence[Candidate]) -> Command | None:
        """The move, as far as possible without nodes that would come back as they are; None where nothing is saved.

        Without them no more may have to be launched than with them: else they are not the same, but part of a better plan.
        """
        members = list(candidates)
        best: Command | None = None
        for _ in range(_MAX_PRUNINGS):
            result = self._evaluator.replace(members) if members else None
            command = whole_move(result) if result is not None else None
            if command is not None and (best is None or _saving(command) >= _saving(best) - _TINY):
                best = command
            if not isinstance(result, SameTypeReplacement):
                break
            members = [candidate for candidate in members if candidate.key not in result.candidate_keys]
        return best

    # -- single nodes ------------------------------------------------------------------------------------------------------

    def _replace_single_nodes(self) -> None:
        for candidate in tuple(self._remaining.values()):
            if candidate.key not in self._remaining or self._budgets.remaining(candidate.node_pool, _REASON) <= 0:
                continue
            if not self._evaluator.scoring.could_be_approved(candidate):
                continue
            replace = self._evaluator.replace((candidate,))
            if isinstance(replace, MoveRejection):
                waiting = self._evaluator.room_within_consolidate_after(candidate)
                self._rejections[candidate.key] = waiting or replace.blocker
            else:
                self._apply(replace)


def _saving(command: Command) -> float:
    return command.saving_per_hour or 0.0
