"""Which subnet the next machines go to, by the addresses it will have left (AWS-432 to AWS-435).

EC2's count of free addresses is minutes old and machines take theirs as they start, so every launch takes what it may need off an
estimate. What a launch did not use comes back with its answer; a fresh count replaces all estimates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from karpenter.api.ec2 import Subnet


@dataclass(frozen=True)
class Places:
    """Chosen subnets by zone; by subnet what was taken off its estimate, and how often it had been counted by then."""

    by_zone: Mapping[str, str]
    taken: Mapping[str, int]
    counts: Mapping[str, int]


class Addresses:
    """Free addresses per subnet, as last counted less what launches in flight may take."""

    def __init__(self) -> None:
        self._free: dict[str, int] = {}
        self._estimates: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    def counted(self, free: Mapping[str, int]) -> None:
        """What EC2 says now. Estimates of these subnets begin anew (AWS-434)."""
        self._free.update(free)
        for subnet in free:
            self._counts[subnet] = self._counts.get(subnet, 0) + 1
            self._estimates.pop(subnet, None)

    def exhausted(self, subnet: str) -> None:
        """EC2 said that there is none left (AWS-435)."""
        self._free[subnet] = 0
        self._estimates.pop(subnet, None)

    def left(self, subnet: str) -> int:
        """How many addresses a subnet will have; 0 where nobody counted."""
        return self._estimates.get(subnet, self._free.get(subnet, 0))

    def choose(self, subnets: Iterable[Subnet], needs: Mapping[str, int]) -> Places:
        """Per zone that is needed the subnet with most addresses, the earlier of equals; ``needs`` are taken off it."""
        chosen: dict[str, str] = {}
        for subnet in subnets:
            known = chosen.get(subnet.zone)
            if subnet.zone in needs and (known is None or self.left(subnet.id) > self.left(known)):
                chosen[subnet.zone] = subnet.id
        taken = {chosen_id: needs[zone] for zone, chosen_id in chosen.items()}
        for chosen_id, need in taken.items():
            self._estimates[chosen_id] = self.left(chosen_id) - need
        return Places(chosen, taken, {chosen_id: self._counts.get(chosen_id, 0) for chosen_id in taken})

    def give_back(self, places: Places, used: Iterable[str]) -> None:
        """The launch is answered: what was not used is free again, unless it was counted meanwhile (AWS-434)."""
        kept = frozenset(used)
        for subnet, need in places.taken.items():
            is_counted_since = places.counts[subnet] != self._counts.get(subnet, 0)
            if subnet not in kept and not is_counted_since and subnet in self._estimates:
                self._estimates[subnet] += need
