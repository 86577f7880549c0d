"""A plan as data for programs: the same members as JSON and as YAML. ``render_plan`` makes the page for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from karpenter.api.core import Pod
from karpenter.capacitybuffer.buffer_placements import BufferPlacement, buffer_placements
from karpenter.cli.instance_type_sources import PriceSource
from karpenter.cli.render_common import Json, pod_name
from karpenter.cli.render_prices import price_data
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model import resources as res
from karpenter.scheduling.explain.nearest_fit_messages import (
    filter_clause,
    filter_noun,
    filter_subject,
    nearest_fit_sentence,
)
from karpenter.scheduling.explain.reason_messages import reason_message
from karpenter.scheduling.failed_filters import (
    FailedFilter,
    FilterBreakdown,
    InsufficientResource,
    MinValuesNotMet,
    NearestFit,
    NodePoolLimitReached,
    TopologyUnsatisfiable,
)
from karpenter.scheduling.solution import GangOutcome, NewNodeClaim, Solution, UnschedulablePod
from karpenter.scheduling.unschedulable_reasons import UnschedulableReason
from karpenter.scheduling.whatif.limit_increases import LimitIncrease

#: Of the document: the first number changes when a member goes or changes its meaning, the second when one is added.
FORMAT_VERSION = "1.2"
_PRICE_DIGITS = 6
_SECONDS_DIGITS = 4
#: Members that say something of the plan, not of the process that made it.
_PLAN_MEMBERS = ("nodeClaims", "existingNodes", "unschedulable", "exposure", "cost", "timings")


@dataclass(frozen=True, slots=True)
class PlanTiming:
    """Seconds: to decide, from decoded objects to the plan; to load and prepare the instance types; of the whole process."""

    decision_seconds: float
    load_seconds: float
    wall_seconds: float


@dataclass(frozen=True, slots=True)
class PlanReport:
    """What there is to show: the plan, the types it chose from by NodePool, how long it took.

    ``prices``: where they come from; None for a recorded problem, which does not say it. ``long_reasons``: the page gives reasons
    with all requirements. ``limit_increases``: limits that leave pods out, each with what would be enough for all of them.
    """

    plan: Solution
    indexes: Mapping[str, TypeIndex]
    timing: PlanTiming
    prices: PriceSource | None = None
    long_reasons: bool = False
    limit_increases: tuple[LimitIncrease, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanComparison:
    """Two reports about the same objects: on the plan that was chosen, and on the classic one (``PackingMode.CLASSIC``)."""

    chosen: PlanReport
    classic: PlanReport

    @property
    def saved_per_hour(self) -> float:
        """USD per hour by which the chosen plan is cheaper."""
        return self.classic.plan.price_per_hour - self.chosen.plan.price_per_hour

    @property
    def saved_share(self) -> float | None:
        """That as a share of the classic plan's price, None where that has no new nodes."""
        price = self.classic.plan.price_per_hour
        return self.saved_per_hour / price if price else None


def comparison_document(comparison: PlanComparison) -> Json:
    """The chosen plan as ever, and in one more member the classic one with what is saved."""
    share = comparison.saved_share
    classic = document(comparison.classic)
    return {
        **document(comparison.chosen),
        "comparison": {
            "classic": {name: classic[name] for name in _PLAN_MEMBERS},
            "savedPerHour": round(comparison.saved_per_hour, _PRICE_DIGITS),
            "savedShare": round(share, _PRICE_DIGITS) if share is not None else None,
        },
    }


def document(report: PlanReport) -> Json:
    """The plan as plain data. Prices are USD per hour; ``lowerBoundPerHour`` is null where no bound is known."""
    plan, timing = report.plan, report.timing
    return {
        "formatVersion": FORMAT_VERSION,
        "nodeClaims": [node_claim_data(new_nodeclaim) for new_nodeclaim in plan.new_claims],
        "existingNodes": [
            {
                "name": placed_pods.node_name,
                "pods": _pod_names(placed_pods.pods),
                "awaitsTerminatingPods": placed_pods.awaits_terminating_pods,
            }
            for placed_pods in plan.placed_on_existing
        ],
        "unschedulable": _unschedulable_pods(plan.unschedulable),
        "exposure": _exposure_data(plan),
        "cost": _cost_data(plan),
        "capacityBuffers": [_buffer_data(name, room) for name, room in planned_buffers(plan).items()],
        "gangs": [_gang_data(outcome) for outcome in plan.gangs],
        "limitIncreases": [_limit_increase_data(increase) for increase in report.limit_increases],
        "packingFallback": plan.packing_fallback,
        "prices": price_data(report.prices, plan) if report.prices is not None else None,
        "timings": {
            "decisionSeconds": round(timing.decision_seconds, _SECONDS_DIGITS),
            "catalogueSeconds": round(timing.load_seconds, _SECONDS_DIGITS),
            "wallSeconds": round(timing.wall_seconds, _SECONDS_DIGITS),
        },
    }


def planned_buffers(plan: Solution) -> Mapping[str, BufferPlacement]:
    """Where the virtual pods of each capacity buffer are; every existing node counts as ready."""
    return buffer_placements(plan, {placed.node_key for placed in plan.placed_on_existing})


def _limit_increase_data(increase: LimitIncrease) -> Json:
    amount = _quantity(increase.resource, increase.amount)
    return {"nodePool": increase.node_pool, "resource": increase.resource, "amount": amount, "pods": increase.pods}


def _buffer_data(name: str, placement: BufferPlacement) -> Json:
    return {
        "name": name,
        "existingNodes": placement.on_ready_nodes,
        "newNodes": placement.on_new_nodes,
        "unschedulable": placement.unschedulable,
    }


def _gang_data(outcome: GangOutcome) -> Json:
    return {
        "name": outcome.gang,
        "complete": outcome.is_complete,
        "minimum": outcome.minimum,
        "running": outcome.running,
        "placed": outcome.placed,
        "domain": outcome.domain or None,
    }


def _exposure_data(plan: Solution) -> Json:
    """Exposure limits that were relaxed and why, and annotations about them that cannot be parsed."""
    return {
        "relaxed": [
            {"subject": c.subject, "place": c.place, "number": c.actual, "most": c.limit, "reason": str(c.cause)}
            for c in plan.exposure_violations
        ],
        "unreadable": [
            {"subject": u.subject, "annotation": u.annotation, "fault": u.error} for u in plan.unreadable_annotations
        ],
    }


def _cost_data(plan: Solution) -> Json:
    """The price of the new nodes and of their CPU beyond baselines, the lower bound of both, the gap, and if it is proven."""
    price, bound, gap = float(plan.price_per_hour), plan.lower_bound_per_hour, plan.optimality_gap
    return {
        "perHour": round(price, _PRICE_DIGITS),
        "cpuSurplusPerHour": round(plan.cpu_surplus_per_hour, _PRICE_DIGITS),
        "lowerBoundPerHour": round(bound, _PRICE_DIGITS) if bound is not None else None,
        "gap": round(gap, _PRICE_DIGITS) if gap is not None else None,
        "optimal": plan.is_optimal,
        "nodeShareCostPerHour": round(plan.node_share_cost_per_hour, _PRICE_DIGITS),
        "nodeShareSavingPerHour": round(plan.node_share_saving_per_hour, _PRICE_DIGITS),
    }


def _pod_names(pods: Iterable[Pod]) -> list[str]:
    return [pod_name(pod) for pod in pods]


def node_claim_data(claim: NewNodeClaim) -> Json:
    """A planned NodeClaim."""
    spec = claim.claim.spec
    return {
        "name": claim.name,
        "nodePool": claim.node_pool,
        "instanceTypes": list(claim.instance_types),
        "cheapest": {
            "instanceType": claim.instance_types[0],
            "zone": claim.cheapest_offering.zone,
            "capacityType": claim.cheapest_offering.capacity_type,
            "price": claim.price_per_hour,
            "cpuSurplus": round(claim.cpu_surplus_per_hour, _PRICE_DIGITS),
        },
        "requirements": [
            {"key": requirement.key, "operator": requirement.operator, "values": list(requirement.values)}
            for requirement in spec.requirements
        ],
        "requests": dict(spec.resources.requests),
        "pods": _pod_names(claim.pods),
    }


def _unschedulable_pods(unplaced: Iterable[UnschedulablePod]) -> list[Json]:
    """Pods that failed alike share their reasons, so each set of reasons is rendered once."""
    data_by_reason: dict[tuple[int, int, int], Json] = {}
    unschedulable_pods: list[Json] = []
    for unschedulable_pod in unplaced:
        alike = (id(unschedulable_pod.reasons), id(unschedulable_pod.nearest_fit), id(unschedulable_pod.nearest_node))
        if alike not in data_by_reason:
            data_by_reason[alike] = unplaced_data(unschedulable_pod)
        unschedulable_pods.append({"pod": pod_name(unschedulable_pod.pod), **data_by_reason[alike]})
    return unschedulable_pods


def unplaced_data(unplaced: UnschedulablePod) -> Json:
    """Members of an unplaced pod beside its name. The first three members of a reason are as they always were."""
    return {
        "reasons": [_reason_data(reason) for reason in unplaced.reasons],
        "sentence": nearest_fit_sentence(unplaced.nearest_fit, unplaced.nearest_node),
        "nearestFit": nearest_fit_data(unplaced.nearest_fit) if unplaced.nearest_fit is not None else None,
        "nearestExistingNode": nearest_fit_data(unplaced.nearest_node) if unplaced.nearest_node is not None else None,
    }


def _reason_data(reason: UnschedulableReason) -> Json:
    return {
        "nodePool": reason.node_pool,
        "category": reason.category.value,
        "message": reason_message(reason),
        "types": _breakdown_data(reason.filter_breakdown) if reason.filter_breakdown is not None else None,
        "nearestFit": nearest_fit_data(reason.nearest_fit) if reason.nearest_fit is not None else None,
    }


def _breakdown_data(breakdown: FilterBreakdown) -> Json:
    filtered = [
        {
            **_filter_data(filtered_types.failed_filter),
            "message": filter_noun(filtered_types.failed_filter),
            "types": filtered_types.types,
            "typesFilteredAlone": filtered_types.only_by_this,
            "offerings": filtered_types.offerings,
        }
        for filtered_types in breakdown.filtered
    ]
    return {"types": breakdown.types, "offerings": breakdown.offerings, "filtered": filtered}


def nearest_fit_data(nearest_fit: NearestFit) -> Json:
    """What would have to change, and where."""
    return {
        "nodePool": nearest_fit.node_pool,
        "instanceType": nearest_fit.instance_type,
        "node": nearest_fit.node,
        "confinedTo": [{"constraint": c.relation, "key": c.key, "domain": c.domain} for c in nearest_fit.confinements],
        "changes": [_filter_data(obstacle) for obstacle in nearest_fit.failed_filters],
    }


def _filter_data(obstacle: FailedFilter) -> Json:
    return {
        "kind": obstacle.kind,
        "subject": filter_subject(obstacle),
        **_filter_figures(obstacle),
        "message": filter_clause(obstacle),
    }


def _filter_figures(obstacle: FailedFilter) -> Json:
    match obstacle:
        case InsufficientResource(resource, asked, there, where):
            amounts = {"asked": asked, "there": there, "short": obstacle.missing}
            return {"on": where, **{name: _quantity(resource, amount) for name, amount in amounts.items()}}
        case NodePoolLimitReached(resource, left, needed):
            return {"needed": _quantity(resource, needed), "left": _quantity(resource, left)}
        case MinValuesNotMet(_, wanted, there):
            return {"asked": str(wanted), "there": str(there)}
        case TopologyUnsatisfiable():
            return {"constraint": obstacle.relation, "counts": dict(obstacle.domain_counts)}
        case _:
            return {}


def _quantity(resource: str, amount: int) -> str:
    return res.resources_to_wire({resource: amount})[resource]
