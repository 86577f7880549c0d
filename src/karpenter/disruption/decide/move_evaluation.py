"""Evaluates one consolidation move: do the pods of these nodes fit elsewhere, at what price, and is it worth it (DIS §8, §10)?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from karpenter.disruption.decide.balanced import MoveScoring
from karpenter.disruption.decide.command import (
    Candidate,
    Command,
    ConsolidationType,
    DisruptionReason,
    PendingCommand,
    saving_per_hour,
)
from karpenter.disruption.decide.failed_moves import NO_FAILED_MOVES, FailedMoves
from karpenter.disruption.decide.move_blockers import (
    MoveBlocker,
    MoveFailedRecently,
    NotCheaper,
    PriceUnknown,
    ReplacementsUnready,
    RoomWithinConsolidateAfter,
    SameTypeAgain,
    SavingTooSmall,
    SpotToSpotDisabled,
)
from karpenter.disruption.decide.replacement_prices import (
    SPOT,
    CheaperReplacement,
    MoveRejection,
    are_spot,
    cheaper_replacement,
    without_same_types,
)
from karpenter.disruption.decide.scheduling_simulation import SchedulingSimulation, UnreschedulablePods
from karpenter.disruption.decide.staying_nodes import StayingNodes
from karpenter.model.requirements import Requirements
from karpenter.scheduling.demand import SchedulingNodeClaim
from karpenter.scheduling.whatif.questions import ReschedulingResult, TooExpensive
from karpenter.scheduling.whatif.refused_nodes import RefusedNodes


@dataclass(frozen=True)
class SameTypeReplacement(MoveRejection):
    """Replacements of some candidates (by key) would be of their own type; ``full_move`` is the move that includes them.

    ``same_type_keys``: all candidates whose type some replacement could have.
    """

    candidate_keys: frozenset[str]
    same_type_keys: frozenset[str]
    full_move: Command | MoveRejection


@dataclass(frozen=True)
class ConsolidationSettings:
    """What moves depend on beside the cluster. ``spot_to_spot``: the gate of DIS-200."""

    spot_to_spot: bool = False
    failed_moves: FailedMoves = NO_FAILED_MOVES


@dataclass(frozen=True, eq=False)
class MoveEvaluator:
    """Evaluates moves in one simulation."""

    simulation: SchedulingSimulation
    scoring: MoveScoring
    settings: ConsolidationSettings
    #: Why single nodes stay; most nodes are like another one.
    _known: StayingNodes = field(default_factory=StayingNodes)

    def after(self, command: Command) -> MoveEvaluator:
        """The evaluator of further moves, with the command done."""
        settings = replace(self.settings, failed_moves=self.settings.failed_moves.after(command))
        return replace(self, simulation=self.simulation.after(command), settings=settings, _known=StayingNodes())

    def delete(self, candidate: Candidate) -> Command | None:
        """Delete the node and move its pods to existing nodes; None if they do not fit or the move is not worth it."""
        alike = self._known.alike(candidate, self.simulation)
        if alike in self._known.not_deletable:
            return None
        if not self.scoring.are_acceptable(self.scoring.scores((candidate,), 0.0), candidate.price_per_hour):
            return None
        if self.settings.failed_moves.is_deletion_in_backoff(DisruptionReason.UNDERUTILIZED, candidate.key):
            return None
        place = self.simulation.place_on_existing((candidate,))
        if place is None:
            if alike is not None:
                self._known.not_deletable.add(alike)
            return None
        command = self._command((candidate,), place, None)
        return command if self.scoring.are_acceptable(command.scores, candidate.price_per_hour) else None

    def room_within_consolidate_after(self, candidate: Candidate) -> RoomWithinConsolidateAfter | None:
        """That the node's pods fit on other nodes once those may take pods of others; None if they do not."""
        alike = self._known.alike(candidate, self.simulation)
        if alike in self._known.waiting:
            return self._known.waiting[alike]
        hosts = self.simulation.place_within_consolidate_after(candidate)
        waiting = RoomWithinConsolidateAfter(tuple(sorted(hosts)), until=max(hosts.values())) if hosts else None
        if alike is not None:
            self._known.waiting[alike] = waiting
        return waiting

    def revalidate(self, pending: PendingCommand, candidates: Sequence[Candidate]) -> Command | None:
        """A move that was chosen before, with its nodes as they are now; None where it is not right any more (DIS-272).

        It is right if its replacements, and no other new nodes, still give every pod a place, and is still worth it.
        """
        place = self.simulation.place_as_planned(candidates, pending)
        if place is None:
            return None
        pods_by_node = {placed.node_key: placed.pods for placed in place.placements}
        replacements = tuple(
            replace(replacement, pods=pods_by_node[replacement.name])
            for replacement in pending.replacements
            if replacement.name in pods_by_node
        )
        names = {replacement.name for replacement in replacements}
        placed = tuple(placed_pods for placed_pods in place.placements if placed_pods.node_key not in names)
        price = sum(planned.cost_per_hour for planned in replacements)
        price += self.simulation.arrivals.added_cpu_surplus(candidates, placed)
        saving = saving_per_hour(candidates, price)
        scores = self.scoring.scores(candidates, price)
        if not self.scoring.are_approved(scores) or (replacements and (saving is None or saving <= 0)):
            return None
        command = Command(
            reason=DisruptionReason.UNDERUTILIZED,
            consolidation_type=pending.consolidation_type,
            candidates=tuple(candidates),
            replacements=replacements,
            placed_on_existing=placed,
            saving_per_hour=saving,
            scores=scores,
        )
        return None if self.settings.failed_moves.has_in_backoff(command) else command

    def replace(self, candidates: Sequence[Candidate]) -> Command | MoveRejection:
        """The nodes go; what of their pods finds no room gets new nodes that are cheaper (DIS-175 to DIS-182)."""
        alike = self._known.alike(candidates[0], self.simulation) if len(candidates) == 1 else None
        known = self._known.rejections.get(alike) if alike is not None else None
        if known is not None:
            return known
        price = sum(candidate.price_per_hour or 0.0 for candidate in candidates)
        needed = self.scoring.minimum_saving(candidates)
        refused = self._refused(candidates)
        new_nodes = self.simulation.known_new_nodes(candidates, refused, price - needed)
        rejection = self._foreseen_rejection(candidates, new_nodes) if new_nodes is not None else None
        if rejection is not None:
            return rejection
        reschedule = self.simulation.reschedule_unless_refused(candidates, refused, price - needed)
        if isinstance(reschedule, RefusedNodes | TooExpensive):
            rejection = MoveRejection(_why_not_replaced(reschedule, price, needed))
            if alike is not None:
                self._known.rejections[alike] = rejection
            return rejection
        if isinstance(reschedule, UnreschedulablePods):
            return MoveRejection(reschedule.blocker)
        return self._rescheduled(candidates, reschedule)

    def _foreseen_rejection(
        self, candidates: Sequence[Candidate], new_nodes: Sequence[SchedulingNodeClaim]
    ) -> MoveRejection | None:
        """The rejection of a move to these new nodes that holds whatever goes to existing nodes; None if there is no such
        rejection.

        The reason why a set of candidates is rejected is not reported, so the exact saving of a set is not computed.
        """
        if any(candidate.price_per_hour is None for candidate in candidates):
            return MoveRejection(PriceUnknown())
        cheaper = cheaper_replacement(candidates, new_nodes, spot_to_spot=self.settings.spot_to_spot)
        if isinstance(cheaper, MoveRejection):
            return cheaper
        if len(candidates) == 1:
            return None
        other = without_same_types(candidates, cheaper)
        # CPU beyond the baseline, which is not known here, only adds to the cost of a move.
        if self.scoring.are_approved(self.scoring.scores(candidates, other.price_per_hour)):
            return None
        rejection = MoveRejection(SavingTooSmall(0.0, self.scoring.minimum_saving(candidates)))
        if isinstance(other, CheaperReplacement):
            return rejection
        return SameTypeReplacement(SameTypeAgain(), other.candidate_keys, other.same_type_keys, rejection)

    def _refused(self, candidates: Sequence[Candidate]) -> Requirements | None:
        """New nodes that are no replacement of these, whatever they cost: `cheaper_replacement` would say the same (DIS-200)."""
        if self.settings.spot_to_spot or any(candidate.price_per_hour is None for candidate in candidates):
            return None
        return SPOT if are_spot(candidates) else None

    def replace_in_parts(
        self, candidates: Sequence[Candidate], groups: Iterable[Sequence[Candidate]]
    ) -> list[Command | MoveRejection]:
        """What `replace` plans for the candidates, as one move for each group of them; groups share no new node."""
        reschedule = self.simulation.reschedule(candidates)
        assert isinstance(reschedule, ReschedulingResult)
        evaluator, moves = self, list[Command | MoveRejection]()
        for group in groups:
            part = reschedule.restricted_to(self.simulation.pods_to_place(group))
            moves.append(evaluator._rescheduled(group, part))
            evaluator = replace(evaluator, simulation=evaluator.simulation.with_arrivals(part.placements))
        return moves

    def _rescheduled(self, candidates: Sequence[Candidate], reschedule: ReschedulingResult) -> Command | MoveRejection:
        """The move of the candidates whose pods go where the simulation places them."""
        if not reschedule.new_claims:
            return self._approved_or_rejected(candidates, reschedule, None)
        if any(candidate.price_per_hour is None for candidate in candidates):
            return MoveRejection(PriceUnknown())
        cheaper = cheaper_replacement(candidates, reschedule.new_claims, spot_to_spot=self.settings.spot_to_spot)
        if isinstance(cheaper, MoveRejection):
            return cheaper
        other = without_same_types(candidates, cheaper) if len(candidates) > 1 else cheaper
        if isinstance(other, CheaperReplacement):
            return self._approved_or_rejected(candidates, reschedule, other)
        full_move = self._approved_or_rejected(candidates, reschedule, cheaper, other.price_per_hour)
        return SameTypeReplacement(SameTypeAgain(), other.candidate_keys, other.same_type_keys, full_move)

    def _approved_or_rejected(
        self,
        candidates: Sequence[Candidate],
        reschedule: ReschedulingResult,
        cheaper: CheaperReplacement | None,
        replacement_price: float | None = None,
    ) -> Command | MoveRejection:
        """The move, if it is worth it. ``replacement_price``: USD per hour that the new nodes count as, by default the least."""
        command = self._command(candidates, reschedule, cheaper, replacement_price)
        failed_moves = self.settings.failed_moves
        if node_pool := failed_moves.closed_pool(command) or failed_moves.crowded_trial_pool(command):
            return MoveRejection(ReplacementsUnready(node_pool))
        if failed_moves.has_in_backoff(command):
            return MoveRejection(MoveFailedRecently())
        if self.scoring.are_approved(command.scores):
            return command
        return MoveRejection(SavingTooSmall(command.saving_per_hour or 0.0, self.scoring.minimum_saving(candidates)))

    def _command(
        self,
        candidates: Sequence[Candidate],
        reschedule: ReschedulingResult,
        cheaper: CheaperReplacement | None,
        replacement_price: float | None = None,
    ) -> Command:
        price = replacement_price
        if price is None:
            price = cheaper.price_per_hour if cheaper is not None else 0.0
        price += self.simulation.arrivals.added_cpu_surplus(candidates, reschedule.placements)
        return Command(
            reason=DisruptionReason.UNDERUTILIZED,
            candidates=tuple(candidates),
            replacements=reschedule.to_planned_claims(cheaper.claims) if cheaper is not None else (),
            placed_on_existing=reschedule.placements,
            consolidation_type=ConsolidationType.MULTI if len(candidates) > 1 else ConsolidationType.SINGLE,
            saving_per_hour=saving_per_hour(candidates, price),
            scores=self.scoring.scores(candidates, price),
        )


def _why_not_replaced(answer: RefusedNodes | TooExpensive, price: float, needed: float) -> MoveBlocker:
    """Why no new nodes replace candidates of this price that need to save so much, in USD per hour."""
    if isinstance(answer, RefusedNodes):
        return SpotToSpotDisabled()
    if answer.minimum_price < price:
        return SavingTooSmall(price - answer.minimum_price, needed)
    return NotCheaper(price, answer.minimum_price)


def whole_move(result: Command | MoveRejection) -> Command | None:
    """The move with all its candidates, even if replacements of some would be of their own type; None if it is not worth it."""
    move = result.full_move if isinstance(result, SameTypeReplacement) else result
    return move if isinstance(move, Command) else None
