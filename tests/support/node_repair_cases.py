"""Nodes for node repair: a provider with repair policies, nodes with a boot ID, and reboots."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from karpenter.api import kinds
from karpenter.api.karpenter import Budget, Disruption, NodeClaim
from karpenter.model.feature_gate_flags import parse_feature_gates
from karpenter.model.repair_policies import RepairAction, RepairPolicy
from karpenter.settings import Settings
from support.virtual_cluster import VirtualCluster

ON = Settings(feature_gates=parse_feature_gates("NodeRepair=true"))
MINUTE = timedelta(minutes=1)
POLICIES = (
    RepairPolicy("Ready", "False", 30 * MINUTE),
    RepairPolicy("DiskReady", "False", 10 * MINUTE, ".*", drain_bound=2 * MINUTE),
    RepairPolicy("GpuReady", "False", 10 * MINUTE, ".*", drain_bound=MINUTE, action=RepairAction.REBOOT),
)
OPEN = Disruption(consolidate_after="Never", budgets=(Budget(nodes="100%"),))


async def start_with_nodes(
    cluster: VirtualCluster,
    settings: Settings = ON,
    *,
    count: int = 5,
    disruption: Disruption = OPEN,
    policies: Sequence[RepairPolicy] = POLICIES,
) -> None:
    """So many nodes, a pod on each, and a provider whose reboots give the Node another boot ID at once."""
    cluster.cloud.repair_policies = lambda: tuple(policies)
    await cluster.node_class()
    pool = await cluster.pool(disruption=disruption)
    await cluster.start(settings)
    for number in range(count):
        await cluster.owned_claim(pool, f"n{number}")
    await asyncio.sleep(0.1)
    for number in range(count):
        await cluster.join(f"n{number}", f"n{number}")
        await set_boot_id(cluster, f"n{number}", "boot-1")
    await asyncio.sleep(1)
    for number in range(count):
        await cluster.running(f"p{number}", f"n{number}", requests={"cpu": "3"})


async def set_boot_id(cluster: VirtualCluster, node: str, boot_id: str) -> None:
    await cluster.kube.patch(kinds.NODE, node, {"status": {"nodeInfo": {"bootID": boot_id}}}, subresource="status")


async def leaving(cluster: VirtualCluster) -> list[str]:
    return [obj.metadata.name for obj in await cluster.all(kinds.NODE_CLAIM) if obj.metadata.deletion_timestamp]


def rebooting(cluster: VirtualCluster, boots: bool = True, *errors: Exception) -> list[str]:
    """Let the provider reboot; the operation IDs it is asked with. With errors it refuses so often."""
    asked: list[str] = []
    left = list(errors)

    async def reboot(claim: NodeClaim, operation_id: str) -> None:
        asked.append(operation_id)
        if left:
            raise left.pop(0) if len(left) > 1 else left[0]
        if boots:
            await set_boot_id(cluster, claim.status.node_name, f"after-{len(asked)}")

    cluster.cloud.reboot = reboot  # type: ignore[attr-defined]
    return asked


async def phase(cluster: VirtualCluster, name: str = "n0") -> tuple[str, str]:
    condition = await cluster.condition(name, "Rebooting")
    return condition[:2] if condition is not None else ("", "")
