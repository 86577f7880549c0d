"""The objective: the one function by which plans are compared. Karpenter has none.

    objective = price of the nodes + a fee for every node + the expected cost of interruptions

All in USD per hour; less is better. The *price* of a node is what the cloud asks for the cheapest offering its claim accepts, and
for CPU that its pods request beyond the baseline of a burstable type (`cpu_surplus`). The *fee* stands for what a node costs
whatever its size: root volume, image pulls, a public address. It is small, but large enough that a saving of pennies does not
lead to many tiny nodes. What DaemonSets request is no part of it: packings take it off each node. Nor is the time of booting:
it is paid by the price, so it favors no size. *Interruptions* are what spot nodes cost by being taken away:

    interruptions per hour, as the provider states them for the offering, times the cost of one

Where a provider states none, none are expected. One interruption costs the work that is lost, and the node that is paid for while
it starts in place of another: a quarter of an hour of two nodes at 2 USD per hour is the default. Where a type is interrupted
once in twenty days that is 0.002 USD per hour; it decides between nodes of about the same price, and no more. The provider
decides which of a claim's types is launched: claims offer all that hold their pods, by price.

*Exposure* is no part of the sum. It is a limit that gives way (`workload_exposure.py`, `spot_spread.py`, `node_share.py`).

Plans show prices without fee and interruptions, and what CPU beyond the baseline costs apart from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

from karpenter.instancetypes.instance_type import Offering
from karpenter.instancetypes.type_index import OfferingPrices
from karpenter.model.shares import WHOLE, parse_share

#: USD per hour: 20 GiB of root volume (0.08 USD per GiB and month), and 2 GB of images (0.045 USD per GB through a NAT gateway)
#: over a node life of a day or two. docs/concepts/packing.md describes the effect of other fees.
NODE_FEE_PER_HOUR = 0.005
#: USD: see above.
COST_PER_INTERRUPTION = 1.0
#: The share of both limits of exposure, as settings write it.
DEFAULT_EXPOSURE = "0.5"
_DEFAULT_SHARE = parse_share(DEFAULT_EXPOSURE)
#: The share of a plan on one new node, and the most pods there.
_DEFAULT_PLAN_SHARE = Fraction(1, 4)
MAX_PODS_PER_NODE = 110
#: USD per hour that a free node counts with where values per dollar are compared.
LEAST_PRICE_PER_HOUR = 1e-6
#: Remembered orders of prices, each with all offerings of an index.
_ORDERS = 128


@dataclass(frozen=True)
class ExposureLimits:
    """How much may hang on one thing that breaks, as shares; a share of 1 is no limit.

    ``per_node`` of a workload with at least ``min_pods`` pods on one new node; ``per_spot_pool`` of a NodePool's spot nodes, from
    ``min_claims`` on, in one type and zone; ``per_plan`` of a plan on one new node (`node_share`), which has at most
    ``max_pods_per_node`` pods in any case, 0 for no such limit.
    """

    per_node: Fraction = _DEFAULT_SHARE
    per_spot_pool: Fraction = _DEFAULT_SHARE
    min_pods: int = 4
    min_claims: int = 4
    per_plan: Fraction = _DEFAULT_PLAN_SHARE
    max_pods_per_node: int = MAX_PODS_PER_NODE

    @staticmethod
    def uniform(share: Fraction) -> ExposureLimits:
        """The same share of a workload and of spot nodes; no limit at all where that is the whole."""
        off = ExposureLimits(share, share, per_plan=WHOLE, max_pods_per_node=0)
        return off if share == WHOLE else ExposureLimits(share, share)


#: No limit at all.
NO_EXPOSURE_LIMITS = ExposureLimits.uniform(WHOLE)


class PricedClaim(Protocol):
    """A claim with pods: its offering, and USD per hour for CPU beyond the baseline of its type."""

    @property
    def cheapest_offering(self) -> Offering:
        """The offering that it is priced by."""

    @property
    def cpu_surplus_per_hour(self) -> float:
        """USD per hour beside the offering."""


@dataclass(frozen=True)
class Objective:
    """How plans are valued. ``node_fee_per_hour`` in USD; zero compares by price alone. ``cost_per_interruption`` in USD.

    ``counts_cpu_surplus``: CPU requests beyond the baseline of burstable types cost money; otherwise types count with the price
    of their offering, as in Karpenter.
    """

    node_fee_per_hour: float = NODE_FEE_PER_HOUR
    cost_per_interruption: float = COST_PER_INTERRUPTION
    exposure: ExposureLimits = field(default_factory=ExposureLimits)
    counts_cpu_surplus: bool = True

    def interruption_cost(self, offering: Offering) -> float:
        """USD per hour that interruptions of a node of the offering are expected to cost."""
        return offering.interruptions_per_hour * self.cost_per_interruption

    def ordered(self, prices: OfferingPrices) -> OfferingPrices:
        """The same prices with the types in order of worth; equal ones stay in order of price."""
        return _ordered(self, prices) if self.cost_per_interruption else prices

    def offering_cost(self, offering: Offering) -> float:
        """USD per hour that a node of the offering is counted with, before its pods request CPU."""
        return offering.price_per_hour + self.interruption_cost(offering) + self.node_fee_per_hour

    def claim_cost(self, claim: PricedClaim) -> float:
        """USD per hour that the node of a claim is counted with."""
        return self.offering_cost(claim.cheapest_offering) + claim.cpu_surplus_per_hour

    def total_cost(self, claims: Iterable[PricedClaim]) -> float:
        """USD per hour that the nodes of claims are counted with."""
        return sum(self.claim_cost(claim) for claim in claims)


@lru_cache(maxsize=_ORDERS)
def _ordered(objective: Objective, prices: OfferingPrices) -> OfferingPrices:
    """What-if questions of disruption ask for the order of the same prices a thousand times in a pass."""
    offering = prices.cheapest_offering
    if not any(sold.interruptions_per_hour for sold in offering.values()):
        return prices
    return replace(prices, order=tuple(sorted(prices.order, key=lambda at: objective.offering_cost(offering[at]))))
