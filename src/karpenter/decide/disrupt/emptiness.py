"""Emptiness: a node nobody needs goes after its quiet time, as far as budgets allow (DIS §4, §6, §9.1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import Snapshot
from karpenter.model import budgets, disruption_budgets, durations, labels, pods
from karpenter.model.conditions import is_true
from karpenter.model.freezes import freeze_of
from karpenter.model.pool_rules import rules_of

REASON = "Empty"


@dataclass(frozen=True)
class Removal:
    """A machine that may go now."""

    view: NodeView
    pool: str
    reason: str = REASON


@dataclass(frozen=True)
class Blocked:
    """An empty machine that stays, and what keeps it.

    ``lasting``: only a change of its NodePool or of a capacity buffer can free it (DIS-105).
    """

    view: NodeView
    why: str
    lasting: bool = False


@dataclass(frozen=True)
class Emptiness:
    """The outcome: what goes, what would but may not, and the pools whose budget allows nothing at all (DIS-149).

    ``eligible`` is how many would go if no budget forbade it (DIS-414).
    """

    removals: tuple[Removal, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    closed_pools: tuple[str, ...] = ()
    eligible: int = 0


def empty_nodes(snapshot: Snapshot, now: datetime, is_nominated: Callable[[str], bool]) -> Emptiness:
    """Empty machines that may be removed now, within budgets. ``is_nominated`` says of a view's key whether pods are expected."""
    judge = _Judge(snapshot, now, is_nominated)
    candidates: list[Removal] = []
    blocked: list[Blocked] = []
    for view in sorted(snapshot.nodes, key=lambda v: v.name):
        if view.claim is None or any(pods.needs_a_place(pod) for pod in view.pods):
            continue
        obstacle = judge.obstacle(view)
        if obstacle is not None:
            blocked.append(obstacle)
        elif is_true(view.claim.status.conditions, "Consolidatable"):
            candidates.append(Removal(view, view.pool))
    allowed = _within_budgets(candidates, allowances(snapshot, now))
    wanted = {removal.pool for removal in candidates}
    closed = tuple(sorted(wanted & _closed(snapshot, now)))
    return Emptiness(tuple(allowed), tuple(blocked), closed, len(candidates))


class _Judge:
    """Says of an empty machine what forbids to remove it."""

    def __init__(self, snapshot: Snapshot, now: datetime, is_nominated: Callable[[str], bool]) -> None:
        self._pools = {pool.metadata.name: pool for pool in snapshot.pools}
        self._budgets = snapshot.budgets
        self._held = snapshot.held
        self._now = now
        self._is_nominated = is_nominated

    def obstacle(self, view: NodeView) -> Blocked | None:
        """The first thing that forbids it (DIS-072 to DIS-081, DIS-100); None when nothing does."""
        pool = self._pools.get(view.pool)
        checks: tuple[tuple[bool, str], ...] = (
            (view.node is None, "Nodeclaim does not have an associated node"),
            (not view.initialized, "Node isn't initialized"),
            (view.leaving, "Node is deleting or marked for deletion"),
            (self._is_nominated(view.key), "Node is nominated for a pending pod"),
            (_is_protected(view), f'Disruption is blocked through the "{labels.DO_NOT_DISRUPT}" annotation'),
            (not view.pool, f"Node doesn't have required label (label={labels.NODE_POOL})"),
            (pool is None, f"NodePool not found (NodePool={view.pool})"),
        )
        for holds, text in checks:
            if holds:
                return Blocked(view, text)
        assert pool is not None
        lasting = _pool_obstacle(pool) or self._buffer_obstacle(view)
        if lasting:
            return Blocked(view, lasting, lasting=True)
        text = self._pod_obstacle(view)
        return Blocked(view, text) if text else None

    def _buffer_obstacle(self, view: NodeView) -> str:
        """A node that is empty on purpose (SCH-741)."""
        count = self._held.get(view.key, 0)
        return f"Node is kept for {count} capacity buffer pod(s)" if count else ""

    def _pod_obstacle(self, view: NodeView) -> str:
        """Pods that need no other place can still hold a node: by annotation, or by a budget over a DaemonSet (DIS-079 ff.)."""
        for pod in view.pods:
            if not pods.is_active(pod):
                continue
            name = f"{pod.metadata.namespace}/{pod.metadata.name}"
            if pods.is_protected(pod, self._now):
                return f'Pod has "{labels.DO_NOT_DISRUPT}" annotation (Pod={name})'
            if not pods.is_static(pod) and not pods.tolerates_disruption(pod):
                text = self._budget_obstacle(pod)
                if text:
                    return text
        return ""

    def _budget_obstacle(self, pod: Pod) -> str:
        matching = disruption_budgets.over(pod, self._budgets)
        names = " ".join(sorted(f"{budget.metadata.namespace}/{budget.metadata.name}" for budget in matching))
        if len(matching) > 1:
            return f"Eviction does not support multiple PDBs (PodDisruptionBudget(s)=[{names}])"
        for budget in matching:
            if not budget.status.disruptions_allowed and not disruption_budgets.yields_to(budget, pod):
                return f"PDB prevents pod evictions (PodDisruptionBudget=[{names}])"
        return ""


def _pool_obstacle(pool: NodePool) -> str:
    """What about the pool itself rules emptiness out."""
    if pool.spec.replicas is not None:
        return f'NodePool "{pool.metadata.name}" is static'
    if durations.parse_or_never(pool.spec.disruption.consolidate_after) is None:
        return f'NodePool "{pool.metadata.name}" has consolidation disabled'
    return ""


def _is_protected(view: NodeView) -> bool:
    node = view.node
    return node is not None and node.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "true"


@dataclass(frozen=True)
class PoolNodes:
    """A pool's nodes as budgets see them: ``counted`` is what percentages are of (DIS-145), ``unavailable`` how many of those
    are down or on their way out (DIS-146)."""

    counted: int = 0
    unavailable: int = 0


def pool_nodes(views: Iterable[NodeView]) -> Mapping[str, PoolNodes]:
    """What budgets see of every pool; a pool without nodes has none."""
    counted: defaultdict[str, int] = defaultdict(int)
    unavailable: defaultdict[str, int] = defaultdict(int)
    for view in views:
        if view.claim is not None and view.initialized and not _is_terminating(view):
            counted[view.pool] += 1
            unavailable[view.pool] += view.leaving or not view.ready
    return defaultdict(PoolNodes, {pool: PoolNodes(counted[pool], unavailable[pool]) for pool in counted})


def allowances(snapshot: Snapshot, now: datetime, reason: str = REASON) -> dict[str, int]:
    """How many more nodes of each pool may go (DIS-144 to DIS-147): what budgets and freezes allow less what is unavailable."""
    nodes = pool_nodes(snapshot.nodes)
    found: dict[str, int] = {}
    for pool in snapshot.pools:
        own = nodes[pool.metadata.name]
        allowance = rules_of(pool, snapshot.freeze).allowance(own.counted, reason, now)
        found[pool.metadata.name] = max(0, allowance.nodes - own.unavailable)
    return found


def _closed(snapshot: Snapshot, now: datetime) -> set[str]:
    """Pools with nodes whose budget is 0, whatever is happening to them now. A freeze says so itself."""
    nodes = pool_nodes(snapshot.nodes)
    return {
        pool.metadata.name
        for pool in snapshot.pools
        if nodes[pool.metadata.name].counted
        and not budgets.allowed(pool, nodes[pool.metadata.name].counted, REASON, now)
        and freeze_of(pool, snapshot.freeze, now) is None
    }


def _is_terminating(view: NodeView) -> bool:
    return view.claim is not None and is_true(view.claim.status.conditions, "InstanceTerminating")


def _within_budgets(candidates: Iterable[Removal], allowed: dict[str, int]) -> list[Removal]:
    kept: list[Removal] = []
    for removal in candidates:
        if allowed.get(removal.pool, 0) > 0:
            allowed[removal.pool] -= 1
            kept.append(removal)
    return kept
