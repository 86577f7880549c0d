"""The simulated cloud: buys machines that cost nothing, and plays what would run on them.

``provider`` is the cloud the controllers talk to, ``machines`` the stand-in for the machines and their kubelets, ``faults``
what goes wrong on purpose. What time means and who schedules pods is decided elsewhere: everything here runs on a real
cluster as well as in a simulation.
"""

from karpenter.providers.simulated.fault_rules import Faults, FaultsError
from karpenter.providers.simulated.simulated_nodes import SimulatedNodes, SimulatedTiming
from karpenter.providers.simulated.simulated_provider import SimulatedProvider

__all__ = ["SimulatedProvider", "SimulatedNodes", "SimulatedTiming", "Faults", "FaultsError"]
