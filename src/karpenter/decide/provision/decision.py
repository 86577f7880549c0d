"""The provisioning decision: from a snapshot to a plan (SCH §2).

In order: who waits, who can be served, which pools take part; then class by class what existing machines hold, what is left
becomes demand for new ones; the demand is packed in several ways and the cheapest packing becomes the plan. Pods for which limits
run out on the way, and only they, take the next step of their ladder: existing machines again, then all demand is packed anew
from the limits there were, so that a wish given up opens the machines of others. Machines are made of the last packing only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from karpenter.api.core import Pod
from karpenter.catalog.index import TypeIndex
from karpenter.cluster.classes import PodClass
from karpenter.cluster.snapshot import PodGroup, Snapshot, age
from karpenter.decide.plan import PlacedPods, Plan, PlannedClaim, SkippedPool, UnplacedPod
from karpenter.decide.provision import eligible, templates
from karpenter.decide.provision.existing import Machine, machines, pour
from karpenter.decide.provision.failures import why_not
from karpenter.decide.provision.finalise import planned_claims
from karpenter.decide.provision.limits import affordable, left_of_limits
from karpenter.decide.provision.packing import Demand, Option, Packer, Packing
from karpenter.decide.provision.prospects import Prospects
from karpenter.decide.provision.repelling import Repelling
from karpenter.decide.provision.templates import Template
from karpenter.decide.provision.variants import Ladder, PreferencePolicy, Variant
from karpenter.decide.reasons import Category, Reason, Skip
from karpenter.model import labels, taints
from karpenter.model import resources as res
from karpenter.model.requirements import compatible

#: So often all demand is packed anew for pods that limits leave out. Pods still out then go on alone, with what limits leave.
ROUNDS = 8
_NO_POOLS = (Reason(Category.NO_POOL),)


class MinValuesPolicy(StrEnum):
    """What happens when a pool's minValues cannot be met (OPS-329)."""

    STRICT = "Strict"
    BEST_EFFORT = "BestEffort"


@dataclass(frozen=True)
class Options:
    """Settings a decision depends on."""

    preferences: PreferencePolicy = PreferencePolicy.RESPECT
    min_values: MinValuesPolicy = MinValuesPolicy.STRICT


@dataclass(frozen=True, eq=False)
class _Waiting:
    """Pods of one class that may not join the ``closed`` nodes."""

    pod_class: PodClass
    pods: tuple[Pod, ...]
    closed: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class _Standing:
    """A demand and where its class stands on the ladder: the step to try when this one fails."""

    demand: Demand
    waiting: _Waiting
    next_step: int


def provision(
    snapshot: Snapshot,
    indexes: Mapping[str, TypeIndex],
    now: datetime,
    options: Options = Options(),
) -> Plan:
    """Plan machines for the waiting pods. ``indexes`` holds the prepared instance types of each NodePool, by name.

    Deterministic: the same snapshot, types and options give the same plan.
    """
    return _Decision(snapshot, indexes, now, options).plan()


class _Decision:
    """One decision while it is being made."""

    def __init__(self, snapshot: Snapshot, indexes: Mapping[str, TypeIndex], now: datetime, options: Options) -> None:
        self._snapshot = snapshot
        self._options = options
        self._now = now
        self._strict = options.min_values is MinValuesPolicy.STRICT
        daemons = tuple(daemon for daemon in snapshot.daemons if not daemon.spec.resource_claims)  # SCH-212
        self._templates, self._skipped = templates.usable(snapshot.pools, indexes, daemons, min_values=self._strict)
        by_name = {template.name: template for template in self._templates}
        prospects = Prospects(daemons)
        self._machines = machines(snapshot.nodes, by_name, daemons, prospects)
        self._limits: Mapping[str, Mapping[str, int]] = {
            t.name: left for t in self._templates if (left := left_of_limits(t, snapshot.nodes, prospects))
        }
        self._well_known = labels.WELL_KNOWN.union(*(index.well_known for index in indexes.values()))
        soft_taints = any(
            taint.effect == "PreferNoSchedule"
            for taint in (
                *(taint for template in self._templates for taint in template.taints),
                *(taint for machine in self._machines for taint in machine.view.taints),
            )
        )
        self._ladder = Ladder(options.preferences, soft_taints, self._well_known)
        self._repelling = Repelling(snapshot.repelling)
        self._unplaced: list[UnplacedPod] = []

    def plan(self) -> Plan:
        moving = self._served(eligible.leaving_groups(self._snapshot, self._now), eligible.objections_to_moving)
        waiting = self._served(self._waiting(), lambda found: eligible.objections(found, self._well_known))
        placed = self._kept_in_place(sorted((*waiting, *moving), key=_order))
        standing = self._settled((item, 0) for item in sorted(placed, key=_order))
        claims: list[PlannedClaim] = []
        packings: list[Packing] = []
        while standing:
            packing, standing = self._packed_in_rounds(standing)
            packings.append(packing)
            claims += self._planned(packing, standing)
            self._limits = packing.remaining
            standing = self._settled(_stuck(packing, standing))
        existing = tuple(PlacedPods(m.view.key, m.view.name, tuple(m.pods)) for m in self._machines if m.pods)
        return Plan(
            claims=tuple(claims),
            existing=existing,
            unplaced=tuple(sorted(self._unplaced, key=lambda u: (u.pod.metadata.namespace, u.pod.metadata.name))),
            skipped_pools=self._skipped,
            packing=packings[0].name if packings else "",
        )

    def _planned(self, packing: Packing, standing: Sequence[_Standing]) -> Iterable[PlannedClaim]:
        taken = {view.key for view in self._snapshot.nodes}
        return planned_claims(packing.claims, [item.demand for item in standing], taken)

    # -- who waits ------------------------------------------------------------------------------------------------------

    def _waiting(self) -> Iterable[PodGroup]:
        by_node = {view.node.metadata.name: view for view in self._snapshot.nodes if view.node is not None}
        for group in self._snapshot.groups:
            if any(pod.status.nominated_node_name for pod in group.pods):
                staying = tuple(pod for pod in group.pods if not eligible.awaits_preemption(pod, by_node))
                group = PodGroup(group.pod_class, staying)
            if group.pods:
                yield group

    def _served(
        self, groups: Iterable[PodGroup], objections: Callable[[PodClass], tuple[Reason, ...]]
    ) -> Iterable[_Waiting]:
        """Groups a plan can be made for; the others are recorded with their reasons."""
        for group in groups:
            reasons = objections(group.pod_class)
            if reasons:
                self._unplaced += [UnplacedPod(pod, reasons) for pod in group.pods]
            elif self._repelling:
                yield from self._repelled(group)
            else:
                yield _Waiting(group.pod_class, group.pods)

    def _repelled(self, group: PodGroup) -> Iterable[_Waiting]:
        by_closed: dict[frozenset[str], list[Pod]] = defaultdict(list)
        for pod in group.pods:
            closed, reasons = self._repelling.against(pod)
            if reasons:
                self._unplaced.append(UnplacedPod(pod, reasons))
            else:
                by_closed[closed].append(pod)
        for closed, found in by_closed.items():
            yield _Waiting(group.pod_class, tuple(found), closed)

    def _kept_in_place(self, waiting: Iterable[_Waiting]) -> list[_Waiting]:
        """Pods the last pass planned on a machine stay planned there while it holds them; the rest is returned."""
        machine_of = {machine.view.key: machine for machine in self._machines}
        node_of = {m.view.node.metadata.name: m.view.key for m in self._machines if m.view.node is not None}
        left: list[_Waiting] = []
        for item in waiting:
            hinted: dict[str, list[Pod]] = defaultdict(list)
            for pod in item.pods:
                hinted[self._hint(pod, machine_of, node_of)].append(pod)
            rest = hinted.pop("", [])
            for name in sorted(hinted):
                rest += self._pour(item, hinted[name], (machine_of[name],))
            left.append(_Waiting(item.pod_class, tuple(rest), item.closed))
        return [item for item in left if item.pods]

    def _hint(self, pod: Pod, machine_of: Mapping[str, Machine], node_of: Mapping[str, str]) -> str:
        """Key of the machine the pod was planned on, else of the one it is nominated to; empty when neither exists."""
        planned = self._snapshot.planned.get(pod.metadata.uid, "")
        return planned if planned in machine_of else node_of.get(pod.status.nominated_node_name, "")

    def _pour(self, item: _Waiting, pods: Sequence[Pod], into: Sequence[Machine]) -> list[Pod]:
        rest = list(pods)
        for variant in self._ladder.of(item.pod_class):
            rest = pour(item.pod_class, variant, rest, into, item.closed)
            if not rest:
                break
        return rest

    # -- one class ------------------------------------------------------------------------------------------------------

    def _settled(self, waiting: Iterable[tuple[_Waiting, int]]) -> list[_Standing]:
        """What existing machines leave of the classes as demand, each from its step of the ladder on; the rest is unplaced."""
        found: list[_Standing] = []
        for item, step in waiting:
            rest, standing = self._settle(item, step)
            if standing is not None:
                found.append(standing)
            elif rest:
                reasons = self._reasons(item.pod_class, self._ladder.of(item.pod_class)[-1])
                self._unplaced += [UnplacedPod(pod, reasons) for pod in rest]
        return found

    def _settle(self, item: _Waiting, first_step: int) -> tuple[list[Pod], _Standing | None]:
        """Existing machines first, variant by variant; the pods they leave, and the demand these make if any can be met."""
        rest = list(item.pods)
        variants = self._ladder.of(item.pod_class)
        for step in range(first_step, len(variants)):
            rest = pour(item.pod_class, variants[step], rest, self._machines, item.closed)
            options = self._options_for(item.pod_class, variants[step]) if rest else ()
            if options:
                return rest, _Standing(Demand(item.pod_class, tuple(rest), options), item, step + 1)
        return rest, None

    def _options_for(self, pod_class: PodClass, variant: Variant) -> tuple[Option, ...]:
        found = (Option(variant, t, self._types_for(pod_class, variant, t)) for t in self._templates)
        return tuple(option for option in found if option.types and (not self._strict or option.diverse(option.types)))

    def _types_for(self, pod_class: PodClass, variant: Variant, template: Template) -> int:
        """Types of a pool that could each hold one pod of the class, within what its limits leave."""
        index = template.index
        if template.taints and taints.untolerated(template.taints, variant.tolerations):
            return 0
        if not compatible(template.requirements, variant.requirements, index.well_known):
            return 0
        types = template.types & template.holding(pod_class.requests)
        if template.name in self._limits:
            types &= affordable(template, self._limits[template.name])
        if types and variant.requirements:
            requirements = template.requirements.intersect(variant.requirements)
            types &= index.matching(requirements) & index.buyable(requirements)
            types &= index.matching(variant.requirements)
        return types

    def _reasons(self, pod_class: PodClass, variant: Variant) -> tuple[Reason, ...]:
        """One reason per pool tried, then per pool left out (SCH-115)."""
        found = why_not(pod_class, variant, self._templates, self._limits)
        category = Category.SKIPPED_POOL if found else Category.NO_POOL
        return (*found, *(_left_out(skipped, category) for skipped in self._skipped)) or _NO_POOLS

    # -- all demand together --------------------------------------------------------------------------------------------

    def _packed_in_rounds(self, standing: list[_Standing]) -> tuple[Packing, list[_Standing]]:
        """The last packing and what it packed: after each, the pods it left out have climbed down a step."""
        for _ in range(ROUNDS):
            packing = self._packed(standing)
            next_round = self._climbed(packing, standing) if packing.left else standing
            if next_round is standing:
                return packing, standing
            standing = next_round
        return self._packed(standing), standing

    def _climbed(self, packing: Packing, standing: list[_Standing]) -> list[_Standing]:
        """The demand with the pods left out a step further down; the same list when none of them has a step left."""
        changed = False
        found: list[_Standing] = []
        for position, item in enumerate(standing):
            stuck = packing.left.get(position, 0)
            rest, lower = self._settle(_out(item, stuck), item.next_step) if stuck else ([], None)
            if lower is None and len(rest) == stuck:
                found.append(item)
                continue
            changed = True
            inside = item.demand.pods[: len(item.demand.pods) - stuck]
            own = inside if lower is not None else (*inside, *rest)
            if own:
                found.append(replace(item, demand=replace(item.demand, pods=own)))
            if lower is not None:
                found.append(lower)
        return sorted(found, key=lambda item: _order(item.waiting)) if changed else standing

    def _packed(self, standing: Sequence[_Standing]) -> Packing:
        packer = Packer([item.demand for item in standing], self._limits, relax_min_values=not self._strict)
        return min((packer.value(), packer.largest()), key=lambda packing: packing.badness)


def _stuck(packing: Packing, standing: Sequence[_Standing]) -> Iterator[tuple[_Waiting, int]]:
    """Pods for which limits ran out, at the next step of their ladder."""
    for position, count in packing.left.items():
        yield _out(standing[position], count), standing[position].next_step


def _out(item: _Standing, count: int) -> _Waiting:
    """The last pods of a demand, waiting again."""
    return replace(item.waiting, pods=item.demand.pods[len(item.demand.pods) - count :])


def _order(item: _Waiting) -> tuple[int, int, datetime, str, str, str]:
    """Classes in the reference's order (SCH-231): CPU, then memory, largest first, then the oldest pod."""
    requests = item.pod_class.requests
    return (-requests.get(res.CPU, 0), -requests.get(res.MEMORY, 0), *age(item.pods[0]))


def _left_out(skipped: SkippedPool, category: Category) -> Reason:
    """A pool that took no part; unless its types were looked at, in this category."""
    if skipped.reason in (Skip.FILTERED, Skip.FILTERED_MIN_VALUES):
        detail = "nodepool requirements filtered out all available instance types"
        return Reason(Category.NO_TYPES, skipped.node_pool, detail=detail)
    return Reason(category, skipped.node_pool, detail=skipped.detail, skip=skipped.reason)
