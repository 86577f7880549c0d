"""Which offerings a rule of a simulated world is about."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

import msgspec

from karpenter.providers.simulated.fault_rules import SimulatedLaunch


class OfferingPattern(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which offerings a rule is about, as shell patterns."""

    instance_type: str = "*"
    zone: str = "*"
    capacity_type: str = "*"

    def matches(self, launch: SimulatedLaunch) -> bool:
        """Whether the rule is about this launch."""
        return (
            fnmatchcase(launch.instance_type, self.instance_type)
            and fnmatchcase(launch.zone, self.zone)
            and fnmatchcase(launch.capacity_type, self.capacity_type)
        )


PatternT = TypeVar("PatternT", bound=OfferingPattern)


def first_match(rules: Sequence[PatternT], launch: SimulatedLaunch) -> PatternT | None:
    """The first rule that is about this launch."""
    return next((rule for rule in rules if rule.matches(launch)), None)
