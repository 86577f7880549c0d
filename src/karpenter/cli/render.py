"""A plan as data for programs: the same members as JSON and as YAML. ``render_table`` makes the page for people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from karpenter.api.core import Pod
from karpenter.catalog.index import TypeIndex
from karpenter.decide.explain import message
from karpenter.decide.plan import Plan, PlannedClaim, UnplacedPod

Json = dict[str, object]

_PRICE_DIGITS = 6
_SECONDS_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: to decide, from decoded objects to the plan; to load and prepare the catalogue; of the whole process."""

    decision_seconds: float
    catalogue_seconds: float
    wall_seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """What there is to show: the plan, the types it chose from, how long it took."""

    plan: Plan
    index: TypeIndex
    timing: Timing


def document(report: Report) -> Json:
    """The plan as plain data. Prices are USD per hour; ``lowerBoundPerHour`` is null where no bound is known."""
    plan, timing = report.plan, report.timing
    return {
        "nodeClaims": [_claim(claim) for claim in plan.claims],
        "existingNodes": [{"name": item.node, "pods": _names(item.pods)} for item in plan.existing],
        "unschedulable": [_unplaced(item) for item in plan.unplaced],
        "cost": {"perHour": round(float(plan.price_per_hour), _PRICE_DIGITS), "lowerBoundPerHour": None},
        "decisionSeconds": round(timing.decision_seconds, _SECONDS_DIGITS),
        "catalogueSeconds": round(timing.catalogue_seconds, _SECONDS_DIGITS),
        "wallSeconds": round(timing.wall_seconds, _SECONDS_DIGITS),
    }


def pod_name(pod: Pod) -> str:
    """``namespace/name``."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _names(pods: Iterable[Pod]) -> list[str]:
    return [pod_name(pod) for pod in pods]


def _claim(claim: PlannedClaim) -> Json:
    spec = claim.claim.spec
    return {
        "name": claim.name,
        "nodePool": claim.node_pool,
        "instanceTypes": list(claim.instance_types),
        "cheapest": {
            "instanceType": claim.instance_types[0],
            "zone": claim.cheapest.zone,
            "capacityType": claim.cheapest.capacity_type,
            "price": claim.price_per_hour,
        },
        "requirements": [
            {"key": item.key, "operator": item.operator, "values": list(item.values)} for item in spec.requirements
        ],
        "requests": dict(spec.resources.requests),
        "pods": _names(claim.pods),
    }


def _unplaced(item: UnplacedPod) -> Json:
    reasons = [
        {"nodePool": reason.node_pool, "category": reason.category.value, "message": message(reason)}
        for reason in item.reasons
    ]
    return {"pod": pod_name(item.pod), "reasons": reasons}


def as_json(report: Report) -> str:
    """Indented JSON, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(document(report)), indent=2).decode() + "\n"


def as_yaml(report: Report) -> str:
    """YAML with members in the same order."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(document(report), Dumper=dumper, sort_keys=False, default_flow_style=False, width=120))
