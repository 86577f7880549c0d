"""Which machines may go, and why the others stay: functions of the same snapshot provisioning works on."""

from karpenter.decide.disrupt.emptiness import Blocked, Emptiness, PoolNodes, Removal, empty_nodes, pool_nodes

__all__ = ["Blocked", "Emptiness", "PoolNodes", "Removal", "empty_nodes", "pool_nodes"]
