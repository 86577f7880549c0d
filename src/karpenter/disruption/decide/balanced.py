"""Scores of moves: the share of the NodePool's price that is saved over the share of its disruption cost (DIS §10).

The score compares a move with disrupting the whole NodePool, so it means the same for pools of any size. The policy Balanced is
a threshold on it. Every other NodePool has a low one, so that no pod moves for pennies (``model.consolidation_thresholds``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from karpenter.api.karpenter import NodePool
from karpenter.disruption.decide.command import Candidate, MoveScore
from karpenter.disruption.decide.costs import NodePrices, disruption_cost
from karpenter.model import consolidation_thresholds
from karpenter.model.consolidation_thresholds import LEAN_CONSOLIDATION, ConsolidationDefaults
from karpenter.state.snapshot import ClusterSnapshot

BALANCED_POLICY = "Balanced"


@dataclass(frozen=True)
class PoolTotals:
    """What the nodes of a pool cost together per hour, in USD, and what disrupting all of them would (DIS-250)."""

    price_per_hour: float
    disruption_cost: float


def pool_totals(snapshot: ClusterSnapshot, prices: NodePrices) -> Mapping[str, PoolTotals]:
    """Of every pool that has nodes."""
    price: defaultdict[str, float] = defaultdict(float)
    disruption: defaultdict[str, float] = defaultdict(float)
    for view in snapshot.nodes:
        if view.claim is not None:
            price[view.pool] += prices.price_per_hour(view) or 0.0
            disruption[view.pool] += disruption_cost(view)
    return {pool: PoolTotals(price[pool], disruption[pool]) for pool in price}


def is_balanced(pool: NodePool) -> bool:
    """Whether the NodePool has the policy Balanced (DIS-250 ff.)."""
    return pool.spec.disruption.consolidation_policy == BALANCED_POLICY


def move_score(
    pool: NodePool,
    totals_of_pool: PoolTotals | None,
    saving_per_hour: float,
    move_disruption_cost: float,
    defaults: ConsolidationDefaults = LEAN_CONSOLIDATION,
) -> MoveScore:
    """DIS-253. ``saving_per_hour`` (USD) and ``move_disruption_cost`` are the pool's part of the move."""
    price = totals_of_pool.price_per_hour if totals_of_pool is not None else 0.0
    whole = totals_of_pool.disruption_cost if totals_of_pool is not None else 0.0
    saved = saving_per_hour / price if price > 0 else 0.0
    disrupted = move_disruption_cost / whole if whole > 0 else 0.0
    value = 0.0
    if saving_per_hour > 0 and price > 0 and whole > 0:
        value = saved / disrupted if disrupted > 0 else math.inf
    return MoveScore(
        node_pool=pool.metadata.name,
        score=value,
        threshold=consolidation_thresholds.consolidation_thresholds(pool, defaults).minimum_saving_ratio,
        saving_per_hour=saving_per_hour,
        saving_fraction=saved,
        disruption_cost=move_disruption_cost,
        disruption_fraction=disrupted,
        pool_price_per_hour=price,
        pool_disruption_cost=whole,
        balanced=is_balanced(pool),
    )


class MoveScoring:
    """Weighs moves in the pools of one snapshot."""

    def __init__(
        self, snapshot: ClusterSnapshot, prices: NodePrices, defaults: ConsolidationDefaults = LEAN_CONSOLIDATION
    ) -> None:
        self._defaults = defaults
        self._pools = {pool.metadata.name: pool for pool in snapshot.pools}
        self._pool_totals = pool_totals(snapshot, prices)
        #: The scores of single nodes that go without replacement, by NodePool, price and disruption cost: every method of the
        #: search asks for them, nodes of a type with as many pods have the same, and the rest is this object's for good.
        self._deletion_scores: dict[tuple[str, float | None, float], tuple[MoveScore, ...]] = {}

    def scores(self, candidates: Sequence[Candidate], replacement_price: float) -> tuple[MoveScore, ...]:
        """The score per NodePool if the candidates go for replacements at this total price, USD per hour (DIS-251, DIS-252)."""
        if replacement_price or len(candidates) != 1:
            return self._new_scores(candidates, replacement_price)
        (candidate,) = candidates
        key = (candidate.node_pool, candidate.price_per_hour, candidate.disruption_cost)
        scores = self._deletion_scores.get(key)
        if scores is None:
            scores = self._deletion_scores[key] = self._new_scores(candidates, replacement_price)
        return scores

    def _new_scores(self, candidates: Sequence[Candidate], replacement_price: float) -> tuple[MoveScore, ...]:
        price = sum(candidate.price_per_hour or 0.0 for candidate in candidates)
        by_pool: dict[str, list[Candidate]] = {}
        for candidate in candidates:
            by_pool.setdefault(candidate.node_pool, []).append(candidate)
        move_scores: list[MoveScore] = []
        for name, own in sorted(by_pool.items()):
            share = sum(c.price_per_hour or 0.0 for c in own) / price if price > 0 else 1 / len(by_pool)
            disruption = sum(candidate.disruption_cost for candidate in own)
            saving = (price - replacement_price) * share
            total = self._pool_totals.get(name)
            move_scores.append(move_score(self._pools[name], total, saving, disruption, self._defaults))
        return tuple(move_scores)

    def minimum_saving(self, candidates: Sequence[Candidate]) -> float:
        """USD per hour below which no pool approves, whatever they are replaced by."""
        move_scores = self.scores(candidates, 0.0)
        whole = sum(score.saving_per_hour for score in move_scores)
        needed = 0.0
        for score in move_scores:
            if score.saving_per_hour > 0 and score.pool_price_per_hour > 0:
                least = score.threshold * score.disruption_fraction * score.pool_price_per_hour
                needed = max(needed, least * whole / score.saving_per_hour)
        return needed

    def net_saving(self, candidates: Sequence[Candidate], saving_per_hour: float) -> float:
        """What a move is worth beside others, in USD per hour: its saving beyond what pools want for what it disrupts.

        Pools want a share of what they cost, and cost less the more is done. So it is reckoned at what they cost half-way, as if
        all were done in small steps and each of them weighed by itself.
        """
        pools = {candidate.node_pool for candidate in candidates}
        before = sum(self._pool_totals[pool].price_per_hour for pool in pools if pool in self._pool_totals)
        half_way = (before - saving_per_hour / 2) / before if before > 0 else 0.0
        return saving_per_hour - self.minimum_saving(candidates) * half_way

    def are_approved(self, scores: Iterable[MoveScore]) -> bool:
        """Whether every pool does."""
        return all(score.approved for score in scores)

    def are_acceptable(self, scores: Sequence[MoveScore], saving_per_hour: float | None) -> bool:
        """Whether every NodePool accepts the move. One with an unknown saving is accepted (DIS-192) unless a pool is Balanced."""
        is_unknown = saving_per_hour is None and not any(score.balanced for score in scores)
        return is_unknown or self.are_approved(scores)

    def could_be_approved(self, candidate: Candidate) -> bool:
        """Whether the pool would let the node go for nothing: otherwise no replacement is worth it (DIS-257)."""
        return self.are_approved(self.scores((candidate,), 0.0))
