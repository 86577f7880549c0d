"""Why each pod of a solution is unschedulable: a reason per NodePool, and over all of them the nearest fit (SCH §13 Beyond).

Only pods that failed are diagnosed, and pods that failed alike share one diagnosis, so many such pods cost no more than one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from math import inf

from karpenter.instancetypes.type_index import TypeIndex
from karpenter.model.requirements import Op
from karpenter.model.resources import Resources
from karpenter.scheduling.devices.type_devices import TypeDevices
from karpenter.scheduling.existing_nodes import ExistingNode, ExistingNodeIndex, NodeSet
from karpenter.scheduling.explain.nodepool_diagnosis import NodePoolDiagnosis, nearest_fit_order
from karpenter.scheduling.explain.nodepool_filters import DiagnosisInput
from karpenter.scheduling.failed_filters import InsufficientResource, NearestFit, StaticPoolFull
from karpenter.scheduling.offerings import nodepool_templates
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate
from karpenter.scheduling.pass_result import UnschedulableGroup
from karpenter.scheduling.preferences import RelaxationStep
from karpenter.scheduling.solution import SkippedNodePool, UnschedulablePod
from karpenter.scheduling.unschedulable_reasons import NodePoolSkipped, NoNodePool, UnschedulableReason
from karpenter.state.snapshot import ClusterSnapshot, DaemonSetPod

_NO_POOLS = (UnschedulableReason(NoNodePool()),)
#: Other relaxation steps of a pod, and existing nodes, that are compared for the nearest fit.
_MAX_STEPS_COMPARED = 8
_MAX_NODES_COMPARED = 64
#: Existing nodes are searched in groups: those that have all eighths of the requests free first, then fewer.
_FREE_EIGHTHS = (8, 7, 6, 4)


@dataclass(frozen=True)
class RemainingCapacity:
    """What is left of limits, by pool, and of reservations."""

    limits: Mapping[str, Mapping[str, int]]
    reservation_units: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class DiagnosisContext:
    """What the solver chose among: the snapshot, types by pool, pools in the order tried and those skipped, existing nodes.

    ``strict_min_values``: minValues may not be lowered. ``remaining``: what is free on existing nodes after the pass, where pods
    were placed; on the others it is what was free before. ``devices``: those of types, where pods ask for devices.
    """

    snapshot: ClusterSnapshot
    indexes: Mapping[str, TypeIndex]
    templates: Sequence[NodePoolTemplate]
    skipped_pools: Sequence[SkippedNodePool]
    daemons: tuple[DaemonSetPod, ...]
    existing_nodes: ExistingNodeIndex
    strict_min_values: bool
    remaining: Mapping[ExistingNode, Resources]
    devices: TypeDevices | None = None


@dataclass(frozen=True, eq=False)
class _GroupReasons:
    """The answer for all pods that failed alike."""

    reasons: tuple[UnschedulableReason, ...]
    nearest_fit: NearestFit | None = None
    nearest_node: NearestFit | None = None


class UnschedulableDiagnosis:
    """Explains the unschedulable pods of one solution."""

    def __init__(self, context: DiagnosisContext) -> None:
        self._context = context
        self._cached_reasons: dict[tuple[object, ...], _GroupReasons] = {}

    def for_pods(self, failed: UnschedulableGroup, left: RemainingCapacity) -> list[UnschedulablePod]:
        """Each of the pods with its reasons. ``left`` is what was left when they failed."""
        group = self._group_reasons(failed, left)
        return [UnschedulablePod(pod, group.reasons, group.nearest_fit, group.nearest_node) for pod in failed.pods]

    def _group_reasons(self, failed: UnschedulableGroup, left: RemainingCapacity) -> _GroupReasons:
        if failed.blocked is not None:
            reason = UnschedulableReason(failed.blocked)
            return _GroupReasons((reason,), reason.nearest_fit)
        step = failed.last_step
        key = (failed.group.signature, step.requirements, step.tolerations, failed.confined, failed.limited)
        cached = self._cached_reasons.get(key)
        if cached is None:
            cached = self._cached_reasons[key] = self._diagnosed(failed, left)
        return cached

    def _diagnosed(self, failed: UnschedulableGroup, left: RemainingCapacity) -> _GroupReasons:
        failed = replace(failed, last_step=self._nearest_alternative(failed, left))
        reasons = self._reasons(failed, left)
        fits = [*self._nearest_fits(failed, reasons, left), *self._static_pool_fits(failed)]
        nearest = min(fits, key=nearest_fit_order, default=None)
        if nearest is not None:
            nearest = replace(nearest, confinements=failed.confined)
        return _GroupReasons(reasons, nearest, self._nearest_node(failed.group.signature.requests, failed.last_step))

    def _reasons(self, failed: UnschedulableGroup, left: RemainingCapacity) -> tuple[UnschedulableReason, ...]:
        """One reason per pool tried, then per pool skipped (SCH-115)."""
        context = self._context
        tried = tuple(diagnosis.reason for diagnosis in self._diagnoses(failed, failed.last_step, left))
        skipped = (
            UnschedulableReason(
                NodePoolSkipped(skipped_nodepool.reason, skipped_nodepool.detail, not tried), skipped_nodepool.node_pool
            )
            for skipped_nodepool in context.skipped_pools
        )
        return (*tried, *skipped) or _NO_POOLS

    def _nearest_alternative(self, failed: UnschedulableGroup, left: RemainingCapacity) -> RelaxationStep:
        """Of several OR-terms that no NodePool can meet the one that is nearest to it, wherever it stands among them."""
        last = {step.hard_requirements: step for step in failed.group.relaxation_steps}
        alternatives = [step for step in last.values() if step.tolerations == failed.last_step.tolerations]
        if failed.confined or failed.limited or len(alternatives) < 2:
            return failed.last_step
        nearest: list[tuple[tuple[float, ...], RelaxationStep]] = []
        for step in alternatives[: -_MAX_STEPS_COMPARED - 1 : -1]:
            diagnoses = list(self._diagnoses(failed, step, left))
            if any(diagnosis.has_fitting_type for diagnosis in diagnoses):
                return failed.last_step
            fits = (diagnosis.nearest_fit for diagnosis in diagnoses)
            orders = [nearest_fit_order(fit) for fit in fits if fit is not None]
            nearest.append((min(orders, default=(inf,)), step))
        return min(nearest, key=lambda each: each[0])[1]

    def _diagnoses(
        self, failed: UnschedulableGroup, step: RelaxationStep, left: RemainingCapacity
    ) -> Iterator[NodePoolDiagnosis]:
        subject = self._diagnosis_input(failed, step, left.reservation_units)
        for template in self._context.templates:
            yield NodePoolDiagnosis(subject, template, left.limits.get(template.name))

    def _nearest_fits(
        self, failed: UnschedulableGroup, reasons: Iterable[UnschedulableReason], left: RemainingCapacity
    ) -> Iterator[NearestFit]:
        """The nearest fit in each pool, for the step the reasons are about and for the pods' other steps."""
        yield from (reason.nearest_fit for reason in reasons if reason.nearest_fit is not None)
        for step in _other_steps(failed):
            for diagnosis in self._diagnoses(failed, step, left):
                if diagnosis.nearest_fit is not None:
                    yield diagnosis.nearest_fit

    def _diagnosis_input(
        self, failed: UnschedulableGroup, relaxation_step: RelaxationStep, reservation_units: Mapping[str, int]
    ) -> DiagnosisInput:
        return DiagnosisInput(
            failed.group.signature,
            relaxation_step,
            self._context.daemons,
            self._context.strict_min_values,
            reservation_units,
            self._context.devices,
        )

    # -- static pools ---------------------------------------------------------------------------------------------------

    @cached_property
    def _static_templates(self) -> tuple[NodePoolTemplate, ...]:
        context = self._context
        return nodepool_templates.static_templates(context.snapshot.pools, context.indexes, context.daemons)

    def _static_pool_fits(self, failed: UnschedulableGroup) -> Iterator[NearestFit]:
        """Static pools launch nothing for pods, but the owner of a pod that fits one may expect that."""
        subject = self._diagnosis_input(failed, failed.last_step, {})
        for template in self._static_templates:
            if NodePoolDiagnosis(subject, template, None).has_fitting_type:
                yield NearestFit((StaticPoolFull(template.pool.spec.replicas or 0),), node_pool=template.name)

    # -- existing nodes -------------------------------------------------------------------------------------------------

    def _nearest_node(self, requests: Resources, relaxation_step: RelaxationStep) -> NearestFit | None:
        """The existing node that would take such a pod with a little more room: at least half of the requests are free."""
        index = self._context.existing_nodes
        remaining = index.tolerated_by(relaxation_step.tolerations) & _nodes_with_requested_labels(
            index, relaxation_step
        )
        for eighths in _FREE_EIGHTHS if remaining else ():
            part = {name: -(-amount * eighths // 8) for name, amount in requests.items()}
            candidates = remaining & index.with_free(part)
            remaining &= ~candidates
            short_nodes = (
                (node, missing)
                for node in islice(index.nodes_in(candidates), _MAX_NODES_COMPARED)
                if (missing := _missing_resources(node, self._context.remaining.get(node, node.free), requests))
                and node.satisfies(relaxation_step.requirements)
            )
            fits = (NearestFit(missing, node=node.view.name) for node, missing in short_nodes)
            best = min(fits, key=nearest_fit_order, default=None)
            if best is not None:
                return best
        return None


def _nodes_with_requested_labels(existing_nodes: ExistingNodeIndex, relaxation_step: RelaxationStep) -> NodeSet:
    """Nodes that have one of the required label values, where the requirement lists values."""
    nodes = existing_nodes.all_nodes
    for key, required in relaxation_step.requirements.items():
        if required.operator is Op.IN:
            by_value = existing_nodes.by_label_value(key)
            matching = 0
            for value in required.values:
                matching |= by_value.get(value, 0)
            nodes &= matching
    return nodes


def _missing_resources(node: ExistingNode, left: Resources, requests: Resources) -> tuple[InsufficientResource, ...]:
    """The shortfalls of a node; empty where nothing is short, or where more than half of a request is."""
    if any(2 * left.get(name, 0) < amount for name, amount in requests.items()):
        return ()
    name = node.view.name
    short = [(resource, amount) for resource, amount in sorted(requests.items()) if amount > left.get(resource, 0)]
    return tuple(InsufficientResource(resource, amount, left.get(resource, 0), name) for resource, amount in short)


def _other_steps(failed: UnschedulableGroup) -> Sequence[RelaxationStep]:
    """The pods' other steps that differ in what they require; none where the pods are confined to a domain."""
    if failed.confined:
        return ()
    steps, last = failed.group.relaxation_steps, failed.last_step
    seen = {last.requirements}
    others: list[RelaxationStep] = []
    for step in reversed(steps):
        if len(others) == _MAX_STEPS_COMPARED:
            break
        if step.requirements not in seen and step.tolerations == last.tolerations:
            seen.add(step.requirements)
            others.append(step)
    return others
