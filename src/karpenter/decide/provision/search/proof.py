"""How cheap new machines for some pods could be at best: what a plan is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from karpenter.decide.provision.demand import Demand
from karpenter.decide.provision.search.bound import Crowds, relaxed
from karpenter.decide.provision.search.parts import parted
from karpenter.decide.provision.search.wares import Tastes, Units


def lower_bound(demands: Sequence[Demand], left_out: Mapping[int, int], units: Mapping[str, int]) -> float | None:
    """USD per hour below which no machines for these pods can be had, whoever packs them.

    The weights of pools count for nothing here, nor do fees. ``left_out`` counts pods by demand that get no machine, ``units``
    what is left of each reservation. None where the linear programme has no answer.
    """
    counts = {at: len(demand.pods) - left_out.get(at, 0) for at, demand in enumerate(demands)}
    parts = parted({at: demands[at].options for at, count in counts.items() if count > 0})
    costs = [_bound([(demands[at], counts[at]) for at in part], units) for part in parts]
    return None if None in costs else sum(cost for cost in costs if cost is not None)


def _bound(asked: Sequence[tuple[Demand, int]], units: Mapping[str, int]) -> float | None:
    demands = [demand for demand, _ in asked]
    indexes = {id(o.template.index): o.template.index for demand in demands for o in demand.options}
    measures = Units.of([demand.requests for demand in demands], list(indexes.values()))
    tastes = Tastes(measures)
    numbers = [tastes.enter(demand.options) for demand in demands]
    needs = measures.needs([demand.requests for demand in demands])
    keys = np.column_stack([needs, np.array(numbers, dtype=np.float64)])
    rows, alike = np.unique(keys, axis=0, return_inverse=True)
    pods = np.bincount(alike.ravel(), weights=np.array([float(count) for _, count in asked]))
    crowds = Crowds(pods.astype(np.float64), rows[:, :-1], [int(number) for number in rows[:, -1]])
    left = {number: units.get(name, 0) for number, name in enumerate(tastes.reservations)}
    found = relaxed(crowds, tastes.rows(), 0.0, left)
    return found.cost if found is not None else None
