"""What the process shows of the cluster: gauges worked out when they are asked for, durations and events from what changes.

One object, the ``Observatory``, hears of every change and every plan, and hands it to its parts; asked for figures, it takes
one picture of the cluster from which all parts write (OPS §5). It decides nothing, and nothing waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from traceback import format_exc

import structlog

from karpenter.act.events import AnyKind
from karpenter.act.world import World
from karpenter.api.core import Node, Pod
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.control.observability.conditions import Conditions
from karpenter.control.observability.nodes import Lifetimes, NodeSeries
from karpenter.control.observability.parts import Conditioned, Part, Picture
from karpenter.control.observability.pods import PodStates, PodTimes
from karpenter.control.observability.pools import Amounts, Budgets, Costs
from karpenter.control.observability.scheduling import ClusterState, LeftOver, Prices
from karpenter.decide.plan import Plan
from karpenter.telemetry.exposition import Writing

__all__ = ["Conditioned", "Observatory", "Part", "details", "essentials"]

#: How often prices are looked at again (OPS-431), and whether news still come.
REFRESH_SECONDS = 10.0
_log = structlog.get_logger()


def essentials(world: World, unready: Callable[[], str]) -> tuple[Part, ...]:
    """Parts every process has, however large its cluster. ``unready`` says what the picture lacks."""
    return (
        ClusterState(world, unready),
        LeftOver(world),
        Prices(),
        Budgets(),
        Costs(world),
        Lifetimes(world.metrics, world.clock),
    )


def details(world: World, further: tuple[AnyKind, ...] = ()) -> tuple[Part, ...]:
    """Parts about single pods, Nodes, NodePools and conditions, which a setting takes away (OPS-320).

    ``further`` kinds have conditions to show beside those that are always there.
    """
    return (NodeSeries(), Amounts(), PodStates(), PodTimes(world), Conditions(world, further))


class Observatory:
    """Tells its parts what happens, and takes the picture they write from. ``pods`` are all pods there are, when asked."""

    def __init__(self, world: World, pods: Iterable[Pod], parts: Iterable[Part]) -> None:
        self._world = world
        self._pods = pods
        self._parts = tuple(parts)
        self._nodes: dict[str, Node] = {}
        world.metrics.registry.sources.append(self)

    def node(self, old: Node | None, new: Node | None) -> None:
        """A Node appeared (no old), changed, or is gone (no new)."""
        if new is not None:
            self._nodes[new.metadata.name] = new
        elif old is not None:
            self._nodes.pop(old.metadata.name, None)
        self._tell(lambda part: part.node(old, new))

    def claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """A NodeClaim appeared, changed, or is gone."""
        self._tell(lambda part: part.claim(old, new))

    def pool(self, old: NodePool | None, new: NodePool | None) -> None:
        """A NodePool appeared, changed, or is gone."""
        self._tell(lambda part: part.pool(old, new))

    def other(self, kind: str, old: Conditioned | None, new: Conditioned | None) -> None:
        """A node class, or another object with conditions, appeared, changed, or is gone."""
        self._tell(lambda part: part.other(kind, old, new))

    def pod(self, old: Pod | None, new: Pod | None) -> None:
        """A pod appeared, changed, or is gone."""
        self._tell(lambda part: part.pod(old, new))

    def decided(self, plan: Plan) -> None:
        """A provisioning pass came to its decision."""
        self._tell(lambda part: part.decided(plan))

    def _tell(self, news: Callable[[Part], None]) -> None:
        """A part that cannot cope with some news costs its own figures, and nothing of what is done."""
        for part in self._parts:
            try:
                news(part)
            except Exception as error:
                _complain(part, error)

    async def run(self) -> None:
        """Keep up to date what has to be asked for, until cancelled; not at once, since a start has more urgent questions."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            for part in self._parts:
                await part.refresh()

    def picture(self) -> Writing:
        """Take a picture of the cluster as it is now, for all parts to write from."""
        state = self._world.state
        picture = Picture(
            now=self._world.clock.now(),
            views=state.views(),
            nodes=dict(self._nodes),
            claims=state.claims(),
            pools=state.pools(),
            pods=tuple(self._pods),
            freeze=state.freeze,
        )
        return partial(_written, [(part, part.picture(picture)) for part in self._parts])


def _written(parts: Iterable[tuple[Part, Writing]]) -> Iterator[str]:
    """What all parts write. One that breaks off has written whole lines, and the others are there."""
    for part, writing in parts:
        try:
            yield from writing()
        except Exception as error:
            _complain(part, error)


def _complain(part: Part, error: Exception) -> None:
    _log.error("observing failed", part=type(part).__name__, error=repr(error), stacktrace=format_exc())
