"""What a plan is worth: the one function plans are compared by (issue of price; no such thing in the reference).

    worth = price of the offerings + a fee for every machine

All in USD per hour; less is better. The *price* is what the cloud asks for the cheapest offering each machine accepts. The *fee*
stands for what a machine costs beside its price: addresses, agents, root volume, the work of starting it. It is small, but not
nothing, so that pennies never buy a swarm. Plans show prices without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: USD per hour: about an 80 GiB root volume share and an address in use, on the low side.
NODE_FEE_PER_HOUR = 0.005


@dataclass(frozen=True)
class Worth:
    """How plans are valued. ``node_fee_per_hour`` in USD; zero compares by price alone."""

    node_fee_per_hour: float = NODE_FEE_PER_HOUR

    def of(self, prices_per_hour: Iterable[float]) -> float:
        """USD per hour that machines of these prices are counted with."""
        return sum(price + self.node_fee_per_hour for price in prices_per_hour)
