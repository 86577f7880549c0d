"""Which machines may go, and why the others stay: functions of the same snapshot provisioning works on."""

from karpenter.decide.disrupt.allowances import PoolNodes, pool_nodes
from karpenter.decide.disrupt.candidates import Blocked, Circumstances
from karpenter.decide.disrupt.command import Candidate, Command, ConsolidationType, Decision, DisruptionReason, Score
from karpenter.decide.disrupt.decision import DisruptionOptions, Disruptions, decide_disruption
from karpenter.decide.disrupt.drift import drift_reason
from karpenter.decide.disrupt.emptiness import Emptiness, Removal, empty_nodes

__all__ = [
    "Blocked",
    "Candidate",
    "Circumstances",
    "Command",
    "ConsolidationType",
    "Decision",
    "DisruptionOptions",
    "DisruptionReason",
    "Disruptions",
    "Emptiness",
    "PoolNodes",
    "Removal",
    "Score",
    "decide_disruption",
    "drift_reason",
    "empty_nodes",
    "pool_nodes",
]
