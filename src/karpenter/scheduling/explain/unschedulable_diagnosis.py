"""What a plan says about pods it leaves waiting: a reason per NodePool, and over all of them the nearest miss (SCH §13 Beyond).

Asked once for all pods that fail alike, and only for those that fail; the answers cost no more for many pods than for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model.requirements import Op
from karpenter.model.resources import Resources
from karpenter.scheduling.existing_nodes import ExistingNode, ExistingNodeIndex, NodeSet
from karpenter.scheduling.explain.nodepool_diagnosis import DiagnosisInput, NodePoolDiagnosis, nearest_fit_order
from karpenter.scheduling.explain.nodepool_reasons import nodepool_reasons
from karpenter.scheduling.offerings import nodepool_templates
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.pass_result import UnschedulableGroup
from karpenter.scheduling.preferences import RelaxationStep
from karpenter.scheduling.solution import SkippedNodePool, UnschedulablePod
from karpenter.scheduling.unschedulable_reasons import (
    InsufficientResource,
    NearestFit,
    PoolSkipReason,
    ReasonCategory,
    StaticPoolFull,
    UnschedulableReason,
)
from karpenter.state.snapshot import ClusterSnapshot, DaemonSetPod

_NO_POOLS = (UnschedulableReason(ReasonCategory.NO_POOL),)
#: Alternatives of a pod, and machines there are, that are compared for the nearest miss.
_MAX_STEPS_COMPARED = 8
_MAX_NODES_COMPARED = 64
#: Eighths of what a pod asks that machines had free which are looked at, those with most first.
_FREE_EIGHTHS = (8, 7, 6, 4)


@dataclass(frozen=True)
class RemainingCapacity:
    """What is left of limits, by pool, and of reservations."""

    limits: Mapping[str, Mapping[str, int]]
    reservation_units: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class DiagnosisContext:
    """What a decision chose among: the picture, the types of each pool, pools in the order tried and those left out, machines.

    ``strict``: minValues may not be lowered.
    """

    snapshot: ClusterSnapshot
    indexes: Mapping[str, TypeIndex]
    templates: Sequence[NodePoolTemplate]
    skipped_pools: Sequence[SkippedNodePool]
    daemons: tuple[DaemonSetPod, ...]
    existing_nodes: ExistingNodeIndex
    strict_min_values: bool


@dataclass(frozen=True, eq=False)
class _GroupReasons:
    """What is said to all pods that failed alike."""

    reasons: tuple[UnschedulableReason, ...]
    nearest_fit: NearestFit | None = None
    nearest_node: NearestFit | None = None


class UnschedulableDiagnosis:
    """Explains the pods of one decision."""

    def __init__(self, context: DiagnosisContext) -> None:
        self._context = context
        self._cached_reasons: dict[tuple[object, ...], _GroupReasons] = {}

    def for_pods(self, failed: UnschedulableGroup, left: RemainingCapacity) -> list[UnschedulablePod]:
        """Each of the pods with its reasons. ``left`` is what there was when they were turned away."""
        told = self._group_reasons(failed, left)
        return [UnschedulablePod(pod, told.reasons, told.nearest_fit, told.nearest_node) for pod in failed.pods]

    def _group_reasons(self, failed: UnschedulableGroup, left: RemainingCapacity) -> _GroupReasons:
        if failed.blocked is not None:
            miss = NearestFit((failed.blocked,))
            return _GroupReasons(
                (UnschedulableReason(ReasonCategory.TOPOLOGY, detail=failed.topology_message, nearest_fit=miss),), miss
            )
        variant = failed.last_step
        key = (failed.group.signature, variant.requirements, variant.tolerations, failed.confined, failed.limited)
        known = self._cached_reasons.get(key)
        if known is None:
            known = self._cached_reasons[key] = self._diagnosed(failed, left)
        return known

    def _diagnosed(self, failed: UnschedulableGroup, left: RemainingCapacity) -> _GroupReasons:
        reasons = self._reasons(failed, left)
        misses = [*self._nearest_fits(failed, reasons, left), *self._static_pool_fits(failed)]
        nearest = min(misses, key=nearest_fit_order, default=None)
        if nearest is not None:
            nearest = replace(nearest, confinements=failed.confined)
        return _GroupReasons(reasons, nearest, self._nearest_node(failed.group.signature.requests, failed.last_step))

    def _reasons(self, failed: UnschedulableGroup, left: RemainingCapacity) -> tuple[UnschedulableReason, ...]:
        """One reason per pool tried, then per pool left out (SCH-115)."""
        scenery = self._context
        found = nodepool_reasons(
            self._diagnosis_input(failed, failed.last_step, left.reservation_units), scenery.templates, left.limits
        )
        category = ReasonCategory.SKIPPED_POOL if found else ReasonCategory.NO_POOL
        return (*found, *(_skipped_pool_reason(skipped, category) for skipped in scenery.skipped_pools)) or _NO_POOLS

    def _nearest_fits(
        self, failed: UnschedulableGroup, reasons: Iterable[UnschedulableReason], left: RemainingCapacity
    ) -> Iterable[NearestFit]:
        """The nearest miss in each pool, for the step the reasons are about and for the pod's other alternatives."""
        yield from (reason.nearest_fit for reason in reasons if reason.nearest_fit is not None)
        for variant in _other_steps(failed):
            for template in self._context.templates:
                study = NodePoolDiagnosis(
                    self._diagnosis_input(failed, variant, left.reservation_units),
                    template,
                    left.limits.get(template.name),
                )
                if study.nearest_fit is not None:
                    yield study.nearest_fit

    def _diagnosis_input(
        self, failed: UnschedulableGroup, relaxation_step: RelaxationStep, reservation_units: Mapping[str, int]
    ) -> DiagnosisInput:
        return DiagnosisInput(
            failed.group.signature,
            relaxation_step,
            self._context.daemons,
            self._context.strict_min_values,
            reservation_units,
        )

    # -- pools with a fixed number of machines --------------------------------------------------------------------------

    @cached_property
    def _static_templates(self) -> tuple[NodePoolTemplate, ...]:
        scenery = self._context
        return nodepool_templates.static_templates(scenery.snapshot.pools, scenery.indexes, scenery.daemons)

    def _static_pool_fits(self, failed: UnschedulableGroup) -> Iterable[NearestFit]:
        """Static pools buy nothing for pods, but a pod that suits one may think it waits for that."""
        for template in self._static_templates:
            study = NodePoolDiagnosis(self._diagnosis_input(failed, failed.last_step, {}), template, None)
            if study.has_fitting_type:
                yield NearestFit((StaticPoolFull(template.pool.spec.replicas or 0),), node_pool=template.name)

    # -- machines there are ---------------------------------------------------------------------------------------------

    def _nearest_node(self, requests: Resources, relaxation_step: RelaxationStep) -> NearestFit | None:
        """The machine that would take such a pod if it had a little more room: half of what is asked, or less."""
        field = self._context.existing_nodes
        candidates = field.tolerated_by(relaxation_step.tolerations) & _nodes_with_requested_labels(
            field, relaxation_step
        )
        for eighths in _FREE_EIGHTHS if candidates else ():
            part = {name: -(-amount * eighths // 8) for name, amount in requests.items()}
            there = candidates & field.with_free(part)
            candidates &= ~there
            found = (
                (machine, short)
                for machine in islice(field.nodes_in(there), _MAX_NODES_COMPARED)
                if (short := _missing_resources(machine, requests)) and machine.satisfies(relaxation_step.requirements)
            )
            best = min((NearestFit(short, node=m.view.name) for m, short in found), key=nearest_fit_order, default=None)
            if best is not None:
                return best
        return None


def _nodes_with_requested_labels(existing_nodes: ExistingNodeIndex, relaxation_step: RelaxationStep) -> NodeSet:
    """Machines that have one of the values asked for, as far as values are named."""
    found = existing_nodes.all_nodes
    for key, asked in relaxation_step.requirements.items():
        if asked.operator is Op.IN:
            by_value = existing_nodes.by_label_value(key)
            matching = 0
            for value in asked.values:
                matching |= by_value.get(value, 0)
            found &= matching
    return found


def _missing_resources(node: ExistingNode, requests: Resources) -> tuple[InsufficientResource, ...]:
    """What the machine lacks; nothing where that is no little, or nothing at all."""
    left = node.remaining
    if any(2 * left.get(name, 0) < amount for name, amount in requests.items()):
        return ()
    name = node.view.name
    lacking = [item for item in sorted(requests.items()) if item[1] > left.get(item[0], 0)]
    return tuple(InsufficientResource(resource, amount, left.get(resource, 0), name) for resource, amount in lacking)


def _other_steps(failed: UnschedulableGroup) -> Sequence[RelaxationStep]:
    """The pods' other alternatives without any wish; none where they are held to a domain."""
    ladder = failed.group.relaxation_steps
    if failed.confined:
        return ()
    last = ladder[-1]
    seen = {last.requirements}
    found: list[RelaxationStep] = []
    for variant in reversed(ladder):
        if len(found) == _MAX_STEPS_COMPARED:
            break
        if variant.requirements not in seen and variant.tolerations == last.tolerations:
            seen.add(variant.requirements)
            found.append(variant)
    return found


def _skipped_pool_reason(skipped: SkippedNodePool, category: ReasonCategory) -> UnschedulableReason:
    """A pool that took no part; unless its types were looked at, in this category."""
    if skipped.reason in (PoolSkipReason.FILTERED, PoolSkipReason.FILTERED_MIN_VALUES):
        detail = "nodepool requirements filtered out all available instance types"
        return UnschedulableReason(ReasonCategory.NO_TYPES, skipped.node_pool, detail=detail)
    return UnschedulableReason(category, skipped.node_pool, detail=skipped.detail, skip_reason=skipped.reason)
