"""Feature gates: functions a user switches on or off for the whole controller (API-032, OPS §4.4)."""

from __future__ import annotations

from enum import StrEnum


class FeatureGate(StrEnum):
    """A switchable function, under the name users write in the settings."""

    STATIC_CAPACITY = "StaticCapacity"
    NODE_OVERLAY = "NodeOverlay"
    CAPACITY_BUFFER = "CapacityBuffer"
    CAPACITY_SCHEDULE = "CapacitySchedule"
    NODE_REPAIR = "NodeRepair"
    RESERVED_CAPACITY = "ReservedCapacity"
    SPOT_TO_SPOT_CONSOLIDATION = "SpotToSpotConsolidation"


#: The gates that are on.
FeatureGates = frozenset[FeatureGate]

#: Feature gates by default (API-875).
DEFAULT_FEATURE_GATES: FeatureGates = frozenset({FeatureGate.RESERVED_CAPACITY})
