"""Settings of disruption: the default thresholds of consolidation, drift at the limits of a NodePool."""
# ruff: noqa: RUF009 - what `setting` returns is a dataclass field, as `field` does

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from karpenter.model import setting_kinds as kinds
from karpenter.model.consolidation_thresholds import DEFAULT_RATIO, ConsolidationDefaults
from karpenter.model.feature_gates import FeatureGate, FeatureGates
from karpenter.model.setting_kinds import setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from karpenter.disruption.decide.disruption_problem import DisruptionOptions
    from karpenter.model.repair_policies import RepairPolicy
    from karpenter.scheduling.scheduling_options import SchedulingOptions


@dataclass(frozen=True, repr=False, eq=False)
class DisruptionSettings:
    """Disruption."""

    minimum_saving_ratio: float = setting(
        kinds.RATIO,
        f"{DEFAULT_RATIO:g}",
        "Least score of a consolidation: the share of the NodePool's cost it saves over the share of its pods it disrupts. "
        "The NodePool annotation karpenter.sh/minimum-saving-ratio overrides it.",
        karpenter_default="0",
    )
    minimum_node_age: timedelta = setting(
        kinds.DURATION,
        "5m",
        "Younger nodes are not consolidated, except those that lost a quarter of what they were launched for. "
        "The NodePool annotation karpenter.sh/minimum-node-age overrides it.",
        karpenter_default="0s",
    )
    wait_for_rollouts: bool = setting(
        kinds.SWITCH,
        "true",
        "Do not consolidate nodes with pods of a workload that is being rolled out.",
        karpenter_default="false",
    )
    stabilization_window: timedelta = setting(
        kinds.DURATION,
        "15s",
        "Nodes whose consolidateAfter ends within so long of each other are consolidated together. A node waits for others no "
        "longer than four times as long; 0s: nodes do not wait.",
        karpenter_default="0s",
    )

    empty_drifted_nodes_at_limits: bool = setting(
        kinds.SWITCH,
        "false",
        "Empty a drifted node before its replacement is launched where both together would exceed the limits of the "
        "NodePool: one node of a NodePool at a time, within budgets and PodDisruptionBudgets; its pods wait. Otherwise limits "
        "are exceeded until the node is gone.",
    )

    wait_for_slow_replacements: bool = setting(
        kinds.SWITCH,
        "true",
        "Let a command wait for its replacements as long as a NodeClaim may take to register, and half as long again as the "
        "slowest node of the NodePool took to become ready. Otherwise it ends after ten minutes, or an hour in large commands.",
        karpenter_default="false",
    )

    expiration_window: timedelta = setting(
        kinds.DURATION,
        "1h",
        "How long before its expiration (expireAfter) a node drifts: its replacement is launched first, within budgets. What is "
        "left is deleted when it expires. At most a tenth of expireAfter; 0s: nodes are deleted when they expire.",
        karpenter_default="0s",
    )

    legacy_node_repair: bool = setting(
        kinds.SWITCH,
        "false",
        "With the feature gate NodeRepair: delete broken nodes at once as Karpenter 1.14 did, without replacement first and "
        "without budgets. It is going to be removed.",
    )

    def uses_repair(self, gates: FeatureGates) -> bool:
        """Whether repair is one of the ways to disrupt nodes (K15-043), and not the controller of 1.14 (K15-046)."""
        return FeatureGate.NODE_REPAIR in gates and not self.legacy_node_repair

    def disruption_options(
        self, scheduling_options: SchedulingOptions, gates: FeatureGates, policies: Sequence[RepairPolicy] | None = None
    ) -> DisruptionOptions:
        """The options of a disruption decision; without the provider's policies repair is left out.

        Raises ``InvalidRepairPolicies`` where repair is on (K15-051). ``policies``: None where they are not known, or where the
        provider defines none, outside the profile karpenter.
        """
        # Imported here, so that help and the list of settings do not import the engine.
        from karpenter.disruption.decide.disruption_problem import DisruptionOptions
        from karpenter.model.repair_policies import repair_policies

        return DisruptionOptions(
            scheduling_options,
            FeatureGate.SPOT_TO_SPOT_CONSOLIDATION in gates,
            ConsolidationDefaults(
                self.minimum_saving_ratio, self.minimum_node_age, self.wait_for_rollouts, self.stabilization_window
            ),
            self.empty_drifted_nodes_at_limits,
            repair_policies(policies) if policies is not None and self.uses_repair(gates) else None,
            FeatureGate.TERMINATE_FIRST_DRIFT in gates,
            FeatureGate.TERMINATE_FIRST_REPAIR in gates,
        )
