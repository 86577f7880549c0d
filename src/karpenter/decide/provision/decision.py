"""The provisioning decision: from a snapshot to a plan (SCH §2).

In order: who waits, who can be served, which pools take part; then kin by kin where pods go (`settling`), machines that exist
first, and what is left becomes demand for new ones; the demand is packed in several ways and the cheapest packing becomes the
plan.

Where that leaves pods out whom another round could serve, everything is settled anew (`rounds`).

Growth: linear in pods, and in classes times candidates for the rest: a class asks only machines that could hold it, found by bit
sets, and fills new ones by arithmetic. `make bench growth` shows it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from karpenter.api.core import Pod, TopologySpreadConstraint
from karpenter.catalog.index import TypeIndex
from karpenter.cluster.classes import PodClass
from karpenter.cluster.snapshot import PodGroup, PodKey, Snapshot, pod_key
from karpenter.cluster.volumes import NO_VOLUMES, Mounted, PodVolumes
from karpenter.decide.plan import PlacedPods, Plan, UnplacedPod
from karpenter.decide.provision import eligible, templates
from karpenter.decide.provision.arrivals import (
    MOST_TO_COME,
    Arrivals,
    Room,
    arrivals,
    is_to_come,
    room_for,
    without_those_to_come,
)
from karpenter.decide.provision.company import Companies, Constraint, Scene
from karpenter.decide.provision.defaults import DefaultSpread
from karpenter.decide.provision.demand import Demand
from karpenter.decide.provision.effective_zones import effective_zones
from karpenter.decide.provision.existing import Field, machines
from karpenter.decide.provision.explaining import Explaining, Left, Scenery
from karpenter.decide.provision.exposing import Exposures, concessions
from karpenter.decide.provision.finalise import planned_claims
from karpenter.decide.provision.hosting import Exposed
from karpenter.decide.provision.limits import left_of_limits
from karpenter.decide.provision.market import Market
from karpenter.decide.provision.mounting import Attaching, limits_of_types
from karpenter.decide.provision.prospects import Prospects
from karpenter.decide.provision.reservations import units_left
from karpenter.decide.provision.rounds import Ground, Outcome, PackingWay, Rounds
from karpenter.decide.provision.search.proof import lower_bound
from karpenter.decide.provision.settling import Kin, by_size, turn
from karpenter.decide.provision.spotting import spot_there, spread
from karpenter.decide.provision.topology import Domains
from karpenter.decide.provision.variants import Ladder, PreferencePolicy
from karpenter.decide.reasons import Reason
from karpenter.decide.worth import Worth
from karpenter.model import labels
from karpenter.model.buffers import is_virtual
from karpenter.model.requirements import Requirements


class MinValuesPolicy(StrEnum):
    """What happens when a pool's minValues cannot be met (OPS-329)."""

    STRICT = "Strict"
    BEST_EFFORT = "BestEffort"


class Outlook(StrEnum):
    """What is expected of the time to come: that pods keep coming as of late (`arrivals`), or nothing."""

    ARRIVALS = "Arrivals"
    NOTHING = "Nothing"


@dataclass(frozen=True)
class Options:
    """Settings a decision depends on. ``default_spread``: constraints of pods that have none, without selectors (SCH-830)."""

    preferences: PreferencePolicy = PreferencePolicy.RESPECT
    min_values: MinValuesPolicy = MinValuesPolicy.STRICT
    #: Whether units of reservations are counted (gate ReservedCapacity); else reserved offerings are like any other.
    reserved: bool = True
    default_spread: tuple[TopologySpreadConstraint, ...] = ()
    worth: Worth = field(default_factory=Worth)
    packing: PackingWay = PackingWay.CHEAPEST
    outlook: Outlook = Outlook.ARRIVALS


def provision(
    snapshot: Snapshot,
    indexes: Mapping[str, TypeIndex],
    now: datetime,
    options: Options = Options(),
) -> Plan:
    """Plan machines for the waiting pods. ``indexes`` holds the prepared instance types of each NodePool, by name.

    Deterministic: the same snapshot, types and options give the same plan.
    """
    return Deciding(snapshot, indexes, now, options).plan()


#: Whether pods are virtual, and the workload they are of if that is exposed.
_First = tuple[bool, Exposed | None]
#: What pods of one kin have in common: class, places of their volumes, constraints that mean them, and the above.
_Alike = tuple[PodClass, tuple[Requirements, ...], tuple[Constraint, ...], bool, Exposed | None]


class _Served:
    """Pods of one group that have their volumes in the same places, and are of one workload where that matters."""

    def __init__(self, group: PodGroup, pod_class: PodClass, places: tuple[Requirements, ...], first: _First) -> None:
        self.pod_class = pod_class
        self.face = group.face
        self.places = places
        self.virtual, self.exposed = first
        self.pods: list[Pod] = []
        self.mounts: dict[PodKey, Mounted] = {}

    def add(self, pod: Pod, volumes: PodVolumes) -> None:
        """One more of them."""
        self.pods.append(pod)
        if volumes.mounts:
            self.mounts[pod_key(pod)] = volumes.mounts


def _in_turn(items: Sequence[_Served]) -> tuple[Pod, ...]:
    """The pods of several groups in their turn; each group has its oldest first already."""
    found = [pod for item in items for pod in item.pods]
    if len(items) > 1 or len({pod.spec.priority for pod in found}) > 1:
        found.sort(key=turn)
    return tuple(found)


def _real(demands: Sequence[Demand]) -> list[Demand]:
    """Those of pods that exist, which come first."""
    return [demand for demand in demands if not is_to_come(demand.pods[0])]


class Deciding:
    """One decision while it is being made."""

    def __init__(self, snapshot: Snapshot, indexes: Mapping[str, TypeIndex], now: datetime, options: Options) -> None:
        self._snapshot = snapshot
        self._worth = options.worth
        self._packing = options.packing
        self._now = now
        self._outlook = options.outlook if options.packing is PackingWay.CHEAPEST else Outlook.NOTHING
        self._strict = options.min_values is MinValuesPolicy.STRICT
        self._leaving, self._unreadable = eligible.grouped(eligible.leaving(snapshot, now))
        self._exposures = Exposures(snapshot, self._leaving, options.worth.exposure)
        self._volumes_of: dict[PodKey, PodVolumes] = {}
        self._attached: dict[tuple[PodClass, tuple[tuple[str, int], ...]], PodClass] = {}
        self._attaching = self._attaching_to(indexes)
        indexes = {name: self._attaching.extended(index) for name, index in indexes.items()}
        daemons = tuple(daemon for daemon in snapshot.daemons if not daemon.spec.resource_claims)  # SCH-212
        self._templates, self._skipped = templates.usable(snapshot.pools, indexes, daemons, min_values=self._strict)
        prospects = Prospects(daemons)
        self._spot_there = spot_there(snapshot.nodes, indexes, prospects)
        self._field = Field(machines(snapshot, indexes, daemons, self._attaching, prospects))
        self._limits: Mapping[str, Mapping[str, int]] = {
            t.name: left for t in self._templates if (left := left_of_limits(t, snapshot.nodes, prospects))
        }
        self._well_known = labels.WELL_KNOWN.union(*(index.well_known for index in indexes.values()))
        soft_taints = any(
            taint.effect == "PreferNoSchedule"
            for taint in (
                *(taint for template in self._templates for taint in template.taints),
                *(taint for machine in self._field.machines for taint in machine.view.taints),
            )
        )
        self._ladder = Ladder(options.preferences, soft_taints, self._well_known)
        self._units = units_left(self._templates, snapshot.nodes) if options.reserved else {}
        self._market = Market(self._templates, self._limits, self._units, strict=self._strict)
        scenery = Scenery(snapshot, indexes, self._templates, self._skipped, daemons, self._field, self._strict)
        self._explaining = Explaining(scenery)
        self._default_spread = DefaultSpread(options.default_spread, snapshot.workloads)
        self._unplaced: list[UnplacedPod] = []
        self._bounds: dict[tuple[tuple[Demand, ...], tuple[tuple[int, int], ...]], float | None] = {}

    def plan(self) -> Plan:
        """The plan for everybody who waits or has to move."""
        leaving = self._leaving
        self._unplaced += [UnplacedPod(pod, (reason,)) for pod, reason in self._unreadable]
        moving = self._served(
            self._default_spread.into(leaving), eligible.objections_to_moving, eligible.volume_faults_of_moving
        )
        waiting = self._served(
            self._default_spread.into(self._waiting()),
            lambda found: eligible.objections(found, self._well_known),
            eligible.volume_faults,
        )
        scene = Scene(self._snapshot, ((group.pod_class, group.pods) for group in leaving))
        kins = self._kins((*waiting, *moving), scene)
        domains = Domains(scene, self._templates, self._field)
        rounds = Rounds(self._ground(domains))
        outcome = rounds.outcome(kins)
        recent = self._recent(outcome)
        to_come = self._served(
            recent.beside(outcome.settled.needing), eligible.objections_to_moving, eligible.volume_faults
        )
        if to_come:
            outcome = rounds.outcome(self._kins((*waiting, *moving, *to_come), scene))
        settled, packing = outcome.settled, rounds.cheapest(outcome, self._room(outcome, recent))
        drawn = Counter(claim.reservation for claim in packing.claims if claim.reservation is not None)
        units = {reservation: number - drawn[reservation] for reservation, number in self._units.items()}
        before, after = Left(self._limits, self._units), Left(packing.remaining, units)
        for failed in settled.failed:
            if is_to_come(failed.pods[0]):
                continue
            self._unplaced += self._explaining.of(failed, after if failed.capped else before)
        taken = {view.key for view in self._snapshot.nodes}
        demands = [item.demand for item in settled.standing]
        purchase = spread(without_those_to_come(packing.claims, demands), self._spot_there, self._exposures.most_spot)
        claims = planned_claims(purchase.claims, demands, taken)
        return Plan(
            claims=claims,
            existing=self._on_existing(),
            unplaced=tuple(sorted(self._unplaced, key=lambda u: (u.pod.metadata.namespace, u.pod.metadata.name))),
            skipped_pools=self._skipped,
            packing=packing.name if settled.standing else "",
            lower_bound_per_hour=self._bound(_real(demands), packing.left),
            zoned=effective_zones(kins, domains),
            conceded=(*concessions(claims, self._exposures), *purchase.conceded),
            unreadable=tuple(self._exposures.unreadable),
        )

    def _recent(self, outcome: Outcome) -> Arrivals:
        """The pods that came lately, where that matters: a few need machines, and nothing keeps anybody from having one."""
        few = 0 < outcome.settled.needing <= MOST_TO_COME
        if self._outlook is Outlook.NOTHING or not few or outcome.missed or self._limits:
            return Arrivals()
        return arrivals(self._snapshot, self._now)

    def _room(self, outcome: Outcome, recent: Arrivals) -> Room | None:
        """What room for pods to come is worth; None where none are reckoned with."""
        demands = [item.demand for item in outcome.settled.standing]
        per_hour = self._bound(demands, outcome.packing.left) if demands and recent.to_come else None
        return room_for(demands, per_hour, recent.to_come) if per_hour else None

    def _bound(self, demands: Sequence[Demand], left: Mapping[int, int]) -> float | None:
        """The lower bound for these; asked for twice where room for pods to come is valued and none are planned."""
        key = (tuple(demands), tuple(left.items()))
        if key not in self._bounds:
            self._bounds[key] = lower_bound(demands, left, self._units)
        return self._bounds[key]

    def _on_existing(self) -> tuple[PlacedPods, ...]:
        placed = ((m.view, tuple(pod for pod in m.pods if not is_to_come(pod))) for m in self._field.machines if m.pods)
        return tuple(PlacedPods(view.key, view.name, pods) for view, pods in placed if pods)

    def _ground(self, domains: Domains) -> Ground:
        return Ground(
            self._field,
            self._market,
            domains,
            self._snapshot.planned,
            self._limits,
            self._units,
            self._strict,
            self._worth,
            self._packing,
        )

    # -- who waits ------------------------------------------------------------------------------------------------------

    def _waiting(self) -> Iterable[PodGroup]:
        by_node = {view.node.metadata.name: view for view in self._snapshot.nodes if view.node is not None}
        for group in self._snapshot.groups:
            if any(pod.status.nominated_node_name for pod in group.pods):
                staying = tuple(pod for pod in group.pods if not eligible.awaits_preemption(pod, by_node))
                group = PodGroup(group.pod_class, group.face, staying)
            if group.pods:
                yield group

    def _served(
        self,
        groups: Iterable[PodGroup],
        objections: Callable[[PodClass], tuple[Reason, ...]],
        faults: Callable[[PodVolumes], tuple[Reason, ...]],
    ) -> list[_Served]:
        """Pods a plan can be made for, split by where their volumes are; the others are recorded with the reasons."""
        found: list[_Served] = []
        objected: dict[PodClass, tuple[Reason, ...]] = {}
        for group in groups:
            reasons = objected.get(group.pod_class)
            if reasons is None:
                reasons = objected[group.pod_class] = objections(group.pod_class)
            by_volumes: dict[tuple[tuple[Requirements, ...], PodClass, Exposed | None], _Served] = {}
            for pod in group.pods:
                volumes = self._volumes(pod) if not reasons else NO_VOLUMES
                why = reasons or faults(volumes)
                if why:
                    self._unplaced.append(UnplacedPod(pod, why))
                    continue
                pod_class = self._class_with(group.pod_class, volumes)
                key = (volumes.alternatives, pod_class, self._exposures.of(pod))
                served = by_volumes.get(key)
                if served is None:
                    served = by_volumes[key] = _Served(
                        group, pod_class, volumes.alternatives, (is_virtual(pod), key[2])
                    )
                served.add(pod, volumes)
            found += by_volumes.values()
        return found

    def _volumes(self, pod: Pod) -> PodVolumes:
        """What a pod's volumes mean; asked for twice where attachments are limited."""
        if not pod.spec.volumes:
            return NO_VOLUMES
        key = pod_key(pod)
        known = self._volumes_of.get(key)
        if known is None:
            known = self._volumes_of[key] = self._snapshot.volumes.of(pod)
        return known

    def _attaching_to(self, indexes: Mapping[str, TypeIndex]) -> Attaching:
        limits = limits_of_types(self._snapshot.volumes, self._snapshot.nodes, indexes.values())
        groups = (*self._snapshot.groups, *self._leaving) if limits else ()
        wanted = (self._volumes(pod).mounts for group in groups for pod in group.pods)
        return Attaching(self._snapshot.volumes, limits, wanted)

    def _class_with(self, pod_class: PodClass, volumes: PodVolumes) -> PodClass:
        """The class with the attachments its pods ask of machines to come."""
        slots = self._attaching.requests(volumes.mounts) if volumes.mounts else {}
        if not slots:
            return pod_class
        key = (pod_class, tuple(sorted(slots.items())))
        known = self._attached.get(key)
        if known is None:
            known = self._attached[key] = pod_class.beside(slots)
        return known

    def _kins(self, served: Sequence[_Served], scene: Scene) -> list[Kin]:
        """Groups that differ only in labels nobody reads become one kin; largest first (SCH-231)."""
        companies = Companies(scene)
        classes = dict.fromkeys(item.pod_class for item in served)
        heard = {each: [wish.term for wish in self._ladder.wished(each)] for each in classes}
        for pod_class, wished in heard.items():
            companies.enter(pod_class.terms.required, wished)
        together: defaultdict[_Alike, list[_Served]] = defaultdict(list)
        for item in served:
            meaning = companies.meaning(item.face)
            together[item.pod_class, item.places, meaning, item.virtual, item.exposed].append(item)
        asking = dict.fromkeys((item.pod_class, item.places) for item in served)
        steps = {each: self._ladder.of(*each) for each in asking}
        found = [
            Kin(
                pod_class,
                companies.of(pod_class.terms.required, heard[pod_class], items[0].face),
                _in_turn(items),
                steps[pod_class, places],
                {key: mounts for item in items for key, mounts in item.mounts.items()},
                virtual,
                exposed=exposed,
            )
            for (pod_class, places, _, virtual, exposed), items in together.items()
        ]
        return sorted(found, key=by_size)
