"""What-if questions from the address of a request, and their answers as JSON. Money is USD per hour."""

from __future__ import annotations

from collections.abc import Mapping

from karpenter.console.cluster_questions import (
    AddedPods,
    ClusterAnswer,
    ClusterQuestion,
    DrainedNode,
    ForbiddenFamily,
    UnanswerableQuestion,
)
from karpenter.model import resources as res
from karpenter.model.quantity import QuantityError


def parse_question(given: Mapping[str, str]) -> ClusterQuestion:
    """``drain=NODE``, ``forbid=FAMILY``, or ``pods=COUNT`` with ``cpu`` and ``memory``. Raises ``UnanswerableQuestion``."""
    if node := given.get("drain", ""):
        return DrainedNode(node)
    if family := given.get("forbid", ""):
        return ForbiddenFamily(family)
    if "pods" in given:
        return _added_pods(given)
    raise UnanswerableQuestion("expected drain=NODE, forbid=FAMILY, or pods=COUNT with cpu and memory")


def _added_pods(given: Mapping[str, str]) -> AddedPods:
    try:
        amounts = res.parse_resources({res.CPU: given.get("cpu", "0"), res.MEMORY: given.get("memory", "0")})
        count = int(given["pods"])
    except (QuantityError, ValueError) as error:
        raise UnanswerableQuestion(str(error)) from None
    return AddedPods(count, amounts[res.CPU], amounts[res.MEMORY] // 1000)


def answer_document(answer: ClusterAnswer) -> Mapping[str, object]:
    """An answer."""
    return {
        "priceBefore": answer.price_before,
        "priceAfter": answer.price_after,
        "difference": answer.difference_per_hour,
        "removed": list(answer.removed),
        "bought": [
            {
                "name": node.name,
                "pool": node.pool,
                "type": node.instance_type,
                "zone": node.zone,
                "capacityType": node.capacity_type,
                "price": node.price_per_hour,
                "pods": node.pods,
            }
            for node in answer.new_nodes
        ],
        "moves": [{"pod": move.pod, "from": move.from_node, "to": move.to_node} for move in answer.moves],
        "moved": answer.moved,
        "stranded": [{"pod": row.pod, "reason": row.reason} for row in answer.stranded],
        "waiting": answer.waiting,
        "holding": [{"pod": row.pod, "node": row.node, "reason": row.reason} for row in answer.holding],
        "held": answer.held,
    }
