"""What would be moved now and what waits behind budgets, for people who look at a cluster from outside.

A controller knows things no object tells at a glance; what follows from the objects and the time is assumed instead, and said:
that a machine's quiet time is over although nobody has written that down yet, that a machine with the disruption taint is on its
way out, and that pods which wait are expected where the next plan puts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from msgspec.structs import replace as changed

from karpenter.api.karpenter import NodePool
from karpenter.api.meta import Condition
from karpenter.catalog.index import TypeIndex
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import Snapshot
from karpenter.decide.disrupt.allowances import PoolNodes, pool_nodes
from karpenter.decide.disrupt.candidates import Circumstances, consolidates, is_consolidatable, quiet_from
from karpenter.decide.disrupt.command import Command, DisruptionReason
from karpenter.decide.disrupt.decision import DisruptionOptions, Disruptions, decide_disruption
from karpenter.decide.disrupt.preview import preview
from karpenter.decide.provision import Options, provision
from karpenter.model import labels, taints
from karpenter.model.buffers import is_virtual
from karpenter.model.pool_rules import PoolRules, rules_of
from karpenter.model.windows import Span

#: So far ahead it is looked when budgets open.
AHEAD = timedelta(days=31)


@dataclass(frozen=True)
class Opening:
    """What a pool's budgets and freezes allow for a reason.

    ``allowed`` nodes at a time, of which ``left`` are free now (DIS-147); ``source``: the field that says so, empty without a
    limit; ``frozen``: the freeze that is on, as a text. ``at``: the first moment at which at least one more may go, provided that
    no other node goes or comes meanwhile; None where that is not within ``AHEAD``.
    """

    pool: str
    reason: DisruptionReason
    allowed: int
    left: int
    source: str
    frozen: str
    at: datetime | None


@dataclass(frozen=True)
class Outlook:
    """The decision at a moment, as budgets have it (``limited``) and as it were without any (``free``), on one snapshot.

    ``assumed``: machines that are taken to be consolidatable although no condition says so yet, ``going``: those with the
    disruption taint, ``expecting``: those that pods which wait will need, all by key. ``openings``: for every pool and reason
    that ``free`` takes machines of. ``resting``: when the quiet times end that are not over, by key.
    """

    snapshot: Snapshot
    at: datetime
    limited: Disruptions
    free: Disruptions
    openings: tuple[Opening, ...]
    assumed: tuple[str, ...] = ()
    going: tuple[str, ...] = ()
    expecting: tuple[str, ...] = ()
    resting: Mapping[str, datetime] = field(default_factory=dict)

    @property
    def circumstances(self) -> Circumstances:
        """What it was decided under, beside the snapshot."""
        return Circumstances(self.at, is_nominated=frozenset(self.expecting).__contains__)


def outlook(
    snapshot: Snapshot,
    indexes: Mapping[str, TypeIndex],
    now: datetime,
    options: DisruptionOptions,
) -> Outlook:
    """What would be done at ``now``, and what would be if budgets and freezes forbade nothing."""
    pools = {pool.metadata.name: pool for pool in snapshot.pools}
    assumed = frozenset(view.key for view in snapshot.nodes if _has_become_consolidatable(view, pools, now))
    going = frozenset(view.key for view in snapshot.nodes if view.managed and not view.leaving and _is_tainted(view))
    views = (_consolidatable(view) if view.key in assumed else view for view in snapshot.nodes)
    taken = replace(snapshot, nodes=tuple(replace(view, leaving=True) if view.key in going else view for view in views))
    expecting = _expecting(taken, indexes, now, options.provisioning)
    circumstances = Circumstances(now, is_nominated=expecting.__contains__)
    limited = decide_disruption(taken, indexes, circumstances, options)
    free = preview(taken, indexes, circumstances, options)
    openings = tuple(_openings(taken, free.commands, now))
    return Outlook(
        taken,
        now,
        limited,
        free,
        openings,
        assumed=tuple(sorted(assumed)),
        going=tuple(sorted(going)),
        expecting=tuple(sorted(expecting)),
        resting=_resting(taken, pools),
    )


def _resting(snapshot: Snapshot, pools: Mapping[str, NodePool]) -> Mapping[str, datetime]:
    """Ends of quiet times, of the machines that would be asked about but for theirs."""
    waiting = (view for view in snapshot.nodes if view.initialized and not view.leaving and not is_consolidatable(view))
    found = ((view, pools[view.pool]) for view in waiting if view.managed and view.pool in pools)
    ends = ((view.key, quiet_from(view, pool)) for view, pool in found if consolidates(pool))
    return {key: end for key, end in ends if end is not None}


def _expecting(snapshot: Snapshot, indexes: Mapping[str, TypeIndex], now: datetime, options: Options) -> frozenset[str]:
    """Machines that waiting pods are going to be nominated to (DIS-005)."""
    plan = provision(snapshot, indexes, now, options)
    return frozenset(item.key for item in plan.existing if not all(map(is_virtual, item.pods)))


def opening(pool: NodePool, rules: PoolRules, nodes: PoolNodes, reason: DisruptionReason, now: datetime) -> Opening:
    """When ``rules`` let a node of the pool go for the reason."""
    allowance = rules.allowance(nodes.counted, reason.value, now)
    left = max(0, allowance.nodes - nodes.unavailable)
    freeze = rules.freeze(now)
    at = now if left else _next_opening(rules, nodes, reason, now)
    frozen = str(freeze) if freeze is not None else ""
    return Opening(pool.metadata.name, reason, allowance.nodes, left, allowance.source, frozen, at)


def _next_opening(rules: PoolRules, nodes: PoolNodes, reason: DisruptionReason, now: datetime) -> datetime | None:
    edges = sorted(rules.edges(Span(now, now + AHEAD)))
    allowed = (edge for edge in edges if rules.allowance(nodes.counted, reason.value, edge).nodes > nodes.unavailable)
    return next(allowed, None)


def _openings(snapshot: Snapshot, commands: tuple[Command, ...], now: datetime) -> Iterator[Opening]:
    wanted = {(candidate.pool, command.reason) for command in commands for candidate in command.candidates}
    nodes = pool_nodes(snapshot.nodes)
    for pool in snapshot.pools:
        name = pool.metadata.name
        for reason in DisruptionReason:
            if (name, reason) in wanted:
                yield opening(pool, rules_of(pool, snapshot.freeze), nodes[name], reason, now)


def _has_become_consolidatable(view: NodeView, pools: Mapping[str, NodePool], now: datetime) -> bool:
    """DIS-327, from the objects alone."""
    pool = pools.get(view.pool)
    if pool is None or not view.managed or not view.initialized or is_consolidatable(view) or not consolidates(pool):
        return False
    until = quiet_from(view, pool)
    return until is None or now >= until


def _consolidatable(view: NodeView) -> NodeView:
    assert view.claim is not None
    others = tuple(item for item in view.claim.status.conditions if item.type != "Consolidatable")
    conditions = (*others, Condition(type="Consolidatable", status="True", reason="Consolidatable"))
    return replace(view, claim=changed(view.claim, status=changed(view.claim.status, conditions=conditions)))


def _is_tainted(view: NodeView) -> bool:
    found = view.node.spec.taints if view.node is not None else ()
    return any(taints.same(taint, labels.DISRUPTED_TAINT) for taint in found)
