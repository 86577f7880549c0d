"""A cluster for tests of the controller process on AWS: the in-memory API server over HTTP, and the double.

A new process has no other state. The double's clock is a minute slow, so garbage collection, which skips instances that are
younger than a minute, skips none.
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
from controlplane.process import Controller, controller
from controlplane.timeouts import scaled_timeout
from karpenter.api import kinds
from karpenter.api.karpenter import NodeClaim
from karpenter.model import labels
from karpenter.simulation.apiserver import MemoryKube, compile_query
from karpenter.simulation.apiserver.http_front import kubeconfig_for, serving
from support.aws.aws_cluster import CLUSTER, controller_environment, node_class, node_pool
from support.aws.double import Double
from support.aws.interruption_queue import InterruptionQueue
from support.aws.kill_points import KillPoint, KillTrigger, WatchedServer
from support.aws.seeds import Seeds, seed

BEHIND_SECONDS = 60.0
_TIMEOUT_SECONDS = 120.0
_POLL_SECONDS = 0.05
#: How much of the controller's log a failure shows.
_LOG_CHARACTERS = 8000
#: Without leader election a process does not wait for the lease of its killed predecessor.
NO_LEADER_ELECTION = ("--disable-leader-election", "true")
_QUICK = {"BATCH_IDLE_DURATION": "200ms"}


#: Few instance types, so that a process starts quickly.
_FAMILIES = ("c5", "c6i", "m5", "m6i", "m6a", "r5", "r6i")
_TYPES = frozenset(f"{family}.{size}" for family in _FAMILIES for size in ("large", "xlarge", "metal"))


@contextmanager
def double_with_slow_clock() -> Iterator[Double]:
    """The double with a slow clock and few instance types."""
    with Double(now=lambda: time.time() - BEHIND_SECONDS) as running:
        running.region.instance_types.keep_only(_TYPES)
        yield running


@dataclass
class ControllerCluster:
    """The cluster of one test."""

    aws: Double
    seeds: Seeds
    queue: InterruptionQueue
    kill_trigger: KillTrigger
    kube: MemoryKube
    url: str
    kubeconfig: str
    _pods: int = field(default=0)

    # -- processes ------------------------------------------------------------------------------------------------------------

    @contextmanager
    def controller(self, *flags: str) -> Iterator[Controller]:
        """`karpenter run`; it is killed at the end, unless it has exited."""
        with controller(self.kubeconfig, *flags, environment={**controller_environment(self.aws), **_QUICK}) as running:
            try:
                yield running
            except AssertionError as error:
                error.add_note(f"the controller's log ends with:\n{running.log[-_LOG_CHARACTERS:]}")
                raise
            finally:
                running.kill()

    async def run_until_killed(self, kill_point: KillPoint) -> None:
        """Run a process until it is killed at the kill point."""
        with self.controller(*NO_LEADER_ELECTION) as running:
            await self.wait_for_kill_point(kill_point, running, running.kill)

    async def wait_for_kill_point(self, kill_point: KillPoint, running: Controller, action: Callable[[], None]) -> None:
        """Arm the trigger and wait until the kill point is reached and the action done."""
        self.kill_trigger.arm(kill_point, action)
        await self.until(
            lambda: "" if self.kill_trigger.has_fired else f"{kill_point} was not reached:\n{running.log[-3000:]}"
        )

    async def until(self, missing: Callable[[], str], seconds: float = _TIMEOUT_SECONDS) -> None:
        """Wait until nothing is ``missing``; fail with what is at the deadline."""
        end = time.monotonic() + scaled_timeout(seconds)
        while text := missing():
            assert time.monotonic() < end, text
            await asyncio.sleep(_POLL_SECONDS)

    # -- queries --------------------------------------------------------------------------------------------------------------

    def claims(self) -> tuple[NodeClaim, ...]:
        """The stored NodeClaims."""
        server = self.kube.server
        kind = kinds.NODE_CLAIM
        resource = server.resource(kind.group, kind.version, kind.plural)
        return tuple(
            kind.decode(entry.data) for entry in server.list(resource, compile_query(kind, "", "", "")).entries
        )

    def instances(self) -> list[dict[str, Any]]:
        """The instances that are not terminated or shutting down."""
        return [instance for instance in self.aws.control.instances() if instance["ended_at"] is None]

    def inconsistencies(self) -> str:
        """Inconsistencies; empty if each NodeClaim has its own instance, and each instance its NodeClaim."""
        owned = [claim.status.provider_id for claim in self.claims()]
        alive = {instance["provider_id"] for instance in self.instances()}
        faults = {
            "NodeClaims without instance": owned.count(""),
            "instances with several NodeClaims": len(owned) - len(set(owned)) if "" not in owned else 0,
            "instances without NodeClaim": len(alive - set(owned)),
            "NodeClaims whose instance is terminated": len(set(owned) - alive - {""}),
        }
        return ", ".join(f"{count} {what}" for what, count in faults.items() if count)

    def missing_for(self, count: int) -> str:
        """What is missing until there are ``count`` NodeClaims with one instance each, and no other instances."""
        result = len(self.claims())
        return self.inconsistencies() if result == count else f"{result} of {count} claims; {self.inconsistencies()}"

    # -- actions --------------------------------------------------------------------------------------------------------------

    def add_pods(self, count: int) -> None:
        """Add pods that need one instance each, alternately spot and on-demand."""
        self.kube.server.load_objects(pod(self._pods + number) for number in range(count))
        self._pods += count

    async def clear(self) -> None:
        """Delete all pods and NodeClaims."""
        for waiting in (await self.kube.list(kinds.POD)).items:
            await self.kube.delete(kinds.POD, waiting.metadata.name, waiting.metadata.namespace, grace_period_seconds=0)
        for claim in self.claims():
            await self.kube.delete(kinds.NODE_CLAIM, claim.metadata.name)
        self._pods = 0


def pod(number: int) -> Json:
    """A pod that needs its own instance."""
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
async def controller_cluster(aws: Double, folder: Path) -> AsyncIterator[ControllerCluster]:
    """A new cluster with two NodePools, spot and on-demand, on a double that is reset."""
    aws.reset()
    seeds = seed(aws)
    kill_trigger = KillTrigger()
    aws.around = kill_trigger.around_call
    server = WatchedServer(kill_trigger)
    async with serving(server) as url:
        aws.control.add_cluster(CLUSTER, url, "")
        path = folder / "kubeconfig"
        path.write_text(kubeconfig_for(url))
        made = ControllerCluster(
            aws, seeds, InterruptionQueue(aws, CLUSTER), kill_trigger, MemoryKube(server), url, str(path)
        )
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
            kill_trigger.release_all()
