"""The provisioning decision: from a snapshot to a plan (SCH §2).

In order: who waits, who can be served, which pools take part; then kin by kin where pods go (`settling`), machines that exist
first, and what is left becomes demand for new ones; the demand is packed in several ways and the cheapest packing becomes the
plan.

Where limits leave pods out of a packing, everything is settled anew with a cap on what may be asked of new machines there: those
pods take the next step of their ladder, and nobody counts on pods that will not come. Machines are made of the last packing only.

Growth: linear in pods, and in classes times candidates for the rest: a class asks only machines that could hold it, found by bit
sets, and fills new ones by arithmetic. `make bench growth` shows it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from karpenter.api.core import Pod, TopologySpreadConstraint
from karpenter.catalog.index import TypeIndex
from karpenter.cluster.classes import PodClass
from karpenter.cluster.snapshot import PodGroup, PodKey, Snapshot, age, pod_key
from karpenter.cluster.volumes import NO_VOLUMES, Mounted, PodVolumes
from karpenter.decide.plan import PlacedPods, Plan, UnplacedPod
from karpenter.decide.provision import eligible, templates
from karpenter.decide.provision.company import Companies, Constraint, Scene
from karpenter.decide.provision.defaults import DefaultSpread
from karpenter.decide.provision.effective_zones import effective_zones
from karpenter.decide.provision.existing import Field, machines
from karpenter.decide.provision.explaining import Explaining, Scenery
from karpenter.decide.provision.finalise import planned_claims
from karpenter.decide.provision.limits import left_of_limits
from karpenter.decide.provision.market import Market, units_left
from karpenter.decide.provision.packing import Bounds, Packer, Packing
from karpenter.decide.provision.prospects import Prospects
from karpenter.decide.provision.settling import Failed, Kin, Place, Settled, Settling, by_size
from karpenter.decide.provision.topology import Domains
from karpenter.decide.provision.variants import Ladder, PreferencePolicy
from karpenter.decide.reasons import Reason
from karpenter.model import labels
from karpenter.model.buffers import is_virtual
from karpenter.model.requirements import Requirements

#: So often pods that limits leave out take a step down by themselves; after that, places that limits bind are closed altogether.
ROUNDS = 8


class MinValuesPolicy(StrEnum):
    """What happens when a pool's minValues cannot be met (OPS-329)."""

    STRICT = "Strict"
    BEST_EFFORT = "BestEffort"


@dataclass(frozen=True)
class Options:
    """Settings a decision depends on. ``default_spread``: constraints of pods that have none, without selectors (SCH-830)."""

    preferences: PreferencePolicy = PreferencePolicy.RESPECT
    min_values: MinValuesPolicy = MinValuesPolicy.STRICT
    #: Whether units of reservations are counted (gate ReservedCapacity); else reserved offerings are like any other.
    reserved: bool = True
    default_spread: tuple[TopologySpreadConstraint, ...] = ()


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


@dataclass(frozen=True)
class _Outcome:
    """Where everybody went, and the caps it took."""

    settled: Settled
    packing: Packing
    caps: Mapping[Place, int]

    @property
    def left_out(self) -> int:
        """How many pods found no place."""
        return sum(len(failed.pods) for failed in self.settled.failed)


#: What pods of one kin have in common: class, places of their volumes, constraints that mean them, whether they are virtual.
_Alike = tuple[PodClass, tuple[Requirements, ...], tuple[Constraint, ...], bool]


class _Served:
    """Pods of one group that have their volumes in the same places."""

    def __init__(self, group: PodGroup, places: tuple[Requirements, ...]) -> None:
        self.pod_class = group.pod_class
        self.face = group.face
        self.places = places
        self.virtual = is_virtual(group.pods[0])
        self.pods: list[Pod] = []
        self.mounts: dict[PodKey, Mounted] = {}

    def add(self, pod: Pod, volumes: PodVolumes) -> None:
        """One more of them."""
        self.pods.append(pod)
        if volumes.mounts:
            self.mounts[pod_key(pod)] = volumes.mounts


class Deciding:
    """One decision while it is being made."""

    def __init__(self, snapshot: Snapshot, indexes: Mapping[str, TypeIndex], now: datetime, options: Options) -> None:
        self._snapshot = snapshot
        self._now = now
        self._strict = options.min_values is MinValuesPolicy.STRICT
        daemons = tuple(daemon for daemon in snapshot.daemons if not daemon.spec.resource_claims)  # SCH-212
        self._templates, self._skipped = templates.usable(snapshot.pools, indexes, daemons, min_values=self._strict)
        prospects = Prospects(daemons)
        self._field = Field(machines(snapshot, indexes, daemons, prospects))
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

    def plan(self) -> Plan:
        """The plan for everybody who waits or has to move."""
        leaving, unreadable = eligible.grouped(eligible.leaving(self._snapshot, self._now))
        self._unplaced += [UnplacedPod(pod, (reason,)) for pod, reason in unreadable]
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
        domains = Domains(scene, self._templates)
        settled, packing = self._settled(kins, domains)
        for failed in settled.failed:
            self._unplaced += self._explaining.of(failed, packing.remaining if failed.capped else self._limits)
        taken = {view.key for view in self._snapshot.nodes}
        return Plan(
            claims=planned_claims(packing.claims, [item.demand for item in settled.standing], taken),
            existing=tuple(PlacedPods(m.view.key, m.view.name, tuple(m.pods)) for m in self._field.machines if m.pods),
            unplaced=tuple(sorted(self._unplaced, key=lambda u: (u.pod.metadata.namespace, u.pod.metadata.name))),
            skipped_pools=self._skipped,
            packing=packing.name if settled.standing else "",
            zoned=effective_zones(kins, domains),
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
        for group in groups:
            reasons = objections(group.pod_class)
            by_places: dict[tuple[Requirements, ...], _Served] = {}
            for pod in group.pods:
                volumes = self._snapshot.volumes.of(pod) if not reasons else NO_VOLUMES
                why = reasons or faults(volumes)
                if why:
                    self._unplaced.append(UnplacedPod(pod, why))
                    continue
                served = by_places.get(volumes.alternatives)
                if served is None:
                    served = by_places[volumes.alternatives] = _Served(group, volumes.alternatives)
                served.add(pod, volumes)
            found += by_places.values()
        return found

    def _kins(self, served: Sequence[_Served], scene: Scene) -> list[Kin]:
        """Groups that differ only in labels nobody reads become one kin; largest first (SCH-231)."""
        companies = Companies(scene)
        heard = {s.pod_class: [wish.term for wish in self._ladder.wished(s.pod_class)] for s in served}
        for pod_class, wished in heard.items():
            companies.enter(pod_class.terms.required, wished)
        together: defaultdict[_Alike, list[_Served]] = defaultdict(list)
        for item in served:
            together[item.pod_class, item.places, companies.meaning(item.face), item.virtual].append(item)
        steps = {(s.pod_class, s.places): self._ladder.of(s.pod_class, s.places) for s in served}
        found = [
            Kin(
                pod_class,
                companies.of((*pod_class.terms.required, *heard[pod_class]), items[0].face),
                tuple(sorted((pod for item in items for pod in item.pods), key=age)),
                steps[pod_class, places],
                {key: mounts for item in items for key, mounts in item.mounts.items()},
                virtual,
            )
            for (pod_class, places, _, virtual), items in together.items()
        ]
        return sorted(found, key=by_size)

    # -- rounds -----------------------------------------------------------------------------------------------------------

    def _settled(self, kins: Sequence[Kin], domains: Domains) -> tuple[Settled, Packing]:
        """Where everybody goes, with a packing that leaves nobody out whom others count on.

        A cap may have been set for the sake of pods that later gave way themselves. So where limits left pods out, their caps are
        lifted once, and what comes of it is taken if it leaves fewer out.
        """
        first = self._converged(kins, domains, {})
        out = {failed.kin for failed in first.settled.failed}
        lasting = {place: cap for place, cap in first.caps.items() if place[0] not in out}
        if not first.left_out or len(lasting) == len(first.caps):
            return first.settled, first.packing
        second = self._converged(kins, domains, lasting)
        if second.left_out >= first.left_out:
            second = self._converged(kins, domains, first.caps)
        return second.settled, second.packing

    def _converged(self, kins: Sequence[Kin], domains: Domains, from_caps: Mapping[Place, int]) -> _Outcome:
        caps = dict(from_caps)
        attempt = 0
        while True:
            settling = Settling(self._field, self._market, domains, self._snapshot.planned, caps)
            settled = settling.settle(kins)
            packing = self._packed(settled)
            left = [(settled.standing[at], count) for at, count in packing.left.items()]
            if all(item.is_last and not item.kin.company for item, _ in left):
                stuck = [Failed(item.kin, item.kin.variants[-1], item.last(count), capped=True) for item, count in left]
                return _Outcome(replace(settled, failed=(*settled.failed, *stuck)), packing, caps)
            attempt += 1
            for item, count in left:
                caps[item.place] = len(item.demand.pods) - count if attempt < ROUNDS else 0

    def _packed(self, settled: Settled) -> Packing:
        demands = [item.demand for item in settled.standing]
        bounds = Bounds(self._limits, settled.satisfied, self._units)
        packer = Packer(demands, bounds, relax_min_values=not self._strict)
        return min((packer.value(), packer.largest()), key=lambda packing: packing.badness)
