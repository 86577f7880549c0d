"""Repair policies of nodes on EC2 (K15-A63 to K15-A74), and those of release 1.14 (AWS-690).

All conditions but Ready come from an agent on the node. The reasons of ``AcceleratedHardwareReady`` name the error codes (XID) of
NVIDIA GPUs: a reboot clears some of them, others need another machine.
"""

from __future__ import annotations

from datetime import timedelta

from karpenter.model import conditions
from karpenter.model.repair_policies import RepairAction, RepairPolicy

_LONG, _SHORT = timedelta(minutes=30), timedelta(minutes=10)
_GPU_DRAIN, _DRAIN = timedelta(minutes=5), timedelta(minutes=10)
_ANY = ".*"
_ACCELERATORS = "AcceleratedHardwareReady"
#: Error codes that a reboot clears, and those that need another machine (K15-A66, K15-A67).
_REBOOT_CODES = (46, 48, 54, 62, 63, 95, 109, 110, 136, 140, 143, 155, 156, 158)
_REPLACE_CODES = (64, 74, 79, 119, 120)
_OTHER_CONDITIONS = ("StorageReady", "NetworkingReady", "KernelReady", "ContainerRuntimeReady")


def _reasons(codes: tuple[int, ...]) -> str:
    return f".*XID({'|'.join(map(str, codes))}).*"


def ec2_repair_policies(*, reboots: bool) -> tuple[RepairPolicy, ...]:
    """The policies in force. ``reboots``: faults that a reboot clears lead to one (gate RebootForRepair, K15-A09)."""
    clearing = RepairAction.REBOOT if reboots else RepairAction.REPLACE
    return (
        RepairPolicy("Ready", conditions.FALSE, _LONG, _ANY, _DRAIN),
        RepairPolicy("Ready", conditions.UNKNOWN, _LONG, _ANY, _DRAIN),
        RepairPolicy(_ACCELERATORS, conditions.FALSE, _SHORT, _reasons(_REBOOT_CODES), _GPU_DRAIN, action=clearing),
        RepairPolicy(_ACCELERATORS, conditions.FALSE, _SHORT, _reasons(_REPLACE_CODES), _GPU_DRAIN),
        RepairPolicy(_ACCELERATORS, conditions.FALSE, _LONG, drain_bound=_DRAIN),
        *(RepairPolicy(name, conditions.FALSE, _LONG, _ANY, _DRAIN) for name in _OTHER_CONDITIONS),
    )


#: The policies of release 1.14, with the setting LEGACY_NODE_REPAIR (K15-A63, AWS-690).
LEGACY_REPAIR_POLICIES = (
    RepairPolicy("Ready", conditions.FALSE, _LONG),
    RepairPolicy("Ready", conditions.UNKNOWN, _LONG),
    RepairPolicy(_ACCELERATORS, conditions.FALSE, _SHORT),
    *(RepairPolicy(name, conditions.FALSE, _LONG) for name in _OTHER_CONDITIONS),
)
