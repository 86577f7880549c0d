"""Consolidation as one plan for the whole cluster: machines go whose pods fit elsewhere, then sets of machines are planned anew.

Every move is found with the engine that places waiting pods, so it may be n to m: several machines for one, fewer for many, a few
small ones for a large one. What is decided is settled before the next move is looked for, so all moves of a pass fit together and
keep within budgets together; nothing is left unseen for want of time, and no pool waits for another.

1. *Delete.* Machines in the order of what they save per disruption. A machine that takes in pods of others stays this time, so no
   pod is moved twice.
2. *Plan anew.* Of what is left, the machines that cost most beyond what their pods need go into one set, as many as budgets
   allow, then half as many, and so on; the set that saves most wins. Machines that would only be bought once more as they are
   leave the set again (DIS-210): to keep them costs the same and moves nobody. Until no set saves anything.
3. *One by one.* What no set helped may still be replaced by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from karpenter.decide.disrupt.allowances import Allowances
from karpenter.decide.disrupt.command import Candidate, Command, DisruptionReason
from karpenter.decide.disrupt.costs import order
from karpenter.decide.disrupt.moves import Moves, Reused
from karpenter.decide.disrupt.prices import Refusal

_REASON = DisruptionReason.UNDERUTILIZED
#: So often a set is planned anew without machines that would only be bought once more.
_PRUNINGS = 6
_TINY = 1e-9


class Replan:
    """One pass over the candidates."""

    def __init__(self, candidates: Sequence[Candidate], moves: Moves, allowances: Allowances) -> None:
        self._left = {candidate.key: candidate for candidate in sorted(candidates, key=order)}
        self._moves = moves
        self._allowances = allowances
        self.commands: tuple[Command, ...] = ()
        #: Why machines that were looked at by themselves stay, by key.
        self.refused: dict[str, str] = {}

    def run(self, chosen: Iterable[frozenset[str]] = ()) -> None:
        """Find all moves. ``chosen``: sets of machines an earlier pass has chosen; they go first if that is still right."""
        for keys in chosen:
            self._try_again(keys)
        self._delete()
        while (command := self._best_set()) is not None:
            self._settle(command)
        self._one_by_one()

    @property
    def is_bound(self) -> bool:
        """Whether budgets kept some machine from being looked at."""
        return any(self._allowances.left(candidate.pool, _REASON) <= 0 for candidate in self._left.values())

    def _settle(self, command: Command) -> None:
        self._moves.world.settle(command.candidates, command.placed)
        for candidate in command.candidates:
            self._allowances.take(candidate.pool)
            del self._left[candidate.key]
        for placed in command.placed:
            self._left.pop(placed.key, None)
        self.commands = (*self.commands, command)

    def _try_again(self, keys: frozenset[str]) -> None:
        found = [self._left[key] for key in sorted(keys) if key in self._left]
        if len(found) < len(keys) or len(self._within_budgets(found)) < len(found):
            return
        again = self._planned_anew(found)
        if again is not None:
            self._settle(again)

    def _delete(self) -> None:
        for candidate in tuple(self._left.values()):
            if candidate.key in self._left and self._allowances.left(candidate.pool, _REASON) > 0:
                command = self._moves.delete(candidate)
                if command is not None:
                    self._settle(command)

    # -- sets ---------------------------------------------------------------------------------------------------------------

    def _best_set(self) -> Command | None:
        """The set of machines that saves most when it is planned anew; None where none saves anything."""
        wasteful = sorted(
            (c for c in self._left.values() if c.price_per_hour and self._moves.scales.could_approve(c)),
            key=self._waste,
        )
        found = self._within_budgets(wasteful)
        best: Command | None = None
        size = len(found)
        while size > 1:
            command = self._planned_anew(found[:size])
            if command is not None and (best is None or _saving(command) > _saving(best)):
                best = command
            size //= 2
        return best

    def _waste(self, candidate: Candidate) -> tuple[float, str]:
        """Sort key: what a machine costs beyond what its pods cost at least, per disruption, most first."""
        needed = self._moves.world.least_price((candidate,))
        return (-((candidate.price_per_hour or 0.0) - needed) / candidate.disruption_cost, candidate.view.name)

    def _within_budgets(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """The first of each pool that budgets allow; nothing is taken from them yet."""
        taken: defaultdict[str, int] = defaultdict(int)
        found: list[Candidate] = []
        for candidate in candidates:
            if taken[candidate.pool] < self._allowances.left(candidate.pool, _REASON):
                taken[candidate.pool] += 1
                found.append(candidate)
        return found

    def _planned_anew(self, candidates: Sequence[Candidate]) -> Command | None:
        """The move, as far as possible without machines that would come back as they are; None where nothing is saved.

        Without them nothing more may have to be bought than with them: else they are not the same, but part of a better plan.
        """
        members = list(candidates)
        best: Command | None = None
        for _ in range(_PRUNINGS):
            found = self._moves.replace(members) if members else None
            command = found.anyway if isinstance(found, Reused) else found
            if isinstance(command, Command) and (best is None or _saving(command) >= _saving(best) - _TINY):
                best = command
            if not isinstance(found, Reused):
                break
            members = [candidate for candidate in members if candidate.key not in found.keys]
        return best

    # -- single machines ------------------------------------------------------------------------------------------------------

    def _one_by_one(self) -> None:
        for candidate in tuple(self._left.values()):
            if candidate.key not in self._left or self._allowances.left(candidate.pool, _REASON) <= 0:
                continue
            if not self._moves.scales.could_approve(candidate):
                continue
            found = self._moves.replace((candidate,))
            if isinstance(found, Refusal):
                self.refused[candidate.key] = found.why
            else:
                self._settle(found)


def _saving(command: Command) -> float:
    return command.saving_per_hour or 0.0
