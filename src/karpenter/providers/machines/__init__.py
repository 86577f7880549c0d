"""The provider ``machines``: a fixed set of hosts, powered on and off by commands (Wake-on-LAN, IPMI, libvirt, any script)."""

from karpenter.providers.machines.machine_power import MachinePower, PowerCommands, PowerFailed
from karpenter.providers.machines.machine_provider import MachineProvider

__all__ = ["MachinePower", "MachineProvider", "PowerCommands", "PowerFailed"]
