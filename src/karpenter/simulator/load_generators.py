"""Generators of load for scenarios: each describes one workload and yields its pods.

All are seeded by the scenario's seed and the workload's name, so that a workload stays as it is when another is added. Replicas
leave as a ReplicaSet removes them, the youngest first. The shapes (daily wave, bursts, drips) are those that studies of clusters
report; their parameters are the user's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, get_args

import msgspec
from msgspec import Meta

from karpenter.api.core import PodSpec
from karpenter.model.labels import ZONE
from karpenter.simulator.pod_rules import NeighbourRule, SpreadRule, pod_affinity
from karpenter.simulator.workload import (
    PodLife,
    WorkloadPodTemplate,
    job_template,
    replica_set_template,
    stateful_set_template,
)

HOUR, DAY = 3600, 86_400
#: Seconds between two changes of a load that follows a curve.
STEP = 300
_WEEKDAYS = 5

Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
HourOfDay = Annotated[float, Meta(ge=0, le=24)]
Rate = Annotated[float, Meta(gt=0)]
WorkloadName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$")]


class LoadGenerator(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", tag_field="kind"
):
    """What all generators share: the name of the workload, what its pods request, and where they may run.

    ``pod_affinity`` and ``pod_anti_affinity``: the pods that they are beside, and those they are apart from.
    """

    name: WorkloadName
    cpu: str = "500m"
    memory: str = "1Gi"
    gpus: Count = 0
    node_selector: dict[str, str] = {}
    annotations: dict[str, str] = {}
    topology_spread_constraints: list[SpreadRule] = []
    pod_affinity: list[NeighbourRule] = []
    pod_anti_affinity: list[NeighbourRule] = []

    def pods(self, seed: int, duration_seconds: int) -> Iterator[PodLife]:
        """The pods that arrive within the duration."""
        raise NotImplementedError

    @property
    def neighbour_rules(self) -> Mapping[str, Sequence[NeighbourRule]]:
        """Rules about pods of other workloads, by the member of the scenario that has them."""
        return {"podAffinity": self.pod_affinity, "podAntiAffinity": self.pod_anti_affinity}

    def template(self) -> WorkloadPodTemplate:
        """What the pods look like."""
        requests = {"cpu": self.cpu, "memory": self.memory} | ({"nvidia.com/gpu": str(self.gpus)} if self.gpus else {})
        spec = PodSpec(
            node_selector=self.node_selector,
            affinity=pod_affinity(self.name, self.pod_affinity, self.pod_anti_affinity),
            topology_spread_constraints=tuple(rule.constraint(self.name) for rule in self.topology_spread_constraints),
        )
        return WorkloadPodTemplate(self.name, requests, spec, self.annotations)

    def random(self, seed: int) -> random.Random:
        """The generator's own random numbers."""
        return random.Random(f"{seed} {self.name}")


class DailyWave(LoadGenerator, frozen=True, tag="dailyWave"):
    """A service whose replicas follow a sine over the day, with some noise."""

    replicas: Positive = 10
    amplitude: Share = 0.4
    peak_hour: HourOfDay = 14.0
    noise: Share = 0.05

    def pods(self, seed: int, duration_seconds: int) -> Iterator[PodLife]:
        """See the class."""
        dice, replicas = self.random(seed), _replicas_of(self)
        for second in range(0, duration_seconds, STEP):
            angle = 2 * math.pi * (second / DAY - self.peak_hour / 24)
            level = self.replicas * (1 + self.amplitude * math.cos(angle) + dice.gauss(0, self.noise))
            replicas.scale(second, max(1, round(level)))
        yield from replicas.lives


class OfficeHours(LoadGenerator, frozen=True, tag="officeHours"):
    """A service that runs on weekdays between two hours. The study begins on a Monday at midnight."""

    replicas: Positive = 10
    outside: Count = 0
    from_hour: HourOfDay = 8.0
    to_hour: HourOfDay = 18.0

    def pods(self, seed: int, duration_seconds: int) -> Iterator[PodLife]:
        """See the class."""
        dice, replicas = self.random(seed), _replicas_of(self)
        replicas.scale(0, self.outside)
        for day in range(-(-duration_seconds // DAY)):
            if day % 7 < _WEEKDAYS:
                replicas.scale(round(day * DAY + self.from_hour * HOUR + dice.randrange(STEP)), self.replicas)
                replicas.scale(round(day * DAY + self.to_hour * HOUR + dice.randrange(STEP)), self.outside)
        yield from replicas.lives


class Autoscaled(LoadGenerator, frozen=True, tag="hpa"):
    """A service under a HorizontalPodAutoscaler: its load is a random walk around the mean, replicas follow late.

    It scales up at once and down after ``stabilization_minutes`` of lower load, as the HPA does.
    """

    replicas: Positive = 10
    min_replicas: Positive = 2
    max_replicas: Positive = 40
    volatility: Share = 0.1
    stabilization_minutes: Positive = 5

    def pods(self, seed: int, duration_seconds: int) -> Iterator[PodLife]:
        """See the class."""
        dice, replicas = self.random(seed), _replicas_of(self)
        load, recent = float(self.replicas), [self.replicas]
        window = max(1, self.stabilization_minutes * 60 // STEP)
        for second in range(0, duration_seconds, STEP):
            load += 0.05 * (self.replicas - load) + dice.gauss(0, self.volatility) * self.replicas**0.5
            wanted = min(self.max_replicas, max(self.min_replicas, math.ceil(load)))
            recent = [*recent, wanted][-window - 1 :]
            replicas.scale(second, max(recent))
        yield from replicas.lives


class RollOuts(LoadGenerator, frozen=True, tag="rollOuts"):
    """A service of constant size, all of whose pods are replaced by new ones every so often, a quarter at a time."""

    replicas: Positive = 10
    every_hours: Rate = 24.0
    minutes: Rate = 10.0

    def pods(self, seed: int, duration_seconds: int) -> Iterator[PodLife]:
        """See the class."""
        dice, birth = self.random(seed), [0] * self.replicas
        template, number = replica_set_template(self.template(), 1), 0
        for revision, start in enumerate(_moments(dice, self.every_hours * HOUR, duration_seconds), 2):
            for position in range(self.replicas):
                batch = position * 4 // self.replicas
                end = start + round(batch * self.minutes * 60 / 4)
                yield PodLife(f"{self.name}-{number}", template, birth[position], max(end + 30, birth[position] + 1))
                birth[position], number = max(end, birth[position]), number + 1
            template = replica_set_template(self.template(), revision)
        for position in range(self.replicas):
            yield PodLife(f"{self.name}-{number + position}", template, birth[position])


class BatchBursts(LoadGenerator, frozen=True, tag="batchBursts"):
    """Many jobs at once, at random moments of the day."""

    jobs: Positive = 20
    per_day: Rate = 4.0
    run_minutes: Rate = 30.0

    def pods(self, seed: int, duration_seconds: int) -> Iterator[PodLife]:
        """See the class."""
        dice, number = self.random(seed), 0
        for moment in _moments(dice, DAY / self.per_day, duration_seconds):
            for _ in range(self.jobs):
                yield _job(self, dice, number, moment, f"{self.name}-{number}")
                number += 1


class Drips(LoadGenerator, frozen=True, tag="drips"):
    """Single jobs at random moments."""

    per_hour: Rate = 6.0
    run_minutes: Rate = 60.0

    def pods(self, seed: int, duration_seconds: int) -> Iterator[PodLife]:
        """See the class."""
        dice = self.random(seed)
        for number, moment in enumerate(_moments(dice, HOUR / self.per_hour, duration_seconds)):
            yield _job(self, dice, number, moment, f"{self.name}-{number}")


class HourlyCronJob(LoadGenerator, frozen=True, tag="cronJob"):
    """A CronJob that starts its pods every so many hours, on the hour."""

    jobs: Positive = 5
    every_hours: Positive = 1
    run_minutes: Rate = 10.0

    def pods(self, seed: int, duration_seconds: int) -> Iterator[PodLife]:
        """See the class."""
        dice, number = self.random(seed), 0
        for moment in range(0, duration_seconds, self.every_hours * HOUR):
            for _ in range(self.jobs):
                yield _job(self, dice, number, moment, f"{self.name}-{moment // 60}")
                number += 1


class ZonalStatefulSet(LoadGenerator, frozen=True, tag="statefulSet"):
    """A StatefulSet whose replicas keep their zones, as volumes of one zone make them. Each restarts every so often.

    Replicas are dealt to the zones in turn. A volume is seen as its zone only: attach limits and detaching play no part.
    """

    replicas: Positive = 3
    zones: Annotated[tuple[str, ...], Meta(min_length=1)] = ("us-east-1a", "us-east-1b", "us-east-1c")
    restart_every_hours: Rate = 168.0

    def pods(self, seed: int, duration_seconds: int) -> Iterator[PodLife]:
        """See the class."""
        dice = self.random(seed)
        for replica in range(self.replicas):
            template = self._template_in(self.zones[replica % len(self.zones)])
            born = 0
            for life, moment in enumerate(_moments(dice, self.restart_every_hours * HOUR, duration_seconds)):
                yield PodLife(f"{self.name}-{replica}-{life}", template, born, max(moment, born + 1))
                born = max(moment, born + 1)
            yield PodLife(f"{self.name}-{replica}-last", template, born)

    def _template_in(self, zone: str) -> WorkloadPodTemplate:
        template = stateful_set_template(self.template())
        spec = msgspec.structs.replace(template.spec, node_selector={**self.node_selector, ZONE: zone})
        return replace(template, spec=spec)


AnyGenerator = ZonalStatefulSet | DailyWave | OfficeHours | Autoscaled | RollOuts | BatchBursts | Drips | HourlyCronJob
#: What the field ``kind`` may say.
GENERATOR_KINDS = tuple(sorted(str(generator.__struct_config__.tag) for generator in get_args(AnyGenerator)))
_Jobs = BatchBursts | Drips | HourlyCronJob


def _job(generator: _Jobs, dice: random.Random, number: int, moment: int, job: str) -> PodLife:
    """A pod of a Job, whose run time varies by a factor of about two around the median."""
    run = max(1, round(generator.run_minutes * 60 * math.exp(dice.gauss(0, 0.4))))
    template = job_template(generator.template(), job)
    return PodLife(f"{generator.name}-{number}", template, moment, runs_for_seconds=run)


def _moments(dice: random.Random, mean_seconds: float, duration_seconds: int) -> Iterable[int]:
    """A Poisson process."""
    moment = dice.expovariate(1 / mean_seconds)
    while moment < duration_seconds:
        yield int(moment)
        moment += dice.expovariate(1 / mean_seconds)


def _replicas_of(service: LoadGenerator) -> _Replicas:
    return _Replicas(service.name, replica_set_template(service.template(), 1))


@dataclass
class _Replicas:
    """The pods of a service that is scaled; the youngest leave first."""

    name: str
    template: WorkloadPodTemplate
    _living: list[tuple[int, int]] = field(default_factory=list)
    _ended: list[PodLife] = field(default_factory=list)
    _number: int = 0

    def scale(self, second: int, replicas: int) -> None:
        while len(self._living) < replicas:
            self._living.append((self._number, second))
            self._number += 1
        while len(self._living) > replicas:
            number, born = self._living.pop()
            if second > born:
                self._ended.append(PodLife(f"{self.name}-{number}", self.template, born, second))

    @property
    def lives(self) -> list[PodLife]:
        return [
            *self._ended,
            *(PodLife(f"{self.name}-{number}", self.template, born) for number, born in self._living),
        ]
