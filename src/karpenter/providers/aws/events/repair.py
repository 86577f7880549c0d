"""Which conditions of a Node mean that its machine is broken (AWS-690). The last five come from EKS's node monitoring agent."""

from __future__ import annotations

from datetime import timedelta

from karpenter.model import conditions
from karpenter.providers.contract import RepairPolicy

_PATIENCE = timedelta(minutes=30)

POLICIES = (
    RepairPolicy("Ready", conditions.FALSE, _PATIENCE),
    RepairPolicy("Ready", conditions.UNKNOWN, _PATIENCE),
    RepairPolicy("AcceleratedHardwareReady", conditions.FALSE, timedelta(minutes=10)),
    RepairPolicy("StorageReady", conditions.FALSE, _PATIENCE),
    RepairPolicy("NetworkingReady", conditions.FALSE, _PATIENCE),
    RepairPolicy("KernelReady", conditions.FALSE, _PATIENCE),
    RepairPolicy("ContainerRuntimeReady", conditions.FALSE, _PATIENCE),
)
