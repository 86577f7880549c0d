"""A plan as data for programs: the same members as JSON and as YAML. ``render_table`` makes the page for people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from karpenter.api.core import Pod
from karpenter.catalog.index import TypeIndex
from karpenter.cli.render_reasons import Json, of_unplaced
from karpenter.decide.plan import Plan, PlannedClaim, UnplacedPod

_PRICE_DIGITS = 6
_SECONDS_DIGITS = 4
#: Members that say something of the plan, not of the process that made it.
_OF_A_PLAN = ("nodeClaims", "existingNodes", "unschedulable", "exposure", "cost", "decisionSeconds")


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


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two reports about the same objects: on the plan that was chosen, and on the classic one (`PackingWay.CLASSIC`)."""

    chosen: Report
    classic: Report

    @property
    def saved_per_hour(self) -> float:
        """USD per hour by which the chosen plan is cheaper."""
        return self.classic.plan.price_per_hour - self.chosen.plan.price_per_hour

    @property
    def saved_share(self) -> float | None:
        """That as a share of the classic plan's price, None where that buys nothing."""
        price = self.classic.plan.price_per_hour
        return self.saved_per_hour / price if price else None


def compared(comparison: Comparison) -> Json:
    """The chosen plan as ever, and in one more member the classic one with what is saved."""
    share = comparison.saved_share
    classic = document(comparison.classic)
    return {
        **document(comparison.chosen),
        "comparison": {
            "classic": {name: classic[name] for name in _OF_A_PLAN},
            "savedPerHour": round(comparison.saved_per_hour, _PRICE_DIGITS),
            "savedShare": round(share, _PRICE_DIGITS) if share is not None else None,
        },
    }


def document(report: Report) -> Json:
    """The plan as plain data. Prices are USD per hour; ``lowerBoundPerHour`` is null where no bound is known."""
    plan, timing = report.plan, report.timing
    return {
        "nodeClaims": [claim(item) for item in plan.claims],
        "existingNodes": [{"name": item.node, "pods": _names(item.pods)} for item in plan.existing],
        "unschedulable": _unplaced(plan.unplaced),
        "exposure": _exposure(plan),
        "cost": _cost(plan),
        "decisionSeconds": round(timing.decision_seconds, _SECONDS_DIGITS),
        "catalogueSeconds": round(timing.catalogue_seconds, _SECONDS_DIGITS),
        "wallSeconds": round(timing.wall_seconds, _SECONDS_DIGITS),
    }


def _exposure(plan: Plan) -> Json:
    """Where limits of exposure gave way and why, and the annotations about them that nobody can read."""
    return {
        "conceded": [
            {"subject": c.subject, "place": c.place, "number": c.number, "most": c.most, "reason": str(c.why)}
            for c in plan.conceded
        ],
        "unreadable": [{"subject": u.subject, "annotation": u.annotation, "fault": u.fault} for u in plan.unreadable],
    }


def _cost(plan: Plan) -> Json:
    """What the machines to buy cost, what any would cost at least, and the share of that by which they are dearer."""
    price, bound, gap = float(plan.price_per_hour), plan.lower_bound_per_hour, plan.gap
    return {
        "perHour": round(price, _PRICE_DIGITS),
        "lowerBoundPerHour": round(bound, _PRICE_DIGITS) if bound is not None else None,
        "gap": round(gap, _PRICE_DIGITS) if gap is not None else None,
    }


def pod_name(pod: Pod) -> str:
    """``namespace/name``."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _names(pods: Iterable[Pod]) -> list[str]:
    return [pod_name(pod) for pod in pods]


def claim(claim: PlannedClaim) -> Json:
    """A machine to buy."""
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


def _unplaced(found: Iterable[UnplacedPod]) -> list[Json]:
    """Pods that fail alike share what is known of it, and here what it reads like."""
    known: dict[tuple[int, int, int], Json] = {}
    items: list[Json] = []
    for item in found:
        alike = (id(item.reasons), id(item.nearest), id(item.beside))
        if alike not in known:
            known[alike] = of_unplaced(item)
        items.append({"pod": pod_name(item.pod), **known[alike]})
    return items


def to_json(data: Json) -> str:
    """Indented JSON of plain data, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n"


def to_yaml(data: Json) -> str:
    """YAML of plain data, members in their order."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    dumper = type("_Plain", (dumper,), {"ignore_aliases": lambda *_: True})
    return str(yaml.dump(data, Dumper=dumper, sort_keys=False, default_flow_style=False, width=120))
