"""Hours of stock-outs, interruptions, lost instances, slow registrations, refused calls and lost watches.

The invariants are checked every minute. A run that breaks one is shrunk: API faults are left out as long as it still fails, and
the failure ends with the line that repeats it. Crashes of the controller have tests of their own in ``tests/unit/runtime``.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec
import pytest

from karpenter.api.karpenter import NodeClaimTemplate, NodeClaimTemplateSpec, NodeClassReference, NodePool, NodePoolSpec
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.api.meta import ObjectMeta
from karpenter.instancetypes import instance_type_file
from karpenter.kube.errors import Conflict, ServerUnavailable, TooManyRequests
from karpenter.providers.simulated.simulated_instances import SimulatedInstanceStore
from karpenter.settings import Settings
from karpenter.simulation import LoopClock, SimulatedCluster, SimulationConfig, run_virtual, running_cluster
from karpenter.simulator.load_generators import BatchBursts, DailyWave
from karpenter.simulator.simulation_run import START, STUDY_INTERVALS
from karpenter.simulator.workload import Workload, ordered_workload
from karpenter.simulator.workload_player import WorkloadPlayer
from karpenter.simulator.world import Delay, MonthlyRate, StockOut, World, WorldFaults
from support.manifest_builders import type_of

FAULTY_SECONDS, QUIET_SECONDS = 3 * 3600, 4 * 3600
#: An unchanged cluster is looked at again every hour, so that the last moves may come hours after the last fault.
LAST_SECONDS = 3600
WORLD = World(
    registration=Delay("45s", "4m"),
    pod_start=Delay("3s", "60s"),
    interruptions=[MonthlyRate(per_month=0.9999999)],
    losses=[MonthlyRate(per_month=0.9999)],
    stock_outs=[StockOut(every_hours=1, minutes=20)],
)
#: An instance without a NodeClaim is collected every ten minutes, once it is half a minute old; a minute for its end.
ORPHAN_AGE = timedelta(minutes=12)
TYPES = instance_type_file.parse_instance_types(
    msgspec.json.encode(
        [type_of("a.small", 2, 4, 0.1), type_of("b.small", 2, 4, 0.11), type_of("a.large", 8, 16, 0.35)]
    )
)
_REFERENCE = NodeClassReference(group="karpenter.kwok.sh", kind="KWOKNodeClass", name="default")
POOL = NodePool(
    metadata=ObjectMeta(name="default"),
    spec=NodePoolSpec(
        template=NodeClaimTemplate(spec=NodeClaimTemplateSpec(requirements=(), node_class_ref=_REFERENCE))
    ),
)


@dataclass
class Invariants:
    """Checks one cluster; ``broken`` says what did not hold, and when."""

    cluster: SimulatedCluster
    broken: list[str] = field(default_factory=list)
    _orphan_since: dict[str, datetime] = field(default_factory=dict)

    async def check(self) -> None:
        now = self.cluster.clock.now()
        records = await SimulatedInstanceStore(self.cluster.kube).all()
        running = [record for record in records if not record.terminating]
        twice = [uid for uid, count in Counter(record.claim_uid for record in running).items() if count > 1]
        claims = {claim.metadata.uid for claim in self.cluster.state.claims()}
        orphans = {record.node_name for record in running if record.claim_uid not in claims}
        self._orphan_since = {name: self._orphan_since.get(name, now) for name in orphans}
        old = [name for name, since in self._orphan_since.items() if now - since > ORPHAN_AGE]
        self.broken += [f"{now:%a %H:%M}: NodeClaim {uid} has two instances" for uid in twice]
        self.broken += [f"{now:%a %H:%M}: instance {name} has no NodeClaim" for name in old]


def workload(seed: int) -> Workload:
    """Two services and a batch, for the faulty time only."""
    generators = (
        DailyWave(name="web", replicas=8, amplitude=0.5, peak_hour=2, cpu="500m", memory="1Gi"),
        BatchBursts(name="batch", jobs=6, per_day=24, run_minutes=15, cpu="1", memory="1Gi"),
    )
    pods = [pod for generator in generators for pod in generator.pods(seed, FAULTY_SECONDS)]
    return ordered_workload("faults", pods, FAULTY_SECONDS)


@dataclass(frozen=True)
class ApiFault:
    """What the API server does from a minute on: ``watches`` closes all, others refuse so many calls about NodeClaims."""

    minute: int
    kind: str
    times: int

    def __str__(self) -> str:
        return f"{self.minute}:{self.kind}:{self.times}"

    @staticmethod
    def parse(text: str) -> ApiFault:
        minute, kind, times = text.split(":")
        return ApiFault(int(minute), kind, int(times))

    def strike(self, cluster: SimulatedCluster) -> None:
        if self.kind == "watches":
            cluster.server.close_watches()
        else:
            cluster.server.inject_fault(_REFUSALS[self.kind], plural="nodeclaims", times=self.times)


_REFUSALS = {
    "conflict": Conflict("injected"),
    "throttled": TooManyRequests("injected"),
    "unavailable": ServerUnavailable("injected"),
}


def api_faults(seed: int) -> list[ApiFault]:
    """One about every six minutes."""
    dice = random.Random(f"{seed} api")
    kinds = (*_REFUSALS, "watches")
    return [
        ApiFault(minute, dice.choice(kinds), dice.randint(1, 8))
        for minute in range(1, FAULTY_SECONDS // 60)
        if dice.random() < 1 / 6
    ]


@dataclass(frozen=True)
class Outcome:
    """What a run broke, how many instances came and went, and how many of those in the last hour."""

    broken: tuple[str, ...]
    notices: int
    late_notices: int

    @property
    def failures(self) -> list[str]:
        late = [f"{self.late_notices} instances came or went in the last, quiet hour"] if self.late_notices else []
        return [*self.broken, *late]


def shrunk(faults: Sequence[ApiFault], fails: Callable[[Sequence[ApiFault]], bool]) -> list[ApiFault]:
    """As few of the faults as still fail, by leaving out halves, then quarters, and so on down to single ones."""
    kept, size = list(faults), len(faults)
    while size:
        size = (size + 1) // 2
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            if len(rest) < len(kept) and fails(rest):
                kept = rest
                break
        else:
            if size == 1:
                break
    return kept


def repeated_by(seed: int, faults: Sequence[ApiFault]) -> str:
    """The line that repeats a run."""
    return f"FAULTS='{seed} {' '.join(map(str, faults))}' pytest {__name__.rpartition('.')[2]}.py -k given_in_FAULTS"


async def faulty_hours(clock: LoopClock, seed: int, faults: Sequence[ApiFault]) -> Outcome:
    """One run."""
    settings = replace(Settings(), intervals=STUDY_INTERVALS)
    async with running_cluster(clock, SimulationConfig(TYPES, settings)) as cluster:
        loop = asyncio.get_running_loop()
        begin, invariants = loop.time(), Invariants(cluster)
        cluster.cloud.set_launch_faults(WorldFaults(WORLD, seed, lambda: loop.time() - begin))
        await cluster.create(KWOKNodeClass(metadata=ObjectMeta(name="default")), POOL)
        player = WorkloadPlayer(cluster, workload(seed), lambda: 3.0, lambda pod: None)
        playing = asyncio.create_task(player.run())
        launched_before = 0
        for second in range(0, FAULTY_SECONDS + QUIET_SECONDS, 60):
            for fault in faults:
                if fault.minute * 60 == second:
                    fault.strike(cluster)
            if second == FAULTY_SECONDS:
                await calm(cluster)
            if second == FAULTY_SECONDS + QUIET_SECONDS - LAST_SECONDS:
                launched_before = len(cluster.history.notices)
            await asyncio.sleep(60)
            await invariants.check()
        playing.cancel()
        if not cluster.counts().all_ready:
            invariants.broken.append("pods are not ready in the end")
        notices = len(cluster.history.notices)
        return Outcome(tuple(invariants.broken), notices, notices - launched_before)


def run(seed: int, faults: Sequence[ApiFault]) -> Outcome:
    """One run in virtual time."""
    return run_virtual(lambda clock: faulty_hours(clock, seed, faults), START)


async def calm(cluster: SimulatedCluster) -> None:
    """Nothing goes wrong from now on: whatever was to befall a running instance does now."""
    cluster.cloud.set_launch_faults(WorldFaults(World(), 0, lambda: 0.0))
    for record in await SimulatedInstanceStore(cluster.kube).all():
        if record.fate.interrupted_seconds is not None and not record.terminating:
            await cluster.interrupt(record)


SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 201))]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_instance_is_bought_twice_or_forgotten_and_all_pods_run_once_the_faults_are_over(seed: int) -> None:
    faults = api_faults(seed)
    outcome = run(seed, faults)
    if outcome.failures:
        few = shrunk(faults, lambda fewer: bool(run(seed, fewer).failures))
        pytest.fail(f"{outcome.failures}\nrepeat it with {repeated_by(seed, few)}")
    assert len(faults) > 10
    assert outcome.notices > 8, "instances came and went"


@pytest.mark.skipif("FAULTS" not in os.environ, reason="repeats a run that failed")
def test_the_run_given_in_FAULTS() -> None:  # noqa: N802
    seed, *faults = os.environ["FAULTS"].split()
    assert run(int(seed), list(map(ApiFault.parse, faults))).failures == []


def test_a_failing_run_is_shrunk_to_the_faults_that_matter_and_its_line_gives_them_again() -> None:
    faults = api_faults(1)
    culprits = {faults[3], faults[-2]}
    few = shrunk(faults, lambda fewer: culprits <= set(fewer))
    assert set(few) == culprits
    text = repeated_by(1, few).split("'")[1].split()[1:]
    assert [ApiFault.parse(each) for each in text] == few
