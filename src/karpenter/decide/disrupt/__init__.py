"""Which machines may go, and why the others stay: functions of the same snapshot provisioning works on."""

from karpenter.decide.disrupt.allowances import PoolNodes, pool_nodes
from karpenter.decide.disrupt.candidates import Blocked, Circumstances
from karpenter.decide.disrupt.command import Candidate, Command, ConsolidationType, Decision, DisruptionReason, Score
from karpenter.decide.disrupt.decision import DisruptionOptions, Disruptions, decide_disruption
from karpenter.decide.disrupt.drift import drift_reason

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
    "PoolNodes",
    "Score",
    "decide_disruption",
    "drift_reason",
    "pool_nodes",
]
