"""The story ``karpenter demo`` tells: what is in the cluster, what arrives, what leaves, and how to judge the end.

Services arrive and nodes are launched; a rush brings more of them and goes; a spot node is interrupted; a pod fits nowhere; the
load falls and consolidation moves what is left; at last everything is scaled to zero. Each chapter waits for the cluster, not
for the clock, so any number of pods and any seed works out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec
import yaml

from karpenter.api import kinds
from karpenter.api.apps import Deployment, ReplicatedSpec
from karpenter.api.core import Container, PodSpec, PodTemplateSpec, ResourceRequirements
from karpenter.api.meta import LabelSelector, ObjectMeta, Wire
from karpenter.cli.demo_reference import ReferencePlanner, ReferencePrices
from karpenter.model import labels, pods
from karpenter.model.texts import count_text
from karpenter.providers.simulated.simulated_instances import SimulatedInstance
from karpenter.settings import Settings
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
    consolidateAfter: 15s
    budgets: [{nodes: 50%}]
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
    consolidateAfter: 15s
    budgets: [{nodes: 50%}]
"""

#: Part of the services that come with the rush, as one in so many.
_PEAK_SHARE = 0.45
#: Between two Deployments of a wave, as somebody's pipeline applies them.
_DEPLOYMENT_INTERVAL_SECONDS = 0.25
#: How long a chapter is watched once the cluster is where it should be.
_OBSERVATION_SECONDS = 15.0
#: Without a launch or a termination for so long the cluster is stable. Consolidation waits for the nodes it launches.
_STABLE_SECONDS = 30.0
_CONSOLIDATED_SECONDS = 45.0
#: Until the first empty node of the rush goes.
_RUSH_SECONDS = 90.0
#: After this long a chapter's goal counts as missed.
PHASE_TIMEOUT_SECONDS = 900.0
#: Nodes younger than five minutes are not consolidated; then one command follows the other.
_CONSOLIDATION_SECONDS = 420.0
_UNSCHEDULABLE_SECONDS = 5.0
_MONOLITH = "monolith"


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


class Narrator(Protocol):
    """Tells the story."""

    def phase(self, headline: str) -> None:
        """A phase begins."""

    def note(self, text: str) -> None:
        """Something came out."""


class ScenarioPlayer:
    """Plays a story on a stage, and tells it."""

    def __init__(self, stage: SimulatedCluster, scenario: DemoScenario, narrator: Narrator) -> None:
        self._stage = stage
        self._scenario = scenario
        self._narrator = narrator
        self._reference = ReferencePlanner(stage, Settings())
        #: What was paid for the pods of a phase, and what they would cost on an empty cluster.
        self.comparisons: list[tuple[float, ReferencePrices]] = []
        #: The lower bound for the pods of each phase, from its beginning on, and the beginnings of phases.
        self.bounds: list[tuple[datetime, float]] = []
        self.phases: list[tuple[datetime, str]] = []
        #: What was not reached or left over, in words.
        self.failures: list[str] = []
        self._expected_pods = 0

    async def run_until_load_falls(self) -> None:
        """All chapters but the last, `scale_to_zero`."""
        await self.create_pools()
        await self.run_load_peak()
        await self.survive_interruption()
        await self.explain_unschedulable_pod()
        await self.let_load_fall()

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
            await self._stage.wait_until(lambda: self._stage.counts().nodes < nodes, _RUSH_SECONDS)
            await self._wait_until_stable(_STABLE_SECONDS)
            await self._note_reference_prices()

    async def survive_interruption(self) -> None:
        """The cloud takes back the spot node with the most pods; they move before it ends."""
        instance = self._busiest_spot_instance()
        if instance is None:
            return
        self._begin_phase(f"the cloud interrupts a spot node: {instance.instance_type}, two minutes to go")
        before = self._pod_uids()
        await self._stage.interrupt(instance)
        history = self._stage.history
        gone = lambda: instance.node_name not in history.billed_instances and self._all_pods_ready()  # noqa: E731
        if await self._stage.wait_until(gone, PHASE_TIMEOUT_SECONDS):
            moved = len(self._pod_uids() - before)
            self._narrator.note(f"survived: {count_text(moved, 'pod')} moved, all pods are ready")
        else:
            self.failures.append(f"pods of the interrupted node {instance.node_name} did not become ready")

    async def explain_unschedulable_pod(self) -> None:
        """A pod that fits nowhere says what would have to change."""
        self._begin_phase("a pod that fits nowhere: 1000 CPU")
        await self._stage.create(_monolith())
        await asyncio.sleep(_UNSCHEDULABLE_SECONDS)
        for sentence in await self._reference.nearest_fits():
            self._narrator.note(f"unschedulable: {sentence}")
        await self._stage.kube.delete(kinds.DEPLOYMENT, _MONOLITH, workload_traces.NAMESPACE)
        await self._stage.wait_until(self._all_pods_ready, PHASE_TIMEOUT_SECONDS)

    async def let_load_fall(self) -> None:
        """Every second replica goes; consolidation moves the pods that are left to fewer nodes."""
        history, before = self._stage.history, self._pod_uids()
        rate = history.meter.rate_usd_per_hour(self._stage.clock.now())
        self._begin_phase("the load falls: every second replica goes")
        for deployment in self._scenario.base_deployments:
            replicas = -(-_replicas(deployment) // 2)
            self._expected_pods -= _replicas(deployment) - replicas
            await self._stage.scale(deployment.metadata.name, replicas)
        await self._stage.wait_until(lambda: self._stage.counts().pods == self._expected_pods, PHASE_TIMEOUT_SECONDS)
        await self._stage.wait_until(lambda: self._has_consolidated(rate), _CONSOLIDATION_SECONDS)
        await self._wait_until_stable(_CONSOLIDATED_SECONDS)
        await self._stage.wait_until(self._all_pods_ready, PHASE_TIMEOUT_SECONDS)
        now = history.meter.rate_usd_per_hour(self._stage.clock.now())
        moved = len(self._pod_uids() - before)
        self._narrator.note(
            f"consolidation: ${rate:.2f}/h -> ${now:.2f}/h, {moved} of {count_text(self._expected_pods, 'pod')} restarted"
        )
        await self._note_reference_prices()

    def _has_consolidated(self, rate: float) -> bool:
        return self._stage.history.meter.rate_usd_per_hour(self._stage.clock.now()) < rate

    def _busiest_spot_instance(self) -> SimulatedInstance | None:
        pods_by_node = Counter(pod.spec.node_name for pod in self._stage.pods())
        spot = [
            instance
            for instance in self._stage.history.billed_instances.values()
            if instance.capacity_type == labels.SPOT and pods_by_node[instance.node_name]
        ]
        return max(spot, key=lambda instance: (pods_by_node[instance.node_name], instance.node_name), default=None)

    def _pod_uids(self) -> set[str]:
        return {pod.metadata.uid for pod in self._stage.pods() if pods.is_active(pod)}

    def _begin_phase(self, headline: str) -> None:
        self.phases.append((self._stage.clock.now(), headline))
        self._narrator.phase(headline)

    async def _note_reference_prices(self) -> None:
        """Compare what is paid with the bound and with classic packing of the same pods on an empty cluster."""
        prices = await self._reference.prices()
        now = self._stage.clock.now()
        self.bounds.append((self.phases[-1][0], prices.lower_bound))
        paid = self._stage.history.meter.rate_usd_per_hour(now)
        self.comparisons.append((paid, prices))
        self._narrator.note(
            f"paid ${paid:.2f}/h; classic packing of these pods ${prices.classic:.2f}/h, lower bound ${prices.lower_bound:.2f}/h"
        )

    async def scale_to_zero(self) -> None:
        """Scale everything to zero; every node should be removed."""
        await self._scale_down(self._scenario.base_deployments, "everything is scaled to zero")
        self.bounds.append((self.phases[-1][0], 0.0))
        if not await self._stage.wait_until(lambda: self._stage.counts().is_empty, PHASE_TIMEOUT_SECONDS):
            left = self._stage.counts()
            self.failures.append(
                f"{left.nodes} nodes, {left.claims} NodeClaims, {left.instances} instances, {left.pods} pods were not removed"
            )

    async def _deploy(self, wave: Sequence[Deployment], headline: str) -> None:
        self._begin_phase(f"{headline}: {count_text(len(wave), 'deployment')}, {count_text(_pod_count(wave), 'pod')}")
        self._expected_pods += _pod_count(wave)
        for deployment in wave:
            await self._stage.create(deployment)
            await asyncio.sleep(_DEPLOYMENT_INTERVAL_SECONDS)
        stage = self._stage
        if not await stage.wait_until(self._all_pods_ready, PHASE_TIMEOUT_SECONDS):
            waiting = [pod.metadata.name for pod in stage.pods() if pod.status.phase != "Running"]
            shown = ", ".join(sorted(waiting)[:3])
            self.failures.append(f"{count_text(len(waiting), 'pod')} did not become ready ({shown}...)")
        await self._note_reference_prices()
        await asyncio.sleep(_OBSERVATION_SECONDS)

    def _all_pods_ready(self) -> bool:
        census = self._stage.counts()
        return census.all_ready and census.pods == self._expected_pods

    async def _scale_down(self, wave: Sequence[Deployment], headline: str) -> None:
        going = sum(pod.metadata.labels.get("app") in {d.metadata.name for d in wave} for pod in self._stage.pods())
        self._begin_phase(f"{headline}: {count_text(going, 'pod')} to go")
        self._expected_pods -= going
        for deployment in wave:
            await self._stage.scale(deployment.metadata.name, 0)
            await asyncio.sleep(_DEPLOYMENT_INTERVAL_SECONDS)

    async def _wait_until_stable(self, seconds: float) -> None:
        """Wait until no instance has been launched or terminated for so long."""
        stage = self._stage
        while True:
            seen = len(stage.history.notices)
            if not await stage.wait_until(lambda seen=seen: len(stage.history.notices) > seen, seconds):  # type: ignore[misc]
                return


def _monolith() -> Deployment:
    labels_of_pod = {"app": _MONOLITH}
    container = Container(name="main", resources=ResourceRequirements(requests={"cpu": "1000"}))
    template = PodTemplateSpec(metadata=ObjectMeta(labels=labels_of_pod), spec=PodSpec(containers=(container,)))
    spec = ReplicatedSpec(replicas=1, selector=LabelSelector(match_labels=labels_of_pod), template=template)
    return Deployment(metadata=ObjectMeta(name=_MONOLITH, namespace=workload_traces.NAMESPACE), spec=spec)


def _pod_count(wave: Sequence[Deployment]) -> int:
    return sum(_replicas(deployment) for deployment in wave)
