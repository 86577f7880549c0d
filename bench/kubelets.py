"""Simulated instances in a process of their own, so that what their kubelets cost is not counted as the controller's.

``--provider bench.kubelets:provider`` gives a controller the simulated cloud without anything that runs on its instances;
``python -m bench.kubelets KUBECONFIG`` plays all of that until it is ended.
"""

from __future__ import annotations

import asyncio
import sys

from karpenter.instancetypes import ec2_packaged_types
from karpenter.kube import config
from karpenter.model.clock import SystemClock
from karpenter.model.token_bucket import TokenBucket
from karpenter.providers.contract import ProviderContext
from karpenter.providers.simulated import Faults, SimulatedNodes, SimulatedProvider
from karpenter.runtime import logging

#: Kubelets have a client each.
_QPS = 2000


def provider(context: ProviderContext) -> SimulatedProvider:
    """The simulated cloud; its instances do nothing by themselves."""
    return SimulatedProvider(context.kube, context.clock, ec2_packaged_types.packaged_instance_types(), Faults())


async def _main(kubeconfig: str) -> None:
    logging.configure("error", sys.stderr)
    async with config.connect(config.load(kubeconfig), TokenBucket(_QPS, _QPS)) as kube:
        await SimulatedNodes(kube, SystemClock()).run()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
