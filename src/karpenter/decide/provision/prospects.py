"""What claims that have not launched may become (SCH-071 Beyond): the types they name, and what all of these have at least.

Whatever can be had now plays no part: the provider may have begun to launch a type that is sold out since. Many claims in flight
are alike, so answers are remembered for the length of one decision.
"""

from __future__ import annotations

from collections.abc import Sequence

from karpenter.api.core import Taint
from karpenter.catalog.index import TypeIndex, TypeSet, members
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import Daemon
from karpenter.decide.provision.templates import types_running
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.requirements import Requirements, from_labels
from karpenter.model.resources import Resources


class Prospects:
    """Answers about claims in flight, beside the DaemonSets that will run on them."""

    def __init__(self, daemons: Sequence[Daemon]) -> None:
        self._daemons = daemons
        self._promised: dict[tuple[int, Requirements, tuple[Taint, ...]], Resources] = {}
        self._capacity: dict[tuple[int, TypeSet], Resources] = {}

    def types(self, view: NodeView, index: TypeIndex) -> TypeSet:
        """Types the claim may become; none once it has launched."""
        return 0 if view.launched or view.claim is None else index.matching(_offers(view))

    def capacity(self, view: NodeView, index: TypeIndex) -> Resources:
        """The most of each resource the machine may have."""
        key = (id(index), self.types(view, index))
        known = self._capacity.get(key)
        if known is None:
            known = self._capacity[key] = res.maximum(index.types[at].capacity for at in members(key[1]))
        return known

    def promised(self, view: NodeView, index: TypeIndex) -> Resources:
        """What the claim leaves to pods at least: of each of its types what that type's DaemonSets leave."""
        key = (id(index), _offers(view), view.taints)
        known = self._promised.get(key)
        if known is None:
            known = self._promised[key] = self._least(self.types(view, index), key[1], view.taints, index)
        return known

    def _least(
        self, types: TypeSet, offers: Requirements, taints: tuple[Taint, ...], index: TypeIndex
    ) -> dict[str, int]:
        offers = offers.intersect(from_labels(dict.fromkeys(labels.SIMULATION_ONLY, "true")))
        running = [(d.requests, types_running(d.spec, offers, taints, index)) for d in self._daemons]
        return res.minimum(
            res.subtract(
                index.types[position].allocatable,
                res.add(*(requests for requests, on in running if on >> position & 1)),
            )
            for position in members(types)
        )


def _offers(view: NodeView) -> Requirements:
    return view.offers.without((labels.HOSTNAME,))
