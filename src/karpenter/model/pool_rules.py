"""What the owner of a NodePool lets be disrupted, and when: its budgets, and the freezes over it, seen together."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from karpenter.api.karpenter import NodePool
from karpenter.model import budgets, calm, freezes
from karpenter.model.budgets import Allowance, Budgets
from karpenter.model.freezes import Freeze
from karpenter.model.schema import Finding
from karpenter.model.windows import Span


@dataclass(frozen=True, slots=True)
class PoolRules:
    """A pool's budgets, and its own and the cluster's freeze, whether they are on or over."""

    budgets: Budgets
    freezes: tuple[Freeze, ...] = ()

    def allowance(self, nodes: int, reason: str, now: datetime) -> Allowance:
        """What may go for ``reason`` at ``now`` in a pool of ``nodes``: nothing while a freeze is on, else what budgets allow."""
        freeze = self.freeze(now)
        return self.budgets.allowance(nodes, reason, now) if freeze is None else Allowance(0, freeze.source)

    def freeze(self, now: datetime) -> Freeze | None:
        """What freezes the pool at ``now``, None where nothing does."""
        return freezes.longest(self.freezes, now)

    def edges(self, period: Span) -> frozenset[datetime]:
        """The moments within a period, its ends left out, at which any of this changes."""
        ends = (freeze.until for freeze in self.freezes if freeze.until is not None)
        return self.budgets.edges(period) | {end for end in ends if period.begin < end < period.end}


def rules_of(pool: NodePool, cluster: Freeze | None) -> PoolRules:
    """The rules for a pool, under the freeze over the whole cluster if there is one."""
    return PoolRules(budgets.of_pool(pool), freezes.over(pool, cluster))


def unreadable(pool: NodePool) -> tuple[Finding, ...]:
    """Settings of a pool about disruption that cannot be read; each of them holds something back until it is mended."""
    freeze = freezes.of_pool(pool)
    return (
        *budgets.of_pool(pool).findings,
        *(freeze.findings if freeze is not None else ()),
        *calm.of_pool(pool).findings,
    )
