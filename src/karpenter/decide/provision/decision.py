"""The provisioning decision: from a snapshot to a plan (SCH §2).

In order: who waits, who can be served, which pools take part; then class by class what existing machines hold, what is left
becomes demand for new ones; the demand is packed in several ways and the cheapest packing becomes the plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from karpenter.api.core import Pod
from karpenter.catalog.index import TypeIndex
from karpenter.cluster.classes import PodClass
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import PodGroup, Snapshot
from karpenter.decide.plan import PlacedPods, Plan, PlannedClaim, SkippedPool, UnplacedPod
from karpenter.decide.provision import eligible, templates
from karpenter.decide.provision.existing import Machine, machines, pour
from karpenter.decide.provision.failures import why_not
from karpenter.decide.provision.finalise import planned_claims
from karpenter.decide.provision.packing import Demand, Option, Packer, Packing, largest_capacity
from karpenter.decide.provision.templates import Template
from karpenter.decide.provision.variants import Ladder, PreferencePolicy, Variant
from karpenter.decide.reasons import Category, Reason
from karpenter.model import labels, taints
from karpenter.model import resources as res
from karpenter.model.requirements import compatible, from_wire


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
        self._templates, self._skipped = templates.usable(
            snapshot.pools, indexes, snapshot.daemons, min_values=self._strict
        )
        by_name = {template.name: template for template in self._templates}
        self._machines = machines(snapshot.nodes, by_name, snapshot.daemons)
        self._limits = {t.name: left for t in self._templates if (left := _left_of_limits(t, snapshot.nodes))}
        self._well_known = labels.WELL_KNOWN.union(*(index.well_known for index in indexes.values()))
        soft_taints = any(
            taint.effect == "PreferNoSchedule"
            for taint in (
                *(taint for template in self._templates for taint in template.taints),
                *(taint for machine in self._machines for taint in machine.view.taints),
            )
        )
        self._ladder = Ladder(options.preferences, soft_taints, self._well_known)
        self._unplaced: list[UnplacedPod] = []
        self._demands: list[Demand] = []

    def plan(self) -> Plan:
        waiting = self._kept_in_place(self._served(self._waiting()))
        for item in sorted(waiting, key=_order):
            self._settle(item)
        packing = self._packed()
        claims: tuple[PlannedClaim, ...] = ()
        if packing is not None:
            self._report_left(packing)
            taken = {view.name for view in self._snapshot.nodes if view.leaving}
            claims = planned_claims(packing.claims, self._demands, taken)
        existing = tuple(PlacedPods(m.view.key, m.view.name, tuple(m.pods)) for m in self._machines if m.pods)
        return Plan(
            claims=claims,
            existing=existing,
            unplaced=tuple(sorted(self._unplaced, key=lambda u: (u.pod.metadata.namespace, u.pod.metadata.name))),
            skipped_pools=self._skipped,
            packing=packing.name if packing else "",
        )

    # -- who waits ------------------------------------------------------------------------------------------------------

    def _waiting(self) -> Iterable[PodGroup]:
        by_node = {view.node.metadata.name: view for view in self._snapshot.nodes if view.node is not None}
        for group in self._snapshot.groups:
            if any(pod.status.nominated_node_name for pod in group.pods):
                staying = tuple(pod for pod in group.pods if not eligible.awaits_preemption(pod, by_node))
                group = PodGroup(group.pod_class, staying)
            if group.pods:
                yield group
        yield from eligible.leaving_groups(self._snapshot, self._now)

    def _served(self, groups: Iterable[PodGroup]) -> Iterable[_Waiting]:
        """Groups a plan can be made for; the others are recorded with their reasons."""
        for group in groups:
            reasons = eligible.objections(group.pod_class, self._well_known)
            if reasons:
                self._unplaced += [UnplacedPod(pod, reasons) for pod in group.pods]
            elif self._snapshot.repelling:
                yield from self._repelled(group)
            else:
                yield _Waiting(group.pod_class, group.pods)

    def _repelled(self, group: PodGroup) -> Iterable[_Waiting]:
        by_closed: dict[frozenset[str], list[Pod]] = defaultdict(list)
        for pod in group.pods:
            closed, reasons = eligible.repelled_from(pod, self._snapshot)
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

    def _settle(self, item: _Waiting) -> None:
        """Existing machines first, variant by variant; what is left becomes demand, or is unplaced with the reasons."""
        rest = list(item.pods)
        variants = self._ladder.of(item.pod_class)
        for step, variant in enumerate(variants):
            rest = pour(item.pod_class, variant, rest, self._machines, item.closed)
            if not rest:
                return
            options = self._options_for(item.pod_class, variants[step:])
            if options and options[0].variant is variant:
                self._demands.append(Demand(item.pod_class, tuple(rest), options))
                return
        reasons = self._reasons(item.pod_class, variants[-1], self._limits)
        self._unplaced += [UnplacedPod(pod, reasons) for pod in rest]

    def _options_for(self, pod_class: PodClass, variants: Sequence[Variant]) -> tuple[Option, ...]:
        found: list[Option] = []
        for variant in variants:
            for template in self._templates:
                types = self._types_for(pod_class, variant, template)
                if types:
                    found.append(Option(variant, template, types))
        return tuple(found)

    def _types_for(self, pod_class: PodClass, variant: Variant, template: Template) -> int:
        index = template.index
        if template.taints and taints.untolerated(template.taints, variant.tolerations):
            return 0
        if not compatible(template.requirements, variant.requirements, index.well_known):
            return 0
        types = template.types & template.holding(pod_class.requests)
        requirements = template.requirements
        if variant.requirements:
            requirements = requirements.intersect(variant.requirements)
            types &= index.matching(requirements) & index.buyable(requirements)
        return types if not self._strict or index.diverse(requirements, types) else 0

    def _reasons(
        self, pod_class: PodClass, variant: Variant, limits: Mapping[str, Mapping[str, int]]
    ) -> tuple[Reason, ...]:
        found = why_not(pod_class, variant, self._templates, limits)
        if found:
            return found
        return tuple(_no_template(skipped) for skipped in self._skipped) or (
            Reason(Category.NO_POOL, detail="no dynamic nodepools found"),
        )

    # -- all demand together --------------------------------------------------------------------------------------------

    def _packed(self) -> Packing | None:
        if not self._demands:
            return None
        packer = Packer(self._demands, self._limits, relax_min_values=not self._strict)
        return min((packer.value(), packer.largest()), key=lambda packing: packing.badness)

    def _report_left(self, packing: Packing) -> None:
        """Pods for which limits ran out on the way: their reasons are judged on what the plan leaves of the limits."""
        spent = {name: dict(left) for name, left in self._limits.items()}
        for claim in packing.claims:
            left = spent.get(claim.template.name)
            if left is not None:
                most = largest_capacity(claim.template, claim.types)
                for name in left:
                    left[name] -= res.ONE if name == res.NODES else most.get(name, 0)
        for position, count in packing.left.items():
            demand = self._demands[position]
            reasons = self._reasons(demand.pod_class, demand.options[-1].variant, spent)
            self._unplaced += [UnplacedPod(pod, reasons) for pod in demand.pods[len(demand.pods) - count :]]


def _order(item: _Waiting) -> tuple[int, int, str, str]:
    """Classes in the reference's order (SCH-231): CPU, then memory, largest first, then the oldest pod."""
    first = item.pods[0].metadata
    created = first.creation_timestamp.isoformat() if first.creation_timestamp else ""
    requests = item.pod_class.requests
    return (-requests.get(res.CPU, 0), -requests.get(res.MEMORY, 0), created, first.uid or first.name)


def _no_template(skipped: SkippedPool) -> Reason:
    if skipped.reason.startswith(templates.NO_COMPATIBLE_TYPES):
        return Reason(
            Category.NO_TYPES,
            skipped.node_pool,
            detail="nodepool requirements filtered out all available instance types",
        )
    return Reason(Category.NO_POOL, skipped.node_pool, detail=f"no dynamic nodepools found ({skipped.reason})")


def _left_of_limits(template: Template, views: Sequence[NodeView]) -> dict[str, int]:
    """Limits minus the capacity of the pool's machines (SCH-381); a claim yet to launch counts as the largest it may become."""
    limits = res.parse(template.pool.spec.limits)
    if not limits:
        return {}
    used = res.add(*(_capacity(view, template) for view in views if view.pool == template.name and not view.leaving))
    return res.subtract(limits, used)


def _capacity(view: NodeView, template: Template) -> dict[str, int]:
    capacity = dict(view.capacity)
    if not view.launched and view.claim is not None:
        wanted = from_wire(view.claim.spec.requirements)
        types = template.index.matching(wanted) & template.index.buyable(wanted)
        capacity = dict(largest_capacity(template, types))
    capacity[res.NODES] = res.ONE
    return capacity
