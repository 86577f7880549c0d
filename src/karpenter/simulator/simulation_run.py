"""One study: a workload on a simulated cluster under one policy, in virtual time.

Everything about nodes is the production code; only some polling intervals are longer than in production (``STUDY_INTERVALS``), so
that quiet time costs nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fractions import Fraction
from functools import partial

from karpenter.api import kinds
from karpenter.api.apps import DaemonSet
from karpenter.api.core import Namespace, PodDisruptionBudget
from karpenter.api.karpenter import NodePool
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.disruption.decision_journal import JournalEntry
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.kube.errors import AlreadyExists, KubeError
from karpenter.kube.protocol import JsonObject
from karpenter.providers.simulated.simulated_instances import SimulatedInstance
from karpenter.runtime.intervals import Intervals
from karpenter.simulation import LoopClock, SimulationConfig, run_virtual, running_cluster
from karpenter.simulation.run_history import InstanceNotice
from karpenter.simulation.run_report import CostMeter
from karpenter.simulation.simulated_cluster import SimulatedCluster
from karpenter.simulator.gap_probe import GapProbe, WithheldCost
from karpenter.simulator.idle_cost import IdleCost, idle_cost
from karpenter.simulator.instance_bills import InstanceBill, instance_bills
from karpenter.simulator.policy import Policy
from karpenter.simulator.price_drift import offering_prices, priced_types
from karpenter.simulator.run_recorder import PodWait, Restart, RunRecorder, Sample, WaitingTime
from karpenter.simulator.starting_cluster import StartingCluster
from karpenter.simulator.study_start import named_nodes, starting_objects
from karpenter.simulator.workload import Workload, WorkloadError
from karpenter.simulator.workload_player import WorkloadPlayer
from karpenter.simulator.world import World, WorldFaults

#: What only looks after itself, or looks again at an unchanged cluster, runs less often than in production.
STUDY_INTERVALS = replace(
    Intervals(),
    nodepool_counter=timedelta(minutes=10),
    disruption_recheck=timedelta(hours=1),
    metrics_refresh=timedelta(hours=1),
    garbage_collection=timedelta(minutes=10),
)
#: The informers read each change in the turn after it. Ten thousand changes of every kind were most of the memory of a long run.
_HISTORY = 1_000
_MOST_SAMPLES = 480
_SHORTEST_SAMPLE_SECONDS = 60


@dataclass(frozen=True)
class Study:
    """Everything a run depends on. ``namespaces``: those of the pods, of DaemonSets and of disruption budgets.

    ``starting``: the nodes that are there when the study begins.
    """

    workload: Workload
    pools: tuple[NodePool, ...]
    node_classes: tuple[KWOKNodeClass, ...]
    daemon_sets: tuple[DaemonSet, ...]
    types: Sequence[InstanceType]
    policy: Policy
    world: World = field(default_factory=World)
    seed: int = 1
    namespaces: tuple[Namespace, ...] = ()
    budgets: tuple[PodDisruptionBudget, ...] = ()
    starting: StartingCluster = field(default_factory=StartingCluster)


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    seconds: float
    cost_usd: float
    pods: int
    nodes: int


@dataclass(frozen=True)
class StudyRecord:
    """What happened in a run that began at ``begins``. ``seconds`` is shorter than the workload where it was interrupted."""

    begins: datetime
    seconds: float
    meter: CostMeter
    notices: tuple[InstanceNotice, ...]
    bills: tuple[InstanceBill, ...]
    waits: tuple[PodWait, ...]
    restarts: tuple[Restart, ...]
    samples: tuple[Sample, ...]
    waiting_time: WaitingTime
    decisions: tuple[JournalEntry, ...]
    idle: IdleCost
    withheld: WithheldCost
    was_interrupted: bool
    starting: StartingCluster

    def cost_usd(self) -> Fraction:
        """What all instances cost."""
        return self.meter.exact_cost_usd(self.begins, self.begins + timedelta(seconds=self.seconds))


def run_study(study: Study, on_progress: Callable[[Progress], None] = lambda _: None) -> StudyRecord:
    """Run a study to its end, or until Ctrl-C. The same study gives the same record. Raises ``WorkloadError``."""
    return run_virtual(lambda clock: _StudyRun(study, clock, on_progress).run(), study.workload.begins)


class _StudyRun:
    """One run."""

    def __init__(self, study: Study, clock: LoopClock, on_progress: Callable[[Progress], None]) -> None:
        self._study = study
        self._clock = clock
        self._on_progress = on_progress

    async def run(self) -> StudyRecord:
        study = self._study
        settings = replace(study.policy.settings, intervals=STUDY_INTERVALS)
        begins = study.workload.begins
        faults = WorldFaults(study.world, study.seed, lambda: (self._clock.now() - begins).total_seconds())
        config = SimulationConfig(
            study.types,
            settings,
            history=_HISTORY,
            objects=starting_objects(study.starting, study.workload, faults),
            named_nodes=named_nodes(study.starting),
        )
        async with running_cluster(self._clock, config) as cluster:
            recorder = RunRecorder(cluster, begins, study.starting)
            cluster.cloud.set_launch_faults(faults)
            pools = [study.policy.applied_to(pool) for pool in study.pools]
            await _create_objects(cluster, study, pools)
            player = WorkloadPlayer(
                cluster.kube, cluster.manager.informers.pods, study.workload, self._start_delay(), recorder.record_lost
            )
            cluster.set_absent_controllers(player.replicas_of)
            playing = asyncio.create_task(player.run(), name="workload player")
            drifting = asyncio.create_task(self._change_prices(cluster), name="price drift")
            options = settings.disruption_options(settings.scheduling_options(settings.gates), settings.gates)
            probe = GapProbe(cluster, options, -(-study.workload.duration_seconds // self._step_seconds))
            was_interrupted = not await self._observe(recorder, probe, playing, drifting)
            playing.cancel()
            drifting.cancel()
            seconds = min(recorder.seconds, float(study.workload.duration_seconds))
            history = cluster.history
            end = begins + timedelta(seconds=seconds)
            bills = instance_bills(history.notices, history.repricings, end)
            return StudyRecord(
                begins=begins,
                seconds=seconds,
                meter=history.meter,
                notices=tuple(history.notices),
                bills=bills,
                waits=tuple(recorder.waits),
                restarts=tuple(recorder.restarts),
                samples=tuple(recorder.samples),
                waiting_time=recorder.waiting_time(),
                decisions=recorder.decisions,
                idle=idle_cost(bills, recorder.occupancy),
                withheld=probe.withheld_cost(begins, end, bills, recorder.occupancy),
                was_interrupted=was_interrupted,
                starting=study.starting,
            )

    async def _change_prices(self, cluster: SimulatedCluster) -> None:
        """Running instances pay the price of the moment, as spot instances on EC2 do."""
        study = self._study
        if not study.world.price_drift:
            return
        begin = self._clock.now()
        duration = study.workload.duration_seconds
        for priced in priced_types(study.world.price_drift, study.seed, study.types, duration):
            await asyncio.sleep(priced.begin_seconds - (self._clock.now() - begin).total_seconds())
            cluster.cloud.set_types(priced.types)
            cluster.history.reprice(partial(_price_of, offering_prices(priced.types)))

    def _start_delay(self) -> Callable[[], float]:
        dice = random.Random(f"{self._study.seed} pod start")
        return lambda: self._study.world.pod_start.draw_seconds(dice)

    @property
    def _step_seconds(self) -> int:
        """Between samples."""
        return max(_SHORTEST_SAMPLE_SECONDS, -(-self._study.workload.duration_seconds // _MOST_SAMPLES))

    async def _observe(
        self, recorder: RunRecorder, probe: GapProbe, playing: asyncio.Task[None], drifting: asyncio.Task[None]
    ) -> bool:
        """Sample until the end of the workload; False if Ctrl-C came before."""
        duration = self._study.workload.duration_seconds
        step = self._step_seconds
        if self._study.starting.has_nodes:
            recorder.sample()
        try:
            while recorder.seconds < duration:
                await asyncio.wait({playing}, timeout=min(step, duration - recorder.seconds))
                for background in (playing, drifting):
                    if background.done():
                        background.result()
                recorder.sample()
                await probe.measure()
                self._report(recorder)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            return False
        return True

    def _report(self, recorder: RunRecorder) -> None:
        last = recorder.samples[-1]
        cost = recorder.cost_usd()
        self._on_progress(Progress(last.seconds, cost, last.pods, last.nodes))


async def _create_objects(cluster: SimulatedCluster, study: Study, pools: Sequence[NodePool]) -> None:
    """Create all but pods. Raises ``WorkloadError`` for an object that the API server refuses."""
    try:
        for namespace in study.namespaces:
            await _create_namespace(cluster, namespace)
        await cluster.create(*study.node_classes, *pools, *study.daemon_sets, *study.budgets)
    except KubeError as refusal:
        raise WorkloadError(f"the simulated cluster refuses what was read: {refusal}") from None


async def _create_namespace(cluster: SimulatedCluster, namespace: Namespace) -> None:
    """Create a namespace with its labels; some are in every cluster."""
    try:
        await cluster.create(namespace)
    except AlreadyExists:
        labels: JsonObject = {"metadata": {"labels": dict(namespace.metadata.labels)}}
        await cluster.kube.patch(kinds.NAMESPACE, namespace.metadata.name, labels)


def _price_of(prices: Mapping[tuple[str, str, str], float], record: SimulatedInstance) -> float:
    return prices.get((record.instance_type, record.zone, record.capacity_type), record.price_per_hour)
