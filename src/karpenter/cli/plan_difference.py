"""What differs between two plans: nodes, price, pods that lose or get a place. Pure; ``render_difference`` shows it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from karpenter.cli.render_common import pod_name
from karpenter.scheduling.explain.nearest_fit_messages import nearest_fit_sentence
from karpenter.scheduling.explain.reason_messages import short_reason_message, unschedulable_message
from karpenter.scheduling.solution import NewNodeClaim, Solution, UnschedulablePod

#: Hours of a month for prices, as cloud price lists count them.
HOURS_PER_MONTH = 730


@dataclass(frozen=True, slots=True, order=True)
class NodeOffer:
    """How a planned node is launched: the cheapest offering of its NodeClaim. ``price_per_hour`` in USD."""

    node_pool: str
    instance_type: str
    zone: str
    capacity_type: str
    price_per_hour: float


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """Nodes of one offer in both plans."""

    offer: NodeOffer
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class LostPod:
    """A pod that has a place in the old plan and none in the new one. ``why``: the sentence of the new plan."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """Two plans side by side. Prices are USD per hour and include CPU beyond the baseline of burstable types.

    ``nodes``: offers whose number differs. ``lost``: pods that lose their place. ``placed``: pods that wait in the old plan and
    have a place in the new one. ``old_waiting``, ``new_waiting``: how many pods fit nowhere.
    """

    nodes: tuple[NodeDifference, ...]
    old_nodes: int
    new_nodes: int
    old_price_per_hour: float
    new_price_per_hour: float
    lost: tuple[LostPod, ...]
    placed: tuple[str, ...]
    old_waiting: int
    new_waiting: int

    @property
    def price_change_per_hour(self) -> float:
        """USD per hour that the new plan costs more; negative where it is cheaper."""
        return self.new_price_per_hour - self.old_price_per_hour

    @property
    def is_empty(self) -> bool:
        """Whether both plans launch the same nodes and leave the same pods."""
        return not (self.nodes or self.lost or self.placed)


def plan_difference(old: Solution, new: Solution) -> PlanDifference:
    """The difference of two plans. Time grows with their nodes and pods."""
    before, after = _offers(old), _offers(new)
    old_places, new_places = _placed_pods(old), _placed_pods(new)
    return PlanDifference(
        tuple(
            NodeDifference(offer, before[offer], after[offer])
            for offer in sorted(before.keys() | after.keys())
            if before[offer] != after[offer]
        ),
        len(old.new_claims),
        len(new.new_claims),
        _price(old),
        _price(new),
        tuple(
            LostPod(pod_name(left.pod), _why(left)) for left in new.unschedulable if pod_name(left.pod) in old_places
        ),
        tuple(name for name in (pod_name(left.pod) for left in old.unschedulable) if name in new_places),
        len(old.unschedulable),
        len(new.unschedulable),
    )


def _offers(plan: Solution) -> Counter[NodeOffer]:
    return Counter(_offer(claim) for claim in plan.new_claims)


def _offer(claim: NewNodeClaim) -> NodeOffer:
    offering = claim.cheapest_offering
    return NodeOffer(
        claim.node_pool, claim.instance_types[0], offering.zone, offering.capacity_type, float(claim.price_per_hour)
    )


def _price(plan: Solution) -> float:
    return float(plan.price_per_hour) + plan.cpu_surplus_per_hour


def _why(left: UnschedulablePod) -> str:
    sentence = nearest_fit_sentence(left.nearest_fit, left.nearest_node)
    return sentence or unschedulable_message(left.reasons, short_reason_message)


def _placed_pods(plan: Solution) -> frozenset[str]:
    placed = [*(claim.pods for claim in plan.new_claims), *(group.pods for group in plan.placed_on_existing)]
    return frozenset(pod_name(pod) for pods in placed for pod in pods)
