"""When a packing under way need not be finished: what it costs at least is more than a search found."""

from __future__ import annotations

from collections.abc import Iterable

from karpenter.scheduling.demand import Packing, SchedulingNodeClaim
from karpenter.scheduling.objective import Objective

#: How far a lower bound of a thinned linear program may be off, as a share of it.
MARGIN_OF_BOUND = 0.02


class CostCeiling:
    """The cost of a searched packing, and what another packing of the same pods costs at least, claim by claim.

    Its claims cost what they cost, and pods that still wait at least what the lower bound of the search says.
    """

    def __init__(self, searched: Packing, pods_left: Iterable[int], objective: Objective) -> None:
        self._objective = objective
        self._values = searched.bound_values
        self._least = sum(self._values.get(at, 0.0) * count for at, count in enumerate(pods_left))
        self._most = searched.objective_value + MARGIN_OF_BOUND * self._least

    def is_exceeded_with(self, claims: Iterable[SchedulingNodeClaim]) -> bool:
        """Whether the other packing costs more than the searched one in any case, now that it has these claims as well."""
        added = list(claims)
        self._least += self._objective.total_cost(added)
        self._least -= sum(self._values.get(at, 0.0) * count for claim in added for at, count in claim.contents)
        return self._least > self._most
