"""Hours, days or weeks of a cluster whose controller meets every kind of fault, checked against invariants.

Everything but the controller processes lives on: API server, nodes, scheduler, the workload. Up to two processes stand for the
lease; one that ended is started anew, as a kubelet does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import msgspec

from karpenter.api import kinds
from karpenter.api.core import PodDisruptionBudget, PodDisruptionBudgetSpec
from karpenter.api.karpenter import Budget, Disruption, NodePool
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.api.meta import LabelSelector, ObjectMeta
from karpenter.instancetypes import instance_type_file
from karpenter.kube.errors import Conflict, NotFound, ServerUnavailable, TooManyRequests
from karpenter.providers.simulated import SimulatedNodes
from karpenter.providers.simulated.fault_rules import LaunchErrorRule, ScheduledFaults, SimulatedLaunch
from karpenter.providers.simulated.simulated_instances import SimulatedInstanceStore
from karpenter.runtime.intervals import Intervals
from karpenter.simulation import KubeScheduler, LoopClock, WorkloadControllers, run_virtual
from karpenter.simulation.apiserver import MemoryKube, MemoryServer
from karpenter.simulation.simulated_cluster import NO_NODE_HEARTBEATS
from karpenter.simulator.load_generators import BatchBursts, DailyWave, Drips, RollOuts
from karpenter.simulator.policy import read_policy
from karpenter.simulator.workload import MONDAY, Workload, ordered_workload
from karpenter.simulator.workload_player import WorkloadPlayer
from support.controller_process import LEASE_NAME, LEASE_NAMESPACE, ControllerProcess, ProcessClock, ProcessParts
from support.fault_invariants import ClusterWatch, FaultInvariants
from support.fault_list import Fault
from support.manifest_builders import Json, pool, type_of
from support.suspended_process import stand_still

#: Seldom is enough for what only looks after itself, so that quiet time costs nothing; a lease lasts two minutes.
INTERVALS = replace(
    Intervals(),
    nodepool_counter=timedelta(minutes=2),
    disruption_recheck=timedelta(minutes=30),
    metrics_refresh=timedelta(hours=1),
    lease_duration=timedelta(seconds=120),
    lease_renew_deadline=timedelta(seconds=80),
    lease_retry=timedelta(seconds=30),
)
#: The quiet time after days and weeks, and after a few hours.
QUIET_HOURS, SHORT_QUIET_HOURS = 6, 3
_SHORT_SECONDS = 4 * 3600
#: Nothing may come or go, and nothing be written, in this part of the quiet time.
LAST_SECONDS = 3600
_RESTART_SECONDS = 5.0
_SKEW_SECONDS = 3600
_CPU_LIMIT = "60"


def _type(name: str, cpu: int, gib: int, price: float) -> Json:
    """A type in two zones, on demand and spot."""
    plain = type_of(name, cpu, gib, price)
    offerings = [
        {
            "price": round(price * share, 5),
            "requirements": [
                {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]},
                {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [capacity_type]},
            ],
        }
        for zone in ("zone-a", "zone-b")
        for capacity_type, share in (("on-demand", 1.0), ("spot", 0.4))
    ]
    return {**plain, "offerings": offerings}


TYPES = instance_type_file.parse_instance_types(
    msgspec.json.encode(
        [
            _type("a.small", 2, 4, 0.1),
            _type("b.small", 2, 8, 0.12),
            _type("a.medium", 4, 8, 0.19),
            _type("a.large", 8, 16, 0.37),
        ]
    )
)
_REFUSALS = {
    "conflict": Conflict("injected"),
    "throttled": TooManyRequests("injected"),
    "unavailable": ServerUnavailable("injected"),
}


@dataclass
class WeekFaults:
    """What the cloud does to launches; the faults of the list set it. Implements ``LaunchFaults``."""

    seed: int
    now: Callable[[], float]
    out_until: dict[str, float] = field(default_factory=dict)
    slow_launches: int = 0
    _launches: int = 0

    def is_out_of_capacity(self, launch: SimulatedLaunch) -> bool:
        return self.out_until.get(f"{launch.instance_type} {launch.capacity_type}", 0.0) > self.now()

    def launch_error(self, launch: SimulatedLaunch) -> LaunchErrorRule | None:
        return None

    def schedule_faults(self, launch: SimulatedLaunch, registration_delay: object) -> ScheduledFaults:
        self._launches += 1
        if self.slow_launches:
            self.slow_launches -= 1
            return ScheduledFaults(registration_seconds=1200.0)
        dice = random.Random(f"{self.seed} launch {self._launches}")
        return ScheduledFaults(registration_seconds=dice.uniform(30, 120))


def workload(seed: int, seconds: int) -> Workload:
    """Two services, bursts and drips of jobs, some of which must not be moved. All but the services leave in the end."""
    generators = (
        DailyWave(name="web", replicas=10, amplitude=0.5, peak_hour=2, cpu="500m", memory="1Gi"),
        RollOuts(name="api", replicas=6, every_hours=8, cpu="900m", memory="2Gi"),
        BatchBursts(name="batch", jobs=6, per_day=8, run_minutes=15, cpu="1", memory="1Gi"),
        Drips(
            name="careful",
            per_hour=0.5,
            run_minutes=40,
            cpu="700m",
            memory="1Gi",
            annotations={"karpenter.sh/do-not-disrupt": "true"},
        ),
    )
    pods = [pod for generator in generators for pod in generator.pods(seed, seconds)]
    return ordered_workload("faults", pods, seconds)


@dataclass(frozen=True)
class Outcome:
    """What a run broke and what it cost."""

    broken: tuple[str, ...]
    cost_usd: float
    launches: int
    endings: tuple[str, ...]
    struck: int


class FaultWeek:
    """One run."""

    def __init__(self, clock: LoopClock, seed: int, policy: str, faulty_seconds: int) -> None:
        self._clock = clock
        self._seed = seed
        self._dice = random.Random(f"{seed} week")
        self._server = MemoryServer(clock)
        self._kube = MemoryKube(self._server)
        self._loop = asyncio.get_running_loop()
        self._begin = self._loop.time()
        self._faulty_seconds = faulty_seconds
        self._cloud = WeekFaults(seed, self._seconds)
        self.watch = ClusterWatch(self._kube)
        self.invariants = FaultInvariants(self.watch, clock, float(_CPU_LIMIT), {type_.name: type_ for type_ in TYPES})
        self._process_clock = ProcessClock(clock)
        self._policy = read_policy(policy)
        warm = self._dice.random() < 0.5
        settings = replace(self._policy.settings, intervals=INTERVALS, disable_controller_warmup=not warm)
        self._parts = ProcessParts(
            self._server, clock, self._process_clock, settings, TYPES, self._cloud, self.invariants.on_write
        )
        self._replicas = self._dice.choice((1, 2))
        self._processes: dict[int, ControllerProcess] = {}
        self._started = 0
        self.endings: list[str] = []
        self.struck = 0

    def _seconds(self) -> float:
        return self._loop.time() - self._begin

    async def run(self, faults: Sequence[Fault]) -> Outcome:
        await self._create_objects()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in self._world()]
            await self.watch.wait_synced()
            player = WorkloadPlayer(
                self._kube, self.watch.pods, workload(self._seed, self._faulty_seconds), lambda: 3.0, lambda _: None
            )
            tasks.append(group.create_task(player.run()))
            tasks += [group.create_task(self._keep_running(number)) for number in range(self._replicas)]
            await self._play(faults)
            for task in tasks:
                task.cancel()
        end = self._clock.now()
        return Outcome(
            tuple(self.invariants.broken),
            float(self.watch.meter.exact_cost_usd(MONDAY, end)),
            self.watch.launches,
            tuple(self.endings),
            self.struck,
        )

    def _world(self) -> list[asyncio.Future[None]]:
        nodes = SimulatedNodes(self._kube, self._clock, NO_NODE_HEARTBEATS)
        return [
            *self.watch.runs(),
            nodes.run(self.watch.pods),
            KubeScheduler(self._kube, self._clock).run(),
            WorkloadControllers(self._kube, self._clock).run(),
        ]

    async def _create_objects(self) -> None:
        await self._kube.create(kinds.KWOK_NODE_CLASS, KWOKNodeClass(metadata=ObjectMeta(name="default")))
        made = msgspec.convert(pool(), NodePool)
        disruption = Disruption(consolidate_after="1m", budgets=(Budget(nodes="20%"),))
        spec = msgspec.structs.replace(made.spec, disruption=disruption, limits={"cpu": _CPU_LIMIT})
        applied = self._policy.applied_to(msgspec.structs.replace(made, spec=spec))
        await self._kube.create(kinds.NODE_POOL, applied)
        budget = PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "web"}), min_available=3)
        await self._kube.create(
            kinds.POD_DISRUPTION_BUDGET,
            PodDisruptionBudget(metadata=ObjectMeta(name="web", namespace="default"), spec=budget),
        )

    async def _keep_running(self, number: int) -> None:
        """One replica of the controller's Deployment."""
        while True:
            self._started += 1
            process = ControllerProcess(self._parts, f"process-{self._started}")
            self._processes[number] = process
            self.endings.append(await process.run())
            await asyncio.sleep(_RESTART_SECONDS)

    # -- time ---------------------------------------------------------------------------------------------------------

    async def _play(self, faults: Sequence[Fault]) -> None:
        quiet_hours = QUIET_HOURS if self._faulty_seconds > _SHORT_SECONDS else SHORT_QUIET_HOURS
        end = self._faulty_seconds + quiet_hours * 3600
        by_minute: dict[int, list[Fault]] = {}
        for fault in faults:
            by_minute.setdefault(fault.minute, []).append(fault)
        before = (0, 0)
        minute = 0
        while self._seconds() < end:
            now_minute = int((self._seconds() + 0.001) // 60)
            for due in range(minute, now_minute + 1):
                for fault in by_minute.get(due, ()):
                    self.struck += 1
                    await self._strike(fault)
            if minute * 60 < self._faulty_seconds <= now_minute * 60:
                self._calm()
            minute = now_minute + 1
            if not before[0] and self._seconds() >= end - LAST_SECONDS:
                before = (self.watch.notices, len(self.invariants.essential_writes))
            await asyncio.sleep(max(0.0, minute * 60 - self._seconds()))
            self.invariants.check(is_skewed=bool(self._process_clock.skew))
        self.invariants.check_quiet(before)

    def _calm(self) -> None:
        self._process_clock.skew = timedelta()
        self._cloud.out_until.clear()
        self._cloud.slow_launches = 0
        for process in self._processes.values():
            line = process.connection
            line.is_cut, line.unanswered, line.crash_at = False, 0, None
            line.refusals.clear()

    def _leader(self) -> ControllerProcess | None:
        """The process that leads; where none does, any."""
        leading = [process for process in self._processes.values() if process.leads]
        return next(iter(leading or self._processes.values()), None)

    # -- faults -------------------------------------------------------------------------------------------------------

    async def _strike(self, fault: Fault) -> None:
        process, amount = self._leader(), fault.amount
        if process is None:
            return
        line = process.connection
        match fault.kind:
            case "crash":
                line.crash_at = line.writes + amount
            case "leave":
                process.leave.set()
            case "cut":
                line.is_cut = True
                self._server.close_watches()
                self._loop.call_later(amount, setattr, line, "is_cut", False)
            case "unanswered":
                line.unanswered += amount
            case "jump":
                self._process_clock.skew = timedelta(minutes=amount)
                self._loop.call_later(_SKEW_SECONDS, setattr, self._process_clock, "skew", timedelta())
            case kind if kind in _REFUSALS:
                line.refusals += [_REFUSALS[kind]] * amount
            case _:
                await self._strike_cluster(fault.kind, amount)

    async def _strike_cluster(self, kind: str, amount: int) -> None:
        match kind:
            case "still":
                stand_still(float(amount))
            case "watches":
                self._server.close_watches()
            case "gone":
                self._server.compact()
                self._server.close_watches()
            case "lease":
                holder = "" if amount == 1 else "somebody-else"
                try:
                    patch = {"spec": {"holderIdentity": holder}}
                    await self._kube.patch(kinds.LEASE, LEASE_NAME, patch, LEASE_NAMESPACE)
                except NotFound:
                    return
            case "stockout":
                sold = self._dice.choice([f"{type_.name} {kind}" for type_ in TYPES for kind in ("spot", "on-demand")])
                self._cloud.out_until[sold] = self._seconds() + amount * 60
            case "interrupt" | "lose":
                await self._take_instances(kind, amount)
            case "slow":
                self._cloud.slow_launches += amount
            case "drift":
                labels = {"metadata": {"labels": {"generation": f"g{int(self._seconds())}"}}}
                await self._kube.patch(kinds.NODE_POOL, "default", {"spec": {"template": labels}})
            case _:
                raise ValueError(kind)

    async def _take_instances(self, kind: str, amount: int) -> None:
        store = SimulatedInstanceStore(self._kube)
        records = [each for each in await store.all() if not each.terminating and each.fate.interrupted_seconds is None]
        for record in self._dice.sample(records, min(amount, len(records))):
            self.invariants.taken.add(record.node_name)
            if kind == "interrupt":
                await store.interrupt(record, self._clock.now(), timedelta(minutes=2))
            else:
                await store.terminate(record, self._clock.now())


def run_week(seed: int, hours: int, faults: Sequence[Fault], policy: str = "lean") -> Outcome:
    """One run in virtual time."""

    async def main(clock: LoopClock) -> Outcome:
        return await FaultWeek(clock, seed, policy, hours * 3600).run(faults)

    return run_virtual(main, MONDAY)
