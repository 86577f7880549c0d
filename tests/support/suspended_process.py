"""A process that is stopped for a while, in virtual time: when it goes on, time has passed and nothing was done meanwhile."""

from __future__ import annotations

import asyncio

from karpenter.simulation.virtual_time import VirtualLoop


def stand_still(seconds: float) -> None:
    """Let time pass at once, with everything that was due in it still undone, as after SIGSTOP and SIGCONT."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop._selector.now += seconds
