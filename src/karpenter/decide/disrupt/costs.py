"""What it hurts to remove a machine, what it costs to keep it, and the order that follows (DIS §5)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodeClaim
from karpenter.catalog.index import TypeIndex
from karpenter.catalog.types import Offering
from karpenter.cluster.nodes import NodeView
from karpenter.decide.disrupt.command import Candidate
from karpenter.model import durations, labels, pods

#: What a node costs to disrupt beside its pods (DIS-046).
NODE_COST = 1.0


def disruption_cost(moving: Iterable[Pod]) -> float:
    """The node's own share and the eviction costs of the pods that need another place, none below 0 (DIS-114)."""
    return NODE_COST + sum(max(0.0, pods.eviction_cost(pod)) for pod in moving)


def lifetime_left(claim: NodeClaim, now: datetime) -> float:
    """The share of its life a claim has before it: 1 where it never expires (DIS-112)."""
    period = durations.parse_or_never(claim.spec.expire_after)
    created = claim.metadata.creation_timestamp
    if period is None or created is None or period <= timedelta(0):
        return 1.0
    return min(max((period - (now - created)) / period, 0.0), 1.0)


def order(candidate: Candidate) -> tuple[float, float, str]:
    """Sort key of candidates: most saved per disruption first, then the dearest, then by name (DIS-117, DIS-116, its Beyond)."""
    price = candidate.price_per_hour or 0.0
    return (-price / candidate.disruption_cost, -price, candidate.view.name)


class PriceList:
    """What machines that exist cost, by the offering their labels name (DIS-115)."""

    def __init__(self, indexes: Mapping[str, TypeIndex]) -> None:
        self._indexes = indexes
        self._known: dict[tuple[str, str, str, str, str], float | None] = {}

    def of(self, view: NodeView) -> float | None:
        """USD per hour, whether or not that offering can be had now; None where type, offering or price are not known.

        Of several reservations the machine's own counts, the first where it names none.
        """
        found = labels_of(view)
        names = (labels.INSTANCE_TYPE, labels.ZONE, labels.CAPACITY_TYPE, labels.RESERVATION_ID)
        kind, zone, capacity_type, reservation = (found.get(name, "") for name in names)
        key = (view.pool, kind, zone, capacity_type, reservation)
        if key not in self._known:
            self._known[key] = self._priced(*key)
        return self._known[key]

    def _priced(self, pool: str, kind: str, zone: str, capacity_type: str, reservation: str) -> float | None:
        index = self._indexes.get(pool)
        at = index.position.get(kind) if index is not None else None
        if index is None or at is None:
            return None
        for offering in index.types[at].offerings:
            is_its_own = not reservation or offering.reservation in ("", reservation)
            if is_its_own and _is_of(offering, zone, capacity_type):
                return offering.price_per_hour if math.isfinite(offering.price_per_hour) else None
        return None


def _is_of(offering: Offering, zone: str, capacity_type: str) -> bool:
    asked = offering.requirements
    return asked.of(labels.ZONE).allows(zone) and asked.of(labels.CAPACITY_TYPE).allows(capacity_type)


def labels_of(view: NodeView) -> Mapping[str, str]:
    """A machine's labels: the Node's, or its claim's while there is none."""
    if view.node is not None:
        return view.node.metadata.labels
    return view.claim.metadata.labels if view.claim is not None else {}
