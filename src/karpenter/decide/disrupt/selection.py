"""Which machines go and which stay, weighed as a whole where they are few.

One move after the other comes out well where there are many machines: each of them decides little. Where a few large ones hold
everything the first decides too much, and what saves most at every step may end with everybody restarted. So there the machines
that go are chosen once more, together: one that would go stays, or another goes as well, as long as that is *worth* more
(``Scales.worth``). The last few cents are not worth another hundred restarts.

Packing new machines is dear, finding out who needs one is not. So a choice is first judged by what its machines cost, less what
new ones for those who find no room usually come to; the most promising few are packed. The search begins with what the moves
came to, and once more with all machines but that whose pods are dearest to disrupt: most of them can stay where they are then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from karpenter.decide.disrupt.allowances import Allowances
from karpenter.decide.disrupt.command import Candidate, Command, DisruptionReason
from karpenter.decide.disrupt.moves import Moves, Reused

#: With more machines than that no single one decides much.
FEW = 16
#: So often a choice changes by one machine, and so many choices are packed.
_CHANGES = 8
_PACKED = 4
#: What new machines usually come to, as a multiple of the least they can cost.
_USUAL = 1.05
_TINY = 1e-6

_Keys = frozenset[str]


class Selection:
    """Choices among a few machines, in a world in which nothing is settled for money yet."""

    def __init__(self, candidates: Iterable[Candidate], moves: Moves, allowances: Allowances) -> None:
        self._candidates = {candidate.key: candidate for candidate in candidates if candidate.price_per_hour}
        self._moves = moves
        self._allowances = allowances
        self._estimates: dict[_Keys, float] = {}

    def better(self, than: Sequence[Command]) -> Command | None:
        """A single move that is worth more than these are together; None where none was found."""
        known = [candidate for command in than for candidate in command.candidates]
        if not self._candidates or any(candidate.key not in self._candidates for candidate in known):
            return None
        worth = self._moves.scales.worth(known, sum(command.saving_per_hour or 0.0 for command in than))
        for start in self._starts(known):
            self._climb(start)
        best: Command | None = None
        for keys in sorted(self._estimates, key=lambda keys: (-self._estimates[keys], sorted(keys)))[:_PACKED]:
            command = self._packed(keys)
            if command is not None and (found := self._worth_of(command)) > worth + _TINY:
                best, worth = command, found
        return best

    def _starts(self, known: Iterable[Candidate]) -> Iterator[_Keys]:
        yield frozenset(candidate.key for candidate in known)
        busiest = max(self._candidates.values(), key=lambda candidate: candidate.disruption_cost)
        others = frozenset(self._candidates) - {busiest.key}
        if self._is_allowed(others):
            yield others

    def _climb(self, start: _Keys) -> None:
        """From choice to choice, by the estimate, until no change of one machine makes it better."""
        at = start
        for _ in range(_CHANGES):
            nearby = max(self._nearby(at), key=self._estimate, default=at)
            if self._estimate(nearby) <= self._estimate(at) + _TINY:
                return
            at = nearby

    def _nearby(self, at: _Keys) -> Iterator[_Keys]:
        return (keys for key in self._candidates if self._is_allowed(keys := at ^ {key}))

    def _is_allowed(self, keys: _Keys) -> bool:
        taken = Counter(self._candidates[key].pool for key in keys)
        left = self._allowances.left
        return bool(keys) and all(n <= left(pool, DisruptionReason.UNDERUTILIZED) for pool, n in taken.items())

    def _estimate(self, keys: _Keys) -> float:
        """What the choice is worth if new machines are packed as they usually are."""
        known = self._estimates.get(keys)
        if known is None:
            members = self._members(keys)
            price = sum(candidate.price_per_hour or 0.0 for candidate in members)
            saving = price - _USUAL * self._moves.world.least_beside(members)
            known = self._estimates[keys] = self._moves.scales.worth(members, saving)
        return known

    def _members(self, keys: _Keys) -> list[Candidate]:
        return [candidate for key, candidate in self._candidates.items() if key in keys]

    def _packed(self, keys: _Keys) -> Command | None:
        found = self._moves.replace(self._members(keys))
        command = found.anyway if isinstance(found, Reused) else found
        return command if isinstance(command, Command) else None

    def _worth_of(self, command: Command) -> float:
        return self._moves.scales.worth(command.candidates, command.saving_per_hour or 0.0)
