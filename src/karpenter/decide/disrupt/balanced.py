"""Whether a move is worth what it disrupts: its share of the pool's price over its share of the pool's disruption (DIS §10).

The score asks how much better a move is than doing the same to the whole pool, so it means the same in pools of any size. Policy
Balanced is one threshold on it; every other pool has a low one, so that nothing is moved for pennies (`model.calm`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from karpenter.api.karpenter import NodePool
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import Snapshot
from karpenter.decide.disrupt.command import Candidate, Score
from karpenter.decide.disrupt.costs import PriceList, disruption_cost
from karpenter.model import calm, pods

BALANCED = "Balanced"


@dataclass(frozen=True)
class Totals:
    """What the machines of a pool cost together per hour, in USD, and what disrupting all of them would (DIS-250)."""

    price_per_hour: float
    disruption_cost: float


def totals(snapshot: Snapshot, prices: PriceList) -> Mapping[str, Totals]:
    """Of every pool that has machines."""
    price: defaultdict[str, float] = defaultdict(float)
    disruption: defaultdict[str, float] = defaultdict(float)
    for view in snapshot.nodes:
        if view.claim is not None:
            price[view.pool] += prices.of(view) or 0.0
            disruption[view.pool] += _disruption(view)
    return {pool: Totals(price[pool], disruption[pool]) for pool in price}


def _disruption(view: NodeView) -> float:
    return disruption_cost(pod for pod in view.pods if pods.needs_a_place(pod))


def is_balanced(pool: NodePool) -> bool:
    """Whether the pool asked for moves to be weighed (DIS-250 ff.)."""
    return pool.spec.disruption.consolidation_policy == BALANCED


def score(pool: NodePool, held: Totals | None, saving: float, disruption: float) -> Score:
    """DIS-253. ``saving`` in USD per hour and ``disruption`` are the pool's part of the move."""
    price = held.price_per_hour if held is not None else 0.0
    whole = held.disruption_cost if held is not None else 0.0
    saved = saving / price if price > 0 else 0.0
    disrupted = disruption / whole if whole > 0 else 0.0
    value = 0.0
    if saving > 0 and price > 0 and whole > 0:
        value = saved / disrupted if disrupted > 0 else math.inf
    return Score(
        pool=pool.metadata.name,
        score=value,
        threshold=calm.of_pool(pool).minimum_saving_ratio,
        saving_per_hour=saving,
        saving_fraction=saved,
        disruption_cost=disruption,
        disruption_fraction=disrupted,
        pool_price_per_hour=price,
        pool_disruption_cost=whole,
        strict=is_balanced(pool),
    )


class Scales:
    """Weighs moves in the pools of one snapshot."""

    def __init__(self, snapshot: Snapshot, prices: PriceList) -> None:
        self._pools = {pool.metadata.name: pool for pool in snapshot.pools}
        self._totals = totals(snapshot, prices)

    def scores(self, candidates: Sequence[Candidate], replacement_price: float) -> tuple[Score, ...]:
        """What each pool thinks of these going for new machines at that price in all, USD per hour (DIS-251, DIS-252)."""
        price = sum(candidate.price_per_hour or 0.0 for candidate in candidates)
        by_pool: dict[str, list[Candidate]] = {}
        for candidate in candidates:
            by_pool.setdefault(candidate.pool, []).append(candidate)
        found: list[Score] = []
        for name, own in sorted(by_pool.items()):
            share = sum(c.price_per_hour or 0.0 for c in own) / price if price > 0 else 1 / len(by_pool)
            disruption = sum(candidate.disruption_cost for candidate in own)
            saving = (price - replacement_price) * share
            found.append(score(self._pools[name], self._totals.get(name), saving, disruption))
        return tuple(found)

    def least_saving(self, candidates: Sequence[Candidate]) -> float:
        """USD per hour below which no pool approves, whatever they are replaced by."""
        found = self.scores(candidates, 0.0)
        whole = sum(item.saving_per_hour for item in found)
        needed = 0.0
        for item in found:
            if item.saving_per_hour > 0 and item.pool_price_per_hour > 0:
                least = item.threshold * item.disruption_fraction * item.pool_price_per_hour
                needed = max(needed, least * whole / item.saving_per_hour)
        return needed

    def worth(self, candidates: Sequence[Candidate], saving: float) -> float:
        """What a move is worth beside others, in USD per hour: its saving beyond what pools want for what it disrupts.

        Pools want a share of what they cost, and cost less the more is done. So it is reckoned at what they cost half-way, as if
        all were done in small steps and each of them weighed by itself.
        """
        pools = {candidate.pool for candidate in candidates}
        before = sum(self._totals[pool].price_per_hour for pool in pools if pool in self._totals)
        half_way = (before - saving / 2) / before if before > 0 else 0.0
        return saving - self.least_saving(candidates) * half_way

    def approve(self, scores: Iterable[Score]) -> bool:
        """Whether every pool does. Where no price is known there is nothing to weigh, which only Balanced takes for a no."""
        return all(item.approved or (not item.strict and item.pool_price_per_hour <= 0) for item in scores)

    def could_approve(self, candidate: Candidate) -> bool:
        """Whether the pool would let the machine go for nothing: otherwise no replacement is worth it (DIS-257)."""
        return self.approve(self.scores((candidate,), 0.0))
