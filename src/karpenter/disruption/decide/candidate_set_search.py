"""Local search over sets of candidates where there are few of them.

Choosing one move after the other works well with many nodes, since each decides little. Where a few large nodes hold everything,
the first move decides too much, and the series that saves most at each step may restart every pod. So the set is improved as a
whole: one node joins or leaves it, as long as the net saving grows (``MoveScoring.net_saving``, saving less what NodePools
require for the disruption).

Packing new nodes is expensive, finding the pods that need one is cheap. So a set is first scored by an estimate: its price less
the usual cost of new nodes for pods without room. Only the most promising sets are packed. The search starts from the moves
found before, and from all nodes but the one with the highest disruption cost. Single nodes are estimated besides: one that is
worth as much as all that were chosen is not among the sets that changes of one node come to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from karpenter.disruption.decide.command import Candidate, Command, DisruptionReason
from karpenter.disruption.decide.move_evaluation import MoveEvaluator, SameTypeReplacement, whole_move
from karpenter.disruption.decide.remaining_budgets import RemainingBudgets

#: With more nodes than that no single one decides much.
MAX_CANDIDATES = 16
#: So often a choice changes by one node, and so many choices are packed.
_MAX_CHANGES = 8
_MAX_PACKED_SETS = 4
#: What new nodes usually come to, as a multiple of the least they can cost.
_USUAL_PACKING_FACTOR = 1.05
_TINY = 1e-6

_CandidateKeys = frozenset[str]


class CandidateSetSearch:
    """Searches sets of a few candidates, in a simulation to which no consolidation is applied yet."""

    def __init__(self, candidates: Iterable[Candidate], evaluator: MoveEvaluator, budgets: RemainingBudgets) -> None:
        self._candidates = {candidate.key: candidate for candidate in candidates if candidate.price_per_hour}
        self._evaluator = evaluator
        self._budgets = budgets
        self._estimates: dict[_CandidateKeys, float] = {}

    def improvement_on(self, commands: Sequence[Command]) -> Command | None:
        """A single move that is worth more than these are together; None where none was found."""
        candidates = [candidate for command in commands for candidate in command.candidates]
        if not self._candidates or any(candidate.key not in self._candidates for candidate in candidates):
            return None
        worth = self._evaluator.scoring.net_saving(candidates, sum(each.saving_per_hour or 0.0 for each in commands))
        for start in self._start_sets(candidates):
            self._hill_climb(start)
        for key in self._candidates:
            alone = frozenset((key,))
            if self._is_allowed(alone):
                self._estimate(alone)
        best: Command | None = None
        for keys in sorted(self._estimates, key=lambda keys: (-self._estimates[keys], sorted(keys)))[:_MAX_PACKED_SETS]:
            command = self._packed(keys)
            if command is not None and (net_saving := self._net_saving(command)) > worth + _TINY:
                best, worth = command, net_saving
        return None if best is None else self._keeping_same_type(best)

    def _keeping_same_type(self, best: Command) -> Command:
        """The move, or a better one that keeps a node of a type that a new one would have (DIS-212)."""
        for _ in range(_MAX_CHANGES):
            keys = frozenset(candidate.key for candidate in best.candidates)
            result = self._evaluator.replace(self._members(keys))
            same_type = sorted(result.same_type_keys) if isinstance(result, SameTypeReplacement) else []
            others = (self._packed(keys - {key}) for key in same_type)
            better = (other for other in others if other and self._net_saving(other) > self._net_saving(best) + _TINY)
            kept = max(better, key=self._net_saving, default=None)
            if kept is None:
                break
            best = kept
        return best

    def _start_sets(self, chosen_candidates: Iterable[Candidate]) -> Iterator[_CandidateKeys]:
        yield frozenset(candidate.key for candidate in chosen_candidates)
        busiest = max(self._candidates.values(), key=lambda candidate: candidate.disruption_cost)
        others = frozenset(self._candidates) - {busiest.key}
        if self._is_allowed(others):
            yield others

    def _hill_climb(self, start: _CandidateKeys) -> None:
        """From choice to choice, by the estimate, until no change of one node makes it better."""
        at = start
        for _ in range(_MAX_CHANGES):
            nearby = max(self._neighbours(at), key=self._estimate, default=at)
            if self._estimate(nearby) <= self._estimate(at) + _TINY:
                return
            at = nearby

    def _neighbours(self, at: _CandidateKeys) -> Iterator[_CandidateKeys]:
        return (keys for key in self._candidates if self._is_allowed(keys := at ^ {key}))

    def _is_allowed(self, keys: _CandidateKeys) -> bool:
        taken = Counter(self._candidates[key].node_pool for key in keys)
        left = self._budgets.remaining
        return bool(keys) and all(n <= left(pool, DisruptionReason.UNDERUTILIZED) for pool, n in taken.items())

    def _estimate(self, keys: _CandidateKeys) -> float:
        """What the choice is worth if new nodes are packed as they usually are."""
        estimate = self._estimates.get(keys)
        if estimate is None:
            members = self._members(keys)
            price = sum(candidate.price_per_hour or 0.0 for candidate in members)
            saving = price - _USUAL_PACKING_FACTOR * self._evaluator.simulation.minimum_new_price(members)
            estimate = self._estimates[keys] = self._evaluator.scoring.net_saving(members, saving)
        return estimate

    def _members(self, keys: _CandidateKeys) -> list[Candidate]:
        return [candidate for key, candidate in self._candidates.items() if key in keys]

    def _packed(self, keys: _CandidateKeys) -> Command | None:
        return whole_move(self._evaluator.replace(self._members(keys)))

    def _net_saving(self, command: Command) -> float:
        return self._evaluator.scoring.net_saving(command.candidates, command.saving_per_hour or 0.0)
