"""Options of a scheduling pass: the settings a solution depends on, as part of the problem. No imports beyond plain data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum

from karpenter.api.scheduling_constraints import TopologySpreadConstraint
from karpenter.scheduling.objective import Objective


class MinValuesPolicy(StrEnum):
    """What happens when a pool's minValues cannot be met (OPS-329)."""

    STRICT = "Strict"
    BEST_EFFORT = "BestEffort"


class ArrivalForecast(StrEnum):
    """Whether pods are expected to keep arriving as they did lately (`arrival_forecast`)."""

    RECENT_ARRIVALS = "Arrivals"
    NONE = "Nothing"


class PackingMode(StrEnum):
    """Whether the cheapest of all packings is taken (SCH-865), or one that needs no search.

    Classic fills one node after another; the other deals each pod to the new node with the fewest pods, as Karpenter (SCH-260).
    """

    CHEAPEST = "cheapest"
    CLASSIC = "classic"
    FEWEST_PODS = "fewest-pods"


class PreferencePolicy(StrEnum):
    """Whether preferences are honoured while they can be (OPS-328)."""

    RESPECT = "Respect"
    IGNORE = "Ignore"


@dataclass(frozen=True)
class SchedulingOptions:
    """Settings a solution depends on. ``default_spread``: constraints for pods that have none, without selectors (SCH-830).

    ``terminating_pods_window``: pods that are to end within so long leave their room to those that wait (`terminating_pods`).
    """

    preferences: PreferencePolicy = PreferencePolicy.RESPECT
    min_values: MinValuesPolicy = MinValuesPolicy.STRICT
    #: Whether units of reservations are counted (gate ReservedCapacity); else reserved offerings are like any other.
    reserved_capacity: bool = True
    default_spread: tuple[TopologySpreadConstraint, ...] = ()
    objective: Objective = field(default_factory=Objective)
    packing_mode: PackingMode = PackingMode.CHEAPEST
    arrival_forecast: ArrivalForecast = ArrivalForecast.RECENT_ARRIVALS
    terminating_pods_window: timedelta = timedelta()

    def counting_terminating_pods(self) -> SchedulingOptions:
        """The same, but for pods that are being deleted: they keep their room until they are gone."""
        return replace(self, terminating_pods_window=timedelta()) if self.terminating_pods_window else self
