"""Why a pod stays waiting, as plain data for programs: reasons, what types fall to, and the nearest miss."""

from __future__ import annotations

import re

from karpenter.decide.explain import fault, hurdle, message, sentence
from karpenter.decide.obstacles import Blocked, Breakdown, LimitReached, Miss, Obstacle, Short, TooFewValues
from karpenter.decide.plan import UnplacedPod
from karpenter.decide.reasons import Reason
from karpenter.model import resources as res
from karpenter.model import taints

Json = dict[str, object]

_HUMPS = re.compile(r"(?<!^)(?=[A-Z])")
_SUBJECTS = ("resource", "key", "taint", "asked", "port", "replicas")


def of_unplaced(item: UnplacedPod) -> Json:
    """Members of an unplaced pod beside its name. The first three members of a reason are as they always were."""
    return {
        "reasons": [_reason(reason) for reason in item.reasons],
        "sentence": sentence(item.nearest, item.beside),
        "nearest": of_miss(item.nearest) if item.nearest is not None else None,
        "nearestNode": of_miss(item.beside) if item.beside is not None else None,
    }


def _reason(reason: Reason) -> Json:
    return {
        "nodePool": reason.node_pool,
        "category": reason.category.value,
        "message": message(reason),
        "types": _breakdown(reason.breakdown) if reason.breakdown is not None else None,
        "nearest": of_miss(reason.miss) if reason.miss is not None else None,
    }


def _breakdown(found: Breakdown) -> Json:
    fallen = [
        {
            **_obstacle(item.obstacle),
            "message": hurdle(item.obstacle),
            "types": item.types,
            "typesAlone": item.alone,
            "offerings": item.offerings,
        }
        for item in found.fallen
    ]
    return {"types": found.types, "offerings": found.offerings, "fallen": fallen}


def of_miss(miss: Miss) -> Json:
    """What would have to change, and where."""
    return {
        "nodePool": miss.node_pool,
        "instanceType": miss.instance_type,
        "node": miss.node,
        "onlyIn": [{"constraint": c.relation, "key": c.key, "domain": c.domain} for c in miss.confined],
        "changes": [_obstacle(obstacle) for obstacle in miss.obstacles],
    }


def _obstacle(obstacle: Obstacle) -> Json:
    kind = _HUMPS.sub("-", type(obstacle).__name__).lower()
    return {"kind": kind, "subject": _subject(obstacle), **_numbers(obstacle), "message": fault(obstacle)}


def _subject(obstacle: Obstacle) -> str:
    """What it is about: a resource, a label, a taint, a requirement, a port."""
    found = next((getattr(obstacle, name) for name in _SUBJECTS if hasattr(obstacle, name)), "")
    return taints.text(obstacle.taint) if hasattr(obstacle, "taint") else str(found)


def _numbers(obstacle: Obstacle) -> Json:
    match obstacle:
        case Short(resource, asked, there, where):
            amounts = {"asked": asked, "there": there, "short": obstacle.short}
            return {"on": where, **{name: _quantity(resource, amount) for name, amount in amounts.items()}}
        case LimitReached(resource, left, needed):
            return {"needed": _quantity(resource, needed), "left": _quantity(resource, left)}
        case TooFewValues(_, wanted, there):
            return {"asked": str(wanted), "there": str(there)}
        case Blocked():
            return {"constraint": obstacle.relation, "counts": dict(obstacle.counts)}
        case _:
            return {}


def _quantity(resource: str, amount: int) -> str:
    return res.to_wire({resource: amount})[resource]
