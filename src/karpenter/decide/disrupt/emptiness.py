"""Emptiness: a node nobody needs goes after its quiet time, as far as budgets allow (DIS §4, §6, §9.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from karpenter.api.karpenter import NodePool
from karpenter.cluster.nodes import NodeView, is_true
from karpenter.cluster.snapshot import Snapshot
from karpenter.model import budgets, durations, labels, pods

REASON = "Empty"


@dataclass(frozen=True)
class Removal:
    """A machine that may go now."""

    view: NodeView
    pool: str
    reason: str = REASON


@dataclass(frozen=True)
class Blocked:
    """An empty machine that stays, and what keeps it."""

    view: NodeView
    why: str


@dataclass(frozen=True)
class Emptiness:
    """The outcome: what goes, and what would but may not."""

    removals: tuple[Removal, ...] = ()
    blocked: tuple[Blocked, ...] = ()


def empty_nodes(snapshot: Snapshot, now: datetime, is_nominated: Callable[[str], bool]) -> Emptiness:
    """Empty machines that may be removed now, within budgets. ``is_nominated`` says of a view's key whether pods are expected."""
    pools = {pool.metadata.name: pool for pool in snapshot.pools}
    candidates: list[Removal] = []
    blocked: list[Blocked] = []
    for view in sorted(snapshot.nodes, key=lambda v: v.name):
        if view.claim is None or any(pods.needs_a_place(pod) for pod in view.pods):
            continue
        why = obstacle(view, pools, now, is_nominated)
        if why:
            blocked.append(Blocked(view, why))
        elif is_true(view.claim.status.conditions, "Consolidatable"):
            candidates.append(Removal(view, view.pool))
    allowed, over = _within_budgets(candidates, allowances(snapshot, pools))
    return Emptiness(tuple(allowed), (*blocked, *over))


def obstacle(view: NodeView, pools: Mapping[str, NodePool], now: datetime, is_nominated: Callable[[str], bool]) -> str:
    """The first thing that forbids to remove the machine (DIS-072 to DIS-079, DIS-100); empty when nothing does."""
    pool = pools.get(view.pool)
    checks: tuple[tuple[bool, str], ...] = (
        (view.node is None, "Nodeclaim does not have an associated node"),
        (not view.initialized, "Node isn't initialized"),
        (view.leaving, "Node is deleting or marked for deletion"),
        (is_nominated(view.key), "Node is nominated for a pending pod"),
        (_is_protected(view), f'Disruption is blocked through the "{labels.DO_NOT_DISRUPT}" annotation'),
        (not view.pool, f"Node doesn't have required label (label={labels.NODE_POOL})"),
        (pool is None, f"NodePool not found (NodePool={view.pool})"),
    )
    for holds, text in checks:
        if holds:
            return text
    assert pool is not None
    if pool.spec.replicas is not None:
        return f'NodePool "{view.pool}" is static'
    if durations.parse_or_never(pool.spec.disruption.consolidate_after) is None:
        return f'NodePool "{view.pool}" has consolidation disabled'
    return _protected_pod(view, now)


def _is_protected(view: NodeView) -> bool:
    node = view.node
    return node is not None and node.metadata.annotations.get(labels.DO_NOT_DISRUPT) == "true"


def _protected_pod(view: NodeView, now: datetime) -> str:
    for pod in view.pods:
        if pods.is_active(pod) and pods.is_protected(pod, now):
            name = f"{pod.metadata.namespace}/{pod.metadata.name}"
            return f'Pod has "{labels.DO_NOT_DISRUPT}" annotation (Pod={name})'
    return ""


def allowances(snapshot: Snapshot, pools: Mapping[str, NodePool], reason: str = REASON) -> dict[str, int]:
    """How many more nodes of each pool may go (DIS-144 to DIS-147): the budget less the nodes that are unavailable already."""
    allowed: dict[str, int] = {}
    for name, pool in pools.items():
        own = [view for view in snapshot.nodes if view.pool == name and view.claim is not None and view.initialized]
        counted = [view for view in own if not _is_terminating(view)]
        unavailable = sum(1 for view in counted if view.leaving or not view.ready)
        allowed[name] = max(0, budgets.allowed(pool.spec.disruption.budgets, len(counted), reason) - unavailable)
    return allowed


def _is_terminating(view: NodeView) -> bool:
    return view.claim is not None and is_true(view.claim.status.conditions, "InstanceTerminating")


def _within_budgets(candidates: Iterable[Removal], allowed: dict[str, int]) -> tuple[list[Removal], list[Blocked]]:
    kept: list[Removal] = []
    over: list[Blocked] = []
    for removal in candidates:
        if allowed.get(removal.pool, 0) > 0:
            allowed[removal.pool] -= 1
            kept.append(removal)
        else:
            over.append(
                Blocked(removal.view, f"No allowed disruptions for disruption reason {removal.reason} due to budget")
            )
    return kept, over
