"""Which machines may go, and why the others stay: functions of the same snapshot provisioning works on."""

from karpenter.decide.disrupt.emptiness import Blocked, Emptiness, Removal, empty_nodes

__all__ = ["Blocked", "Emptiness", "Removal", "empty_nodes"]
