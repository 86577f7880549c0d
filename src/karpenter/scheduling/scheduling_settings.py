"""Settings that a solution depends on."""
# ruff: noqa: RUF009 - what `setting` returns is a dataclass field, as `field` does

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction

from karpenter.model import setting_kinds as kinds
from karpenter.model.feature_gates import DEFAULT_FEATURE_GATES, FeatureGate, FeatureGates
from karpenter.model.setting_kinds import setting
from karpenter.scheduling.objective import (
    COST_PER_INTERRUPTION,
    DEFAULT_EXPOSURE,
    MAX_PODS_PER_NODE,
    NODE_FEE_PER_HOUR,
    ExposureLimits,
    Objective,
)
from karpenter.scheduling.scheduler_config import SCHEDULER_CONFIG, SchedulerConfig
from karpenter.scheduling.scheduling_options import MinValuesPolicy, PackingMode, PreferencePolicy, SchedulingOptions


@dataclass(frozen=True, repr=False, eq=False)
class SchedulingSettings:
    """Scheduling."""

    preference_policy: PreferencePolicy = setting(
        kinds.member_of(PreferencePolicy),
        "Respect",
        "Respect: treat preferred affinities and ScheduleAnyway constraints as required where possible; Ignore: drop them.",
    )
    min_values_policy: MinValuesPolicy = setting(
        kinds.member_of(MinValuesPolicy), "Strict", "BestEffort lowers minValues that cannot be met."
    )
    packing: PackingMode = setting(
        kinds.member_of(PackingMode),
        "cheapest",
        "How pods share new nodes. cheapest: the cheapest of all packings; classic: first-fit decreasing, one node at a time; "
        "fewest-pods: each pod goes to the new node with the fewest pods that takes it, as with Karpenter.",
        karpenter_default="fewest-pods",
    )
    node_fee: float = setting(
        kinds.USD,
        f"{NODE_FEE_PER_HOUR:g}",
        "Fixed cost added per node when plans are compared.",
        unit="USD per hour",
        karpenter_default="0",
    )
    cpu_surplus: bool = setting(
        kinds.SWITCH,
        "true",
        "Count CPU requests beyond the baseline of burstable instance types at the surplus price, and plan with the baseline "
        "where the type launches in credit mode standard.",
        karpenter_default="false",
    )
    exposure: Fraction = setting(
        kinds.SHARE,
        DEFAULT_EXPOSURE,
        "Largest share of a workload on one new node, and of a NodePool's spot nodes in one instance type and zone: "
        "above 0 and up to 1, or off. A soft constraint.",
        karpenter_default="off",
    )
    max_pods_per_node: int = setting(
        kinds.COUNT,
        str(MAX_PODS_PER_NODE),
        "Most planned pods on one new node; 0 means no limit. With --exposure off, a NodePool's annotation "
        "karpenter.sh/max-node-share still applies, and no other share of a plan.",
        karpenter_default="0",
    )
    interruption_cost: float = setting(
        kinds.USD,
        f"{COST_PER_INTERRUPTION:g}",
        "Cost of one spot interruption; applies where interruption rates are known.",
        unit="USD",
        karpenter_default="0",
    )
    terminating_pods_window: timedelta = setting(
        kinds.DURATION,
        "30s",
        "No node is launched for pods that fit where others are being deleted whose grace period ends within so long. A pod "
        "waits for such room no longer than that; 0s: pods count until they are gone.",
        karpenter_default="0s",
    )
    ignore_dra_requests: bool = setting(kinds.SWITCH, "true", "Ignore pods with ResourceClaims.")
    scheduler_config: SchedulerConfig = setting(
        SCHEDULER_CONFIG,
        "",
        "Default topology spread constraints of the cluster's scheduler (PodTopologySpread defaultConstraints), "
        "as YAML or JSON.",
    )

    @property
    def objective(self) -> Objective:
        """How plans are compared."""
        limits = replace(ExposureLimits.uniform(self.exposure), max_pods_per_node=self.max_pods_per_node)
        return Objective(self.node_fee, self.interruption_cost, limits, self.cpu_surplus)

    def scheduling_options(self, gates: FeatureGates = DEFAULT_FEATURE_GATES) -> SchedulingOptions:
        """The options of a scheduling pass."""
        return SchedulingOptions(
            self.preference_policy,
            self.min_values_policy,
            reserved_capacity=FeatureGate.RESERVED_CAPACITY in gates,
            default_spread=self.scheduler_config.default_constraints,
            objective=self.objective,
            packing_mode=self.packing,
            terminating_pods_window=self.terminating_pods_window,
        )
