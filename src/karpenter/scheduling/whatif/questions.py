"""What-if questions about nodes that go, and their answers, as data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property
from itertools import chain

from karpenter.api.core import Pod
from karpenter.scheduling.demand import Demand, SchedulingNodeClaim, sum_of_prices
from karpenter.scheduling.devices.type_devices import TypeDevices
from karpenter.scheduling.planned_nodeclaims import planned_claims
from karpenter.scheduling.solution import NewNodeClaim, PlacedPods, UnschedulablePod


class LimitsPolicy(Enum):
    """How limits of NodePools count in a question (DIS-160, SCH-381)."""

    #: The removed nodes do not count, as in Karpenter: limits may be exceeded until they are gone.
    WITHOUT_REMOVED = auto()
    #: The removed nodes count until they are gone.
    WITH_REMOVED = auto()
    #: Limits do not count: for finding out whether they are what is in the way.
    IGNORED = auto()


@dataclass(frozen=True, eq=False)
class WhatIf:
    """A question: the ``removed`` nodes (by key) are gone; where do their pods go?

    ``parts``: the pods, of each node by themselves as far as that is known: much is remembered of the pods of a node.
    ``reopened``: closed nodes that are open to these pods all the same, unless removed. ``planned``: where pods (by uid) were
    planned before; they go there if they may, and elsewhere if they may not. ``limits``: which limits of NodePools new nodes
    keep. What is known of a question is kept with it, so it is worth asking the same one again.
    """

    parts: tuple[tuple[Pod, ...], ...]
    removed: frozenset[str]
    reopened: Collection[str] = frozenset()
    planned: Mapping[str, str] = field(default_factory=dict)
    limits: LimitsPolicy = LimitsPolicy.WITHOUT_REMOVED

    @cached_property
    def pods(self) -> tuple[Pod, ...]:
        """All the pods."""
        return self.parts[0] if len(self.parts) == 1 else tuple(chain.from_iterable(self.parts))


@dataclass(frozen=True, eq=False)
class ReschedulingResult:
    """Where pods would go: to existing nodes (``placements``) and new ones (``new_claims``); the rest is ``unschedulable``.

    ``uninitialized_nodes``: keys of those existing nodes among them that are not ready for pods yet (DIS-165).
    """

    placements: tuple[PlacedPods, ...]
    new_claims: tuple[SchedulingNodeClaim, ...]
    unschedulable: tuple[UnschedulablePod, ...]
    uninitialized_nodes: frozenset[str]
    _demands: tuple[Demand, ...]
    _taken_names: Collection[str]
    _devices: TypeDevices | None = None

    @property
    def price_per_hour(self) -> float:
        """USD of the new nodes, each as its cheapest type."""
        return sum_of_prices(self.new_claims)

    def to_planned_claims(self, narrowed: Sequence[SchedulingNodeClaim] | None = None) -> tuple[NewNodeClaim, ...]:
        """The new nodes as NodeClaims. ``narrowed``: the same claims with fewer types."""
        claims = self.new_claims if narrowed is None else narrowed
        return planned_claims(claims, self._demands, self._taken_names, self._devices)

    def restricted_to(self, pods: Iterable[Pod]) -> ReschedulingResult:
        """The part of the answer that is about these pods, which share no new node with others; none is unschedulable."""
        uids = frozenset(pod.metadata.uid for pod in pods)
        planned = zip(self.new_claims, self.to_planned_claims(), strict=True)
        own = ((claim, _of_uids(new_claim.pods, uids)) for claim, new_claim in planned)
        placed = ((placed_pods, _of_uids(placed_pods.pods, uids)) for placed_pods in self.placements)
        placements = tuple(replace(placed_pods, pods=members) for placed_pods, members in placed if members)
        return replace(
            self,
            placements=placements,
            new_claims=tuple(claim for claim, members in own if members),
            uninitialized_nodes=self.uninitialized_nodes & {placed_pods.node_key for placed_pods in placements},
            _demands=tuple(replace(demand, pods=_of_uids(demand.pods, uids)) for demand in self._demands),
        )


@dataclass(frozen=True)
class TooExpensive:
    """New nodes for the pods cost at least ``minimum_price``, in USD per hour, which is more than the question allows."""

    minimum_price: float


@dataclass(frozen=True)
class UnreadyHosts:
    """The pods fit on existing nodes, but some of those are not ready for them yet (DIS-165).

    ``pod``: the first one that would have to wait. ``node_key``: the first of these nodes by key.
    """

    pod: Pod
    node_key: str


def _of_uids(pods: Iterable[Pod], uids: Collection[str]) -> tuple[Pod, ...]:
    return tuple(pod for pod in pods if pod.metadata.uid in uids)
