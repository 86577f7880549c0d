"""Readiness covers the controller's own watches and those of its provider."""

from __future__ import annotations

from datetime import UTC, datetime

from karpenter.instancetypes import ec2_packaged_types
from karpenter.kube.errors import Forbidden
from karpenter.simulation import virtual_time as virtual
from karpenter.simulation.simulated_cluster import SimulationConfig, running_cluster
from karpenter.simulation.virtual_time import LoopClock


def test_watches_of_the_simulated_nodes_count_for_readiness() -> None:
    """OPS-364: without them nothing that is launched would ever come up."""

    async def scenario(clock: LoopClock) -> None:
        async with running_cluster(clock, SimulationConfig(ec2_packaged_types.packaged_instance_types()[:1])) as stage:
            stage.server.inject_fault(Forbidden("no configmaps for you"), verb="list", plural="configmaps", times=4)
            stage.server.close_watches()
            stage.server.compact()
            assert await stage.wait_until(lambda: bool(stage.manager.informers.faults()), 60)
            assert {str(fault) for fault in stage.manager.informers.faults()} == {"no configmaps for you"}
            assert "no configmaps for you" in stage.manager.informers.unready()
            assert await stage.wait_until(lambda: not stage.manager.informers.faults(), 120)
            assert stage.manager.informers.unready() == ""

    virtual.run_virtual(scenario, datetime(2026, 1, 5, tzinfo=UTC))
