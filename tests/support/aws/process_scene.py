"""A cluster for stories about the controller's process on AWS: the in-memory API server over HTTP, and the double.

Everything a new process knows comes from these two. The double's clock is slow by a minute, so every machine is old at once, and
the collector of machines nobody owns, which spares young ones, spares none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.harness import Json
from controlplane.patience import patience
from controlplane.process import Controller, controller
from karpenter.api import kinds
from karpenter.api.karpenter import NodeClaim
from karpenter.model import labels
from karpenter.simulation.apiserver import MemoryKube, compile_query
from karpenter.simulation.apiserver.http_front import kubeconfig_for, serving
from support.aws.double import Double
from support.aws.kill_points import Ambush, Moment, WatchedServer
from support.aws.messages import Mailbox
from support.aws.seeds import Seeds, seed
from support.aws.stage import CLUSTER, node_class, node_pool, settings_for

BEHIND_SECONDS = 60.0
_PATIENCE_SECONDS = 120.0
_LOOK_SECONDS = 0.05
#: How much of the controller's log a failure shows.
_LOG_CHARACTERS = 8000
#: A process alone need not wait for the lease of its dead predecessor.
ALONE = ("--disable-leader-election", "true")
_QUICK = {"BATCH_IDLE_DURATION": "200ms"}


#: What is sold, so that a process starts quickly.
_FAMILIES = ("c5", "c6i", "m5", "m6i", "m6a", "r5", "r6i")
_TYPES = frozenset(f"{family}.{size}" for family in _FAMILIES for size in ("large", "xlarge", "metal"))


@contextmanager
def slow_double() -> Iterator[Double]:
    """The double with its slow clock, and a few types."""
    with Double(now=lambda: time.time() - BEHIND_SECONDS) as running:
        running.region.market.sell_only(_TYPES)
        yield running


@dataclass
class Scene:
    """One story's cluster."""

    aws: Double
    seeds: Seeds
    queue: Mailbox
    ambush: Ambush
    kube: MemoryKube
    url: str
    kubeconfig: str
    _pods: int = field(default=0)

    # -- processes ------------------------------------------------------------------------------------------------------------

    @contextmanager
    def controller(self, *flags: str) -> Iterator[Controller]:
        """`karpenter run`; it is killed at the end, if not before."""
        with controller(self.kubeconfig, *flags, environment={**settings_for(self.aws), **_QUICK}) as running:
            try:
                yield running
            except AssertionError as error:
                error.add_note(f"the controller's log ends with:\n{running.log[-_LOG_CHARACTERS:]}")
                raise
            finally:
                running.kill()

    async def life_until(self, moment: Moment) -> None:
        """A process that lives until the moment comes."""
        with self.controller(*ALONE) as running:
            await self.struck(moment, running, running.kill)

    async def struck(self, moment: Moment, running: Controller, blow: Callable[[], None]) -> None:
        """Wait until the moment comes from now on, and the process has got the blow."""
        self.ambush.lay(moment, blow)
        await self.until(lambda: "" if self.ambush.is_sprung else f"no {moment} came:\n{running.log[-3000:]}")

    async def until(self, missing: Callable[[], str], seconds: float = _PATIENCE_SECONDS) -> None:
        """Wait until nothing is ``missing``; fail with what is at the deadline."""
        end = time.monotonic() + patience(seconds)
        while text := missing():
            assert time.monotonic() < end, text
            await asyncio.sleep(_LOOK_SECONDS)

    # -- what is there --------------------------------------------------------------------------------------------------------

    def claims(self) -> tuple[NodeClaim, ...]:
        """The claims, as stored."""
        server = self.kube.server
        kind = kinds.NODE_CLAIM
        resource = server.resource(kind.group, kind.version, kind.plural)
        return tuple(
            kind.decode(entry.data) for entry in server.list(resource, compile_query(kind, "", "", "")).entries
        )

    def machines(self) -> list[dict[str, Any]]:
        """The machines nobody has told to go."""
        return [machine for machine in self.aws.control.machines() if machine["ended_at"] is None]

    def odd(self) -> str:
        """What does not fit: empty where each claim has one machine of its own, and each machine its claim."""
        owned = [claim.status.provider_id for claim in self.claims()]
        alive = {machine["provider_id"] for machine in self.machines()}
        faults = {
            "claims without machine": owned.count(""),
            "machines with several claims": len(owned) - len(set(owned)) if "" not in owned else 0,
            "machines without claim": len(alive - set(owned)),
            "claims whose machine is gone": len(set(owned) - alive - {""}),
        }
        return ", ".join(f"{count} {what}" for what, count in faults.items() if count)

    def lacking(self, count: int) -> str:
        """What is missing for so many claims that each have a machine, and nothing else."""
        result = len(self.claims())
        return self.odd() if result == count else f"{result} of {count} claims; {self.odd()}"

    # -- what is done ---------------------------------------------------------------------------------------------------------

    def ask(self, count: int) -> None:
        """So many more pods that need a machine each, of either way of paying in turn."""
        self.kube.server.load_objects(pod(self._pods + number) for number in range(count))
        self._pods += count

    async def clear(self) -> None:
        """Nobody needs machines any more: no pods, and all claims are to go."""
        for waiting in (await self.kube.list(kinds.POD)).items:
            await self.kube.delete(kinds.POD, waiting.metadata.name, waiting.metadata.namespace, grace_period_seconds=0)
        for claim in self.claims():
            await self.kube.delete(kinds.NODE_CLAIM, claim.metadata.name)
        self._pods = 0


def pod(number: int) -> Json:
    """A pod that needs a machine."""
    wanted = {
        labels.CAPACITY_TYPE: ("spot", "on-demand")[number % 2],
        f"{labels.AWS_GROUP}/instance-size": "large",
    }
    container = {"name": "app", "image": "pause", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"web-{number}", "namespace": "default"},
        "spec": {"nodeSelector": wanted, "containers": [container]},
        "status": {"phase": "Pending", "conditions": [unschedulable]},
    }


@asynccontextmanager
async def scene(aws: Double, folder: Path) -> AsyncIterator[Scene]:
    """A new cluster with two pools, spot and on-demand, on a double as in the beginning."""
    aws.reset()
    seeds = seed(aws)
    ambush = Ambush()
    aws.around = ambush.around_call
    server = WatchedServer(ambush)
    async with serving(server) as url:
        aws.control.add_cluster(CLUSTER, url, "")
        path = folder / "kubeconfig"
        path.write_text(kubeconfig_for(url))
        made = Scene(aws, seeds, Mailbox(aws, CLUSTER), ambush, MemoryKube(server), url, str(path))
        never = {"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}
        server.load_objects(
            [
                node_class(),
                node_pool("spot", ("spot",), disruption=never),
                node_pool("steady", ("on-demand",), disruption=never),
            ]
        )
        try:
            yield made
        finally:
            ambush.release_all()
