"""The process as the provider sees it. The provider is there before the watches are, so the window is opened later."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from karpenter.api.core import Node
from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.providers.aws.surroundings import Herald, Observed


@dataclass(frozen=True)
class Outside:
    """What is seen once the window is open. ``disrupted`` counts that we began the end of a claim, and why."""

    observed: Observed
    herald: Herald
    claim_named: Callable[[str], NodeClaim | None]
    class_named: Callable[[str], EC2NodeClass | None]
    classes: Callable[[], Iterable[EC2NodeClass]]
    disrupted: Callable[[NodeClaim, str], None]


class Window:
    """Implements ``Observed`` and ``Herald``. Nothing is seen, and nothing said, before it is opened."""

    def __init__(self) -> None:
        self._outside: Outside | None = None
        self._bought_for: Callable[[str], str] = lambda instance_id: ""

    def open(self, outside: Outside) -> None:
        """From now on this is what is seen."""
        self._outside = outside

    def know_purchases(self, bought_for: Callable[[str], str]) -> None:
        """From now on a machine is known by the claim it was bought for, too, until the claim names it itself."""
        self._bought_for = bought_for

    def claims(self) -> tuple[NodeClaim, ...]:
        """All NodeClaims."""
        return tuple(self._outside.observed.claims()) if self._outside is not None else ()

    def pools(self) -> tuple[NodePool, ...]:
        """All NodePools."""
        return tuple(self._outside.observed.pools()) if self._outside is not None else ()

    def claim_of(self, instance_id: str) -> NodeClaim | None:
        """The NodeClaim of an instance."""
        if self._outside is None:
            return None
        return self._outside.observed.claim_of(instance_id) or self.claim_named(self._bought_for(instance_id))

    def node_of(self, instance_id: str) -> Node | None:
        """The Node of an instance."""
        return self._outside.observed.node_of(instance_id) if self._outside is not None else None

    def claim_named(self, name: str) -> NodeClaim | None:
        """A NodeClaim by its name."""
        return self._outside.claim_named(name) if self._outside is not None else None

    def class_named(self, name: str) -> EC2NodeClass | None:
        """An EC2NodeClass by its name."""
        return self._outside.class_named(name) if self._outside is not None else None

    def classes(self) -> tuple[EC2NodeClass, ...]:
        """All EC2NodeClasses."""
        return tuple(self._outside.classes()) if self._outside is not None else ()

    def disrupted(self, claim: NodeClaim, reason: str) -> None:
        """We began the end of a claim."""
        if self._outside is not None:
            self._outside.disrupted(claim, reason)

    def normal(self, kind: Kind[Wire], about: ObjectMeta, reason: str, message: str) -> None:
        """Something happened that is as it should be."""
        if self._outside is not None:
            self._outside.herald.normal(kind, about, reason, message)

    def warning(self, kind: Kind[Wire], about: ObjectMeta, reason: str, message: str) -> None:
        """Something happened that somebody should look at."""
        if self._outside is not None:
            self._outside.herald.warning(kind, about, reason, message)
