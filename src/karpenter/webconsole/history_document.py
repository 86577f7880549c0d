"""The history as JSON for the page. Money is USD per hour, times are RFC 3339 in UTC."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from karpenter.history.history_records import ClusterSample, DecisionRecord, InterruptionRecord, NodeFacts, PartSpending
from karpenter.model import clock

Json = Mapping[str, object]


def sample_document(samples: Sequence[ClusterSample]) -> Json:
    """Series by name, each with a value per time."""
    return {
        "times": [sample.at.timestamp() for sample in samples],
        "price": [sample.price_per_hour for sample in samples],
        "managedPrice": [sample.managed_price_per_hour for sample in samples],
        "bound": [sample.bound_per_hour for sample in samples],
        "classic": [sample.classic_per_hour for sample in samples],
        "nodes": [sample.nodes for sample in samples],
        "pending": [sample.pending_pods for sample in samples],
    }


def spent_document(parts: Sequence[PartSpending]) -> Json:
    """What was spent in USD by dimension and name, dearest first."""
    spent: defaultdict[str, list[Json]] = defaultdict(list)
    for part in parts:
        spent[part.dimension].append({"name": part.name, "usd": part.total})
    return spent


def decision_document(record: DecisionRecord) -> Json:
    """A decision with its nodes before and after."""
    return {
        "id": record.decision_id,
        "at": clock.rfc3339(record.at),
        "kind": record.kind,
        "reason": record.reason,
        "text": record.text,
        "outcome": record.outcome,
        "cause": record.cause,
        "endedAt": clock.rfc3339(record.ended_at) if record.ended_at is not None else None,
        "pods": record.pods,
        "saving": record.saving_per_hour,
        "before": list(map(_facts, record.before)),
        "after": list(map(_facts, record.after)),
    }


def _facts(node: NodeFacts) -> Json:
    return {
        "name": node.name,
        "pool": node.pool,
        "type": node.instance_type,
        "zone": node.zone,
        "capacityType": node.capacity_type,
        "price": node.price_per_hour,
        "pods": node.pods,
        "cpu": node.cpu_fill,
    }


def interruption_document(record: InterruptionRecord) -> Json:
    """An interruption."""
    return {"at": clock.rfc3339(record.at), "reason": record.reason, "node": record.node, "message": record.message}
