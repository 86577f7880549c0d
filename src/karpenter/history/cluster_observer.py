"""The cluster of a running controller as the console's input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from karpenter.api.core import Node, Pod
from karpenter.console.console_input import ConsoleInput
from karpenter.console.pending_pods import pod_placements
from karpenter.controller_context import ControllerContext
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.provisioning.provisioner import PoolTypeIndexes
from karpenter.scheduling.solution import Solution


class ClusterObserver:
    """Takes what the controllers know already: its state, its informers' pods and nodes, its last plan. Without requests."""

    def __init__(
        self, context: ControllerContext, pods: Iterable[Pod], nodes: Iterable[Node], last_plan: Callable[[], Solution]
    ) -> None:
        self._context = context
        self._pods = pods
        self._nodes = nodes
        self._last_plan = last_plan
        self._type_indexes = PoolTypeIndexes(context)

    async def indexes(self) -> Mapping[str, TypeIndex]:
        """Instance types by NodePool, as decisions use them."""
        return await self._type_indexes.by_pool(tuple(self._context.state.pools()))

    async def observe(self) -> ConsoleInput:
        """The cluster now."""
        indexes = await self.indexes()
        snapshot = self._context.state.snapshot()
        placements = pod_placements(self._last_plan())
        return ConsoleInput(
            snapshot,
            self._context.clock.now(),
            tuple(self._pods),
            tuple(self._nodes),
            indexes=indexes,
            placements=placements,
        )
