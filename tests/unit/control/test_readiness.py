"""What readiness and complaints know of: the controller's own watches and those of what it brings along."""

from __future__ import annotations

from datetime import UTC, datetime

from karpenter.catalog import ec2
from karpenter.kube.errors import Forbidden
from karpenter.sim import time as virtual
from karpenter.sim.stage import Cast, on_stage
from karpenter.sim.time import LoopClock


def test_watches_of_the_simulated_machines_count_for_readiness() -> None:
    """OPS-364: without them nothing that is bought would ever come up."""

    async def scene(clock: LoopClock) -> None:
        async with on_stage(clock, Cast(ec2.types()[:1])) as stage:
            stage.server.fail_next(Forbidden("no configmaps for you"), verb="list", plural="configmaps", times=4)
            stage.server.close_watches()
            stage.server.compact()
            assert await stage.until(lambda: bool(stage.manager.faults()), 60)
            assert {str(fault) for fault in stage.manager.faults()} == {"no configmaps for you"}
            assert "no configmaps for you" in stage.manager.unready()
            assert await stage.until(lambda: not stage.manager.faults(), 120)
            assert stage.manager.unready() == ""

    virtual.run(scene, datetime(2026, 1, 5, tzinfo=UTC))
