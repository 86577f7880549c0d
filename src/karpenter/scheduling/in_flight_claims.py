"""What claims that have not launched may become (SCH-071 Beyond): the types they name, and what all of these have at least.

Current availability plays no part: the provider may have begun to launch a type that has sold out since. Many claims in flight
are alike, so answers are remembered for the length of one decision.
"""

from __future__ import annotations

from collections.abc import Sequence

from karpenter.api.scheduling_constraints import Taint
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.type_sets import TypeSet, members
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements, requirements_from_labels
from karpenter.model.resources import Resources
from karpenter.scheduling.offerings.nodepool_templates import types_running_daemon
from karpenter.state.snapshot import DaemonSetPod
from karpenter.state.state_node import StateNode


class InFlightClaims:
    """Answers about claims in flight, beside the DaemonSets that will run on them."""

    def __init__(self, daemons: Sequence[DaemonSetPod]) -> None:
        self._daemons = daemons
        self._allocatable_cache: dict[tuple[int, Requirements, tuple[Taint, ...], TypeSet], Resources] = {}
        self._capacity_cache: dict[tuple[int, TypeSet], Resources] = {}

    def possible_types(self, view: StateNode, index: TypeIndex) -> TypeSet:
        """Types the claim may become; none once it has launched.

        A provider launches no type, and no allocatable group of one, that does not hold what the claim requests (SCH-117).
        """
        if view.launched or view.claim is None:
            return 0
        matching = index.matching(_offered_requirements(view))
        return matching & index.fitting(res.parse_resources(view.claim.spec.resources.requests)) or matching

    def max_capacity(self, view: StateNode, index: TypeIndex) -> Resources:
        """The most of each resource the node may have."""
        key = (id(index), self.possible_types(view, index))
        cached = self._capacity_cache.get(key)
        if cached is None:
            cached = self._capacity_cache[key] = index.max_capacity(key[1])
        return cached

    def min_allocatable(self, view: StateNode, index: TypeIndex) -> Resources:
        """What the claim leaves to pods at least: of each of its types what that type's DaemonSets leave."""
        key = (id(index), _offered_requirements(view), view.taints, self.possible_types(view, index))
        cached = self._allocatable_cache.get(key)
        if cached is None:
            cached = self._allocatable_cache[key] = self._min_allocatable(key[3], key[1], view.taints, index)
        return cached

    def _min_allocatable(
        self, types: TypeSet, offers: Requirements, taints: tuple[Taint, ...], index: TypeIndex
    ) -> dict[str, int]:
        offers = offers.intersect(requirements_from_labels(dict.fromkeys(labels.SIMULATION_ONLY, "true")))
        running = [(d.requests, types_running_daemon(d.spec, offers, taints, index)) for d in self._daemons]
        return res.minimum(
            res.subtract(
                index.types[position].allocatable,
                res.add(*(requests for requests, on in running if on >> position & 1)),
            )
            for position in members(types)
        )


def _offered_requirements(view: StateNode) -> Requirements:
    return view.requirements.without((labels.HOSTNAME,))
