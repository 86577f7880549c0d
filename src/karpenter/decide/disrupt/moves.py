"""One consolidation move, judged: may these machines go, what for, and is it worth it (DIS §8, §10)?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from karpenter.decide.disrupt.balanced import Scales
from karpenter.decide.disrupt.command import Candidate, Command, ConsolidationType, DisruptionReason
from karpenter.decide.disrupt.prices import Bargain, Refusal, bargain, unlike
from karpenter.decide.disrupt.simulation import Impossible, World
from karpenter.decide.provision.prepared import Relocated

_TOO_LITTLE = "Consolidation would save too little for what it disrupts"


_SAME = "Can't replace with a cheaper node, the same node would be bought again"


@dataclass(frozen=True)
class Reused(Refusal):
    """Some of the machines (by key) would only be bought once more; ``anyway`` is what the move would be nevertheless."""

    keys: frozenset[str]
    anyway: Command | Refusal


@dataclass(frozen=True)
class Settings:
    """What moves depend on beside the cluster. ``spot_to_spot``: the gate of DIS-200."""

    spot_to_spot: bool = False


class Moves:
    """Judges moves in one world; nothing is settled here."""

    def __init__(self, world: World, scales: Scales, settings: Settings) -> None:
        self.world = world
        self.scales = scales
        self._settings = settings

    def delete(self, candidate: Candidate) -> Command | None:
        """The machine goes and its pods move to machines that exist; None where they do not fit or it is not worth it."""
        if not self.scales.accept(self.scales.scores((candidate,), 0.0), candidate.price_per_hour):
            return None
        found = self.world.elsewhere((candidate,))
        return None if found is None else self._command((candidate,), found, None)

    def again(self, chosen: Command, candidates: Sequence[Candidate]) -> Command | None:
        """A move that was chosen before, with its machines as they are now; None where it is not right any more (DIS-272).

        It is right if what was to be bought, and nothing else, still gives every pod a place, and is still worth it.
        """
        found = self.world.as_chosen(candidates, chosen)
        if found is None:
            return None
        inside = {placed.key: placed.pods for placed in found.placed}
        bought = tuple(
            replace(planned, pods=inside[planned.name]) for planned in chosen.replacements if planned.name in inside
        )
        names = {planned.name for planned in bought}
        placed = tuple(item for item in found.placed if item.key not in names)
        price = sum(planned.price_per_hour for planned in bought)
        before = [candidate.price_per_hour for candidate in candidates]
        saving = None if None in before else sum(amount or 0.0 for amount in before) - price
        scores = self.scales.scores(candidates, price)
        if not self.scales.approve(scores) or (bought and (saving is None or saving <= 0)):
            return None
        return replace(
            chosen,
            candidates=tuple(candidates),
            replacements=bought,
            placed=placed,
            saving_per_hour=saving,
            scores=scores,
        )

    def replace(self, candidates: Sequence[Candidate]) -> Command | Refusal:
        """The machines go; what of their pods finds no room gets new machines that are cheaper (DIS-175 to DIS-182)."""
        price = sum(candidate.price_per_hour or 0.0 for candidate in candidates)
        needed = self.scales.least_saving(candidates)
        found = self.world.moved(candidates, price - needed)
        if found is None:
            return Refusal(_TOO_LITTLE if needed else "Can't replace with a cheaper node")
        if isinstance(found, Impossible):
            return Refusal(found.why)
        if not found.bought:
            return self._weighed(candidates, found, None)
        if any(candidate.price_per_hour is None for candidate in candidates):
            return Refusal("Can't replace with a cheaper node, the price of this one is not known")
        cheaper = bargain(candidates, found.bought, spot_to_spot=self._settings.spot_to_spot)
        if isinstance(cheaper, Refusal):
            return cheaper
        other = unlike(candidates, cheaper) if len(candidates) > 1 else cheaper
        if isinstance(other, Bargain):
            return self._weighed(candidates, found, other)
        return Reused(_SAME, other, self._weighed(candidates, found, cheaper))

    def _weighed(self, candidates: Sequence[Candidate], found: Relocated, cheaper: Bargain | None) -> Command | Refusal:
        command = self._command(candidates, found, cheaper)
        return command if self.scales.approve(command.scores) else Refusal(_TOO_LITTLE)

    def _command(self, candidates: Sequence[Candidate], found: Relocated, cheaper: Bargain | None) -> Command:
        replaced = cheaper.price_per_hour if cheaper is not None else 0.0
        prices = [candidate.price_per_hour for candidate in candidates]
        known = [price for price in prices if price is not None]
        return Command(
            reason=DisruptionReason.UNDERUTILIZED,
            candidates=tuple(candidates),
            replacements=found.claims(cheaper.claims) if cheaper is not None else (),
            placed=found.placed,
            consolidation_type=ConsolidationType.MULTI if len(candidates) > 1 else ConsolidationType.SINGLE,
            saving_per_hour=sum(known) - replaced if len(known) == len(prices) else None,
            scores=self.scales.scores(candidates, replaced),
        )
