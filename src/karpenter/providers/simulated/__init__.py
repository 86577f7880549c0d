"""The simulated cloud provider: instances without cost, and simulated kubelets for their nodes.

``simulated_provider`` implements the provider contract, ``simulated_nodes`` simulates instances and their kubelets,
``fault_rules`` injects faults. Virtual time and the scheduler stand-in are in ``karpenter.simulation``: everything here also
runs on a real cluster.
"""

from karpenter.providers.simulated.fault_rules import Faults, FaultsError
from karpenter.providers.simulated.simulated_nodes import NamedNodes, SimulatedNodes, SimulatedTiming
from karpenter.providers.simulated.simulated_provider import SimulatedProvider

__all__ = ["SimulatedProvider", "SimulatedNodes", "SimulatedTiming", "NamedNodes", "Faults", "FaultsError"]
