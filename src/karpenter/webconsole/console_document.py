"""A console view as JSON for the page. Money is USD per hour, times are RFC 3339 in UTC."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256

from karpenter.console.budget_calendar import BudgetSpan
from karpenter.console.console_view import ConsoleView
from karpenter.console.decision_rows import DecisionRow
from karpenter.console.node_rows import NodeRow, fill_of_nodes
from karpenter.console.pool_rows import PoolRow
from karpenter.console.visible_objects import Visibility
from karpenter.model import clock
from karpenter.model import resources as res
from karpenter.model.nodepool_budgets import UNLIMITED_DISRUPTIONS

Json = dict[str, object]
#: The page shows so many of the latest decisions, and so many of the pods that wait longest.
SHOWN_DECISIONS, SHOWN_PENDING = 200, 500


def console_document(view: ConsoleView, bound_per_hour: float | None) -> Json:
    """Everything on the page. Shares are 0 to 1, ``bound`` is the lower bound of the price, null where it is not known."""
    return {
        "now": clock.rfc3339(view.now),
        "price": view.price_per_hour,
        "managedPrice": view.managed_price_per_hour,
        "bound": bound_per_hour,
        "unpricedNodes": view.spending.unpriced_nodes,
        "historyFault": view.given.history_fault,
        "fill": {name: fill_of_nodes(view.nodes, name) for name in (res.CPU, res.MEMORY)},
        "pods": {
            "total": view.pods.total,
            "pending": view.pods.pending,
            "running": view.pods.running,
            "bound": view.pods.bound,
        },
        "nodes": [_node(row) for row in view.nodes],
        "pending": [
            {
                "pod": row.full_name,
                "since": _time(row.since),
                "reason": row.reason,
                "cpuMillis": row.requests.get(res.CPU, 0),
                "memoryMiB": row.requests.get(res.MEMORY, 0) // (1000 * 2**20),
            }
            for row in view.pending[:SHOWN_PENDING]
        ],
        "decisions": [_decision(row) for row in view.decisions[:SHOWN_DECISIONS]],
        "pools": [_pool(row) for row in view.pools],
        "spending": {
            dimension.value: [{"name": row.name, "price": row.price_per_hour, "count": row.count} for row in rows]
            for dimension, rows in view.spending.rows.items()
        },
    }


def _node(row: NodeRow) -> Json:
    return {
        "name": row.name,
        "pool": row.pool,
        "type": row.instance_type,
        "zone": row.zone,
        "capacityType": row.capacity_type,
        "state": row.state.value,
        "why": row.state_reason or row.drift,
        "heldBy": list(row.held_by),
        "price": row.price_per_hour,
        "cpu": row.fill(res.CPU),
        "memory": row.fill(res.MEMORY),
        "cpuMillis": row.allocatable.get(res.CPU, 0),
        "pods": row.pod_count,
        "ready": row.ready,
        "kept": row.kept,
        "claim": row.claim,
    }


def _decision(row: DecisionRow) -> Json:
    name = f"{row.at.isoformat()} {row.kind} {row.reason} {' '.join(row.nodes)}"
    return {
        "id": sha256(name.encode()).hexdigest()[:16],
        "at": clock.rfc3339(row.at),
        "kind": row.kind.value,
        "text": row.text,
        "reason": row.reason,
        "nodes": list(row.nodes),
        "replaces": list(row.replaces),
        "replacedBy": list(row.replaced_by),
        "saving": row.saving_per_hour,
        "restarts": row.restarts,
    }


def _pool(row: PoolRow) -> Json:
    return {
        "name": row.name,
        "nodes": row.nodes,
        "price": row.price_per_hour,
        "cpu": row.fill(res.CPU),
        "memory": row.fill(res.MEMORY),
        "drifted": row.drifted,
        "freeze": row.freeze,
        "ready": row.ready,
        "budgets": [
            {
                "reason": budget.reason.value,
                "allowed": None if budget.allowed == UNLIMITED_DISRUPTIONS else budget.allowed,
                "remaining": None if budget.allowed == UNLIMITED_DISRUPTIONS else budget.remaining,
                "opensAt": _time(budget.opens_at),
            }
            for budget in row.budgets
        ],
    }


def _time(moment: datetime | None) -> str | None:
    return clock.rfc3339(moment) if moment is not None else None


def span_document(span: BudgetSpan) -> Json:
    """A span of the budget calendar; ``allowed`` is null without a limit."""
    return {
        "pool": span.pool,
        "reason": span.reason.value,
        "begins": clock.rfc3339(span.begins),
        "ends": clock.rfc3339(span.ends),
        "allowed": None if span.allowed == UNLIMITED_DISRUPTIONS else span.allowed,
    }


def hidden_parts(visibility: Visibility) -> Iterator[str]:
    """What a viewer may not list, in words."""
    if not visibility.nodes:
        yield "nodes"
    if not visibility.claims:
        yield "nodeclaims"
    if not visibility.pools:
        yield "nodepools"
    if visibility.pod_namespaces is not None:
        shown = ", ".join(sorted(visibility.pod_namespaces))
        yield f"pods outside of {shown}" if shown else "pods"
    if not visibility.others:
        yield "DaemonSets, PodDisruptionBudgets, namespaces or volumes, and the history"
