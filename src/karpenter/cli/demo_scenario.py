"""The story ``karpenter demo`` tells: what is in the cluster, what arrives, what leaves, and how to judge the end.

Services arrive, a rush brings more of them, the rush is over and its nodes are empty, and at last everything is scaled
to zero. Each chapter waits for the cluster, not for the clock, so any number of pods and any seed works out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import yaml

from karpenter.api import kinds
from karpenter.api.apps import Deployment
from karpenter.api.meta import Wire
from karpenter.cli.render_common import count_text
from karpenter.simulation import SimulatedCluster, workload_traces

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
_PEAK_SHARE = 0.45
#: Between two Deployments of a wave, as somebody's pipeline applies them.
_DEPLOYMENT_INTERVAL_SECONDS = 0.25
#: How long a chapter is watched once the cluster is where it should be.
_OBSERVATION_SECONDS = 30.0
#: After this long a chapter's goal counts as missed.
PHASE_TIMEOUT_SECONDS = 900.0


@dataclass(frozen=True)
class DemoScenario:
    """The services of the day and those of the rush."""

    base_deployments: tuple[Deployment, ...]
    peak_deployments: tuple[Deployment, ...]


def build_scenario(pod_count: int, seed: int) -> DemoScenario:
    """The story of so many pods; the same seed tells the same one."""
    everything = list(workload_traces.microservices(seed, pod_count))
    services: list[Deployment] = []
    planned = 0
    while everything and planned < pod_count * (1 - _PEAK_SHARE):
        services.append(everything.pop(0))
        planned += _replicas(services[-1])
    return DemoScenario(tuple(services), tuple(everything))


def _replicas(deployment: Deployment) -> int:
    return deployment.spec.replicas or 0


def manifests() -> tuple[Wire, ...]:
    """The objects of ``MANIFESTS``."""
    wires = []
    for body in yaml.safe_load_all(MANIFESTS):
        kind = kinds.KINDS[body["apiVersion"], body["kind"]]
        wires.append(kind.decode(msgspec.json.encode(body)))
    return tuple(wires)


class ScenarioPlayer:
    """Plays a story on a stage. ``say`` gets the headline of each chapter as it begins."""

    def __init__(self, stage: SimulatedCluster, scenario: DemoScenario, announce: Callable[[str], None]) -> None:
        self._stage = stage
        self._scenario = scenario
        self._announce = announce
        #: What was not reached or left over, in words.
        self.failures: list[str] = []
        self._expected_pods = 0

    async def create_pools(self) -> None:
        """Pools and the agents every node runs."""
        await self._stage.create(*manifests(), *workload_traces.daemon_sets())

    async def run_load_peak(self) -> None:
        """Services arrive, a rush comes and goes."""
        await self._deploy(self._scenario.base_deployments, "services arrive")
        if self._scenario.peak_deployments:
            await self._deploy(self._scenario.peak_deployments, "a rush: more services")
            nodes = self._stage.counts().nodes
            await self._scale_down(self._scenario.peak_deployments, "the rush is over")
            await self._stage.wait_until(lambda: self._stage.counts().nodes < nodes, _OBSERVATION_SECONDS * 3)
            await self._wait_until_stable()

    async def scale_to_zero(self) -> None:
        """Scale everything to zero; every node should be removed."""
        await self._scale_down(self._scenario.base_deployments, "everything is scaled to zero")
        if not await self._stage.wait_until(lambda: self._stage.counts().is_empty, PHASE_TIMEOUT_SECONDS):
            left = self._stage.counts()
            self.failures.append(
                f"{left.nodes} nodes, {left.claims} NodeClaims, {left.instances} instances, {left.pods} pods were not removed"
            )

    async def _deploy(self, wave: Sequence[Deployment], headline: str) -> None:
        self._announce(f"{headline}: {count_text(len(wave), 'deployment')}, {count_text(_pod_count(wave), 'pod')}")
        self._expected_pods += _pod_count(wave)
        for deployment in wave:
            await self._stage.create(deployment)
            await asyncio.sleep(_DEPLOYMENT_INTERVAL_SECONDS)
        stage = self._stage
        if not await stage.wait_until(self._all_pods_ready, PHASE_TIMEOUT_SECONDS):
            waiting = [pod.metadata.name for pod in stage.pods() if pod.status.phase != "Running"]
            shown = ", ".join(sorted(waiting)[:3])
            self.failures.append(f"{count_text(len(waiting), 'pod')} did not become ready ({shown}...)")
        await asyncio.sleep(_OBSERVATION_SECONDS)

    def _all_pods_ready(self) -> bool:
        census = self._stage.counts()
        return census.all_ready and census.pods == self._expected_pods

    async def _scale_down(self, wave: Sequence[Deployment], headline: str) -> None:
        self._announce(f"{headline}: {count_text(_pod_count(wave), 'pod')} to go")
        self._expected_pods -= _pod_count(wave)
        for deployment in wave:
            await self._stage.scale(deployment.metadata.name, 0)
            await asyncio.sleep(_DEPLOYMENT_INTERVAL_SECONDS)

    async def _wait_until_stable(self) -> None:
        """Wait until no instance has been launched or terminated for a while."""
        stage = self._stage
        while True:
            seen = len(stage.history.notices)
            if not await stage.wait_until(lambda seen=seen: len(stage.history.notices) > seen, _OBSERVATION_SECONDS):  # type: ignore[misc]
                return


def _pod_count(wave: Sequence[Deployment]) -> int:
    return sum(_replicas(deployment) for deployment in wave)
