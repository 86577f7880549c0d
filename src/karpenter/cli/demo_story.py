"""The story ``karpenter demo`` tells: what is in the cluster, what arrives, what leaves, and how to judge the end.

Services arrive, a rush brings more of them, the rush is over and its machines are empty, and at last everything is scaled
to zero. Each chapter waits for the cluster, not for the clock, so any number of pods and any seed works out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import yaml

from karpenter.api import kinds
from karpenter.api.core import Deployment
from karpenter.api.meta import Wire
from karpenter.cli.demo_text import plural
from karpenter.sim import Stage, traces

#: Pools and node class as people write them.
MANIFESTS = """
apiVersion: karpenter.kwok.sh/v1alpha1
kind: KWOKNodeClass
metadata: {name: default}
spec: {nodeRegistrationDelay: 35s}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default}
spec:
  weight: 10
  template:
    spec:
      requirements:
        - {key: karpenter.sh/capacity-type, operator: In, values: [spot, on-demand]}
        - {key: kubernetes.io/arch, operator: In, values: [amd64]}
        - {key: karpenter.k8s.aws/instance-category, operator: In, values: [c, m, r]}
        - {key: karpenter.k8s.aws/instance-generation, operator: Gt, values: ["4"]}
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
  disruption:
    consolidateAfter: 20s
    budgets: [{nodes: 30%}]
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: arm}
spec:
  template:
    spec:
      requirements:
        - {key: karpenter.sh/capacity-type, operator: In, values: [spot, on-demand]}
        - {key: kubernetes.io/arch, operator: In, values: [arm64]}
        - {key: karpenter.k8s.aws/instance-category, operator: In, values: [c, m, r]}
        - {key: karpenter.k8s.aws/instance-generation, operator: Gt, values: ["5"]}
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
  disruption:
    consolidateAfter: 20s
    budgets: [{nodes: 30%}]
"""

#: Part of the services that come with the rush, as one in so many.
_RUSH_SHARE = 0.45
#: Between two Deployments of a wave, as somebody's pipeline applies them.
_APART_SECONDS = 0.25
#: How long a chapter is watched once the cluster is where it should be.
_WATCH_SECONDS = 30.0
#: After this long a chapter's goal counts as missed.
PATIENCE_SECONDS = 900.0


@dataclass(frozen=True)
class Story:
    """The services of the day and those of the rush."""

    services: tuple[Deployment, ...]
    rush: tuple[Deployment, ...]


def story(pod_count: int, seed: int) -> Story:
    """The story of so many pods; the same seed tells the same one."""
    everything = list(traces.microservices(seed, pod_count))
    services: list[Deployment] = []
    planned = 0
    while everything and planned < pod_count * (1 - _RUSH_SHARE):
        services.append(everything.pop(0))
        planned += _replicas(services[-1])
    return Story(tuple(services), tuple(everything))


def _replicas(item: Deployment) -> int:
    return item.spec.replicas or 0


def manifests() -> tuple[Wire, ...]:
    """The objects of ``MANIFESTS``."""
    found = []
    for body in yaml.safe_load_all(MANIFESTS):
        kind = kinds.KINDS[body["apiVersion"], body["kind"]]
        found.append(kind.decode(msgspec.json.encode(body)))
    return tuple(found)


class Teller:
    """Plays a story on a stage. ``say`` gets the headline of each chapter as it begins."""

    def __init__(self, stage: Stage, told: Story, say: Callable[[str], None]) -> None:
        self._stage = stage
        self._story = told
        self._say = say
        #: What was not reached or left over, in words.
        self.complaints: list[str] = []
        self._wanted = 0

    async def set_up(self) -> None:
        """Pools and the agents every node runs."""
        await self._stage.put(*manifests(), *traces.daemon_sets())

    async def rise_and_fall(self) -> None:
        """Services arrive, a rush comes and goes."""
        await self._arrive(self._story.services, "services arrive")
        if self._story.rush:
            await self._arrive(self._story.rush, "a rush: more services")
            nodes = self._stage.census().nodes
            await self._leave(self._story.rush, "the rush is over")
            await self._stage.until(lambda: self._stage.census().nodes < nodes, _WATCH_SECONDS * 3)
            await self._calm()

    async def close(self) -> None:
        """Everything is scaled to zero, and every machine should go."""
        await self._leave(self._story.services, "everything is scaled to zero")
        if not await self._stage.until(lambda: self._stage.census().bare, PATIENCE_SECONDS):
            left = self._stage.census()
            self.complaints.append(
                f"{left.nodes} nodes, {left.claims} claims, {left.machines} machines, {left.pods} pods did not go"
            )

    async def _arrive(self, wave: Sequence[Deployment], headline: str) -> None:
        self._say(f"{headline}: {plural(len(wave), 'deployment')}, {plural(_count(wave), 'pod')}")
        self._wanted += _count(wave)
        for item in wave:
            await self._stage.put(item)
            await asyncio.sleep(_APART_SECONDS)
        stage = self._stage
        if not await stage.until(self._settled, PATIENCE_SECONDS):
            waiting = [pod.metadata.name for pod in stage.pods() if pod.status.phase != "Running"]
            shown = ", ".join(sorted(waiting)[:3])
            self.complaints.append(f"{plural(len(waiting), 'pod')} did not become ready ({shown}...)")
        await asyncio.sleep(_WATCH_SECONDS)

    def _settled(self) -> bool:
        census = self._stage.census()
        return census.settled and census.pods == self._wanted

    async def _leave(self, wave: Sequence[Deployment], headline: str) -> None:
        self._say(f"{headline}: {plural(_count(wave), 'pod')} to go")
        self._wanted -= _count(wave)
        for item in wave:
            await self._stage.scale(item.metadata.name, 0)
            await asyncio.sleep(_APART_SECONDS)

    async def _calm(self) -> None:
        """Until no machine has come or gone for a while."""
        stage = self._stage
        while True:
            seen = len(stage.ledger.notices)
            if not await stage.until(lambda seen=seen: len(stage.ledger.notices) > seen, _WATCH_SECONDS):  # type: ignore[misc]
                return


def _count(wave: Sequence[Deployment]) -> int:
    return sum(_replicas(item) for item in wave)
