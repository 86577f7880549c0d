"""Feature gates: functions a user switches on or off for the whole controller (API-032, OPS §4.4)."""

from __future__ import annotations

from enum import StrEnum


class FeatureGate(StrEnum):
    """A switchable function, under the name users write in the settings, in the order of K15-045; the last two are ours."""

    NODE_REPAIR = "NodeRepair"
    RESERVED_CAPACITY = "ReservedCapacity"
    SPOT_TO_SPOT_CONSOLIDATION = "SpotToSpotConsolidation"
    NODE_OVERLAY = "NodeOverlay"
    STATIC_CAPACITY = "StaticCapacity"
    CAPACITY_BUFFER = "CapacityBuffer"
    TERMINATE_FIRST_DRIFT = "TerminateFirstDrift"
    TERMINATE_FIRST_REPAIR = "TerminateFirstRepair"
    POD_DELETION_COST_MANAGEMENT = "PodDeletionCostManagement"
    CAPACITY_SCHEDULE = "CapacitySchedule"
    GANG_SCHEDULING = "GangScheduling"


#: The gates that are on.
FeatureGates = frozenset[FeatureGate]

#: Feature gates of Karpenter by default (API-875). The profile lean switches on more of them: the setting `feature_gates`.
DEFAULT_FEATURE_GATES: FeatureGates = frozenset({FeatureGate.RESERVED_CAPACITY})
