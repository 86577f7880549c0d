"""What the parts of the observatory have in common: what they hear, and the picture they write from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from karpenter.api.core import Node, Pod
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.cluster.nodes import NodeView
from karpenter.decide.plan import Plan
from karpenter.model.freezes import Freeze
from karpenter.telemetry.exposition import Writing


class ConditionedStatus(Protocol):
    """A status with conditions."""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions."""


class Conditioned(Protocol):
    """An object whose status carries conditions, of whatever kind."""

    @property
    def metadata(self) -> ObjectMeta:
        """Its metadata."""

    @property
    def status(self) -> ConditionedStatus:
        """Its status."""


@dataclass(frozen=True)
class Picture:
    """The cluster at one moment; nothing in it changes any more. ``nodes`` are all Nodes by name, ``views`` the machines,
    ``freeze`` the freeze over the whole cluster."""

    now: datetime
    views: tuple[NodeView, ...]
    nodes: Mapping[str, Node]
    claims: tuple[NodeClaim, ...]
    pools: tuple[NodePool, ...]
    pods: tuple[Pod, ...]
    freeze: Freeze | None = None


def _nothing() -> Iterable[str]:
    return ()


class Part:
    """Some series and what is done for them. Hears of every change (``None`` stands for absent) and of every plan."""

    def node(self, old: Node | None, new: Node | None) -> None:
        """A Node changed."""

    def claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """A NodeClaim changed."""

    def pool(self, old: NodePool | None, new: NodePool | None) -> None:
        """A NodePool changed."""

    def other(self, kind: str, old: Conditioned | None, new: Conditioned | None) -> None:
        """A node class of a kind changed."""

    def pod(self, old: Pod | None, new: Pod | None) -> None:
        """A pod changed."""

    def decided(self, plan: Plan) -> None:
        """A provisioning pass came to its decision."""

    async def refresh(self) -> None:
        """Every ten seconds: bring up to date what has to be asked for."""

    def picture(self, picture: Picture) -> Writing:
        """Note what else belongs to the picture, quickly, and return what writes the series down."""
        return _nothing
