"""Which waiting pods a plan is made for, and which it cannot serve (SCH §3).

A constraint that is not supported yet never gets lost: the pod stays waiting and the reason names the constraint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from karpenter.api.core import (
    NodeSelectorTerm,
    Pod,
    PodDisruptionBudget,
    PodSpec,
)
from karpenter.cluster.classes import PodClass, PodClasses, required_terms
from karpenter.cluster.faces import Face, face_of
from karpenter.cluster.nodes import NodeView
from karpenter.cluster.snapshot import PodGroup, Snapshot, age
from karpenter.cluster.volumes import PodVolumes
from karpenter.decide.reasons import Category, Reason
from karpenter.model import disruption_budgets, labels, pods
from karpenter.model.pod_requirements import complaints
from karpenter.model.requirements import Op, Requirement


def awaits_preemption(pod: Pod, nodes: Mapping[str, NodeView]) -> bool:
    """Whether the scheduler is making room for the pod on a node (SCH-040c).

    The same field carries our own nominations, which never exclude a pod; preemption shows by its victims, pods of lower
    priority on their way out of the nominated node.
    """
    node = nodes.get(pod.status.nominated_node_name)
    if node is None or node.leaving:
        return False
    priority = pod.spec.priority or 0
    return any(
        victim.metadata.deletion_timestamp is not None and (victim.spec.priority or 0) < priority
        for victim in node.pods
    )


def objections(pod_class: PodClass, well_known: frozenset[str]) -> tuple[Reason, ...]:
    """Why no plan can be made for waiting pods of this class; empty when one can."""
    return (*_invalid(pod_class, well_known), *_unsupported(pod_class.spec))


def objections_to_moving(pod_class: PodClass) -> tuple[Reason, ...]:
    """The same for pods that must leave their node: nobody asks them again which labels they may name (SCH-063)."""
    unreadable = [_unreadable(term) for term in required_terms(pod_class.spec.affinity)]
    errors = [text for texts in unreadable for text in texts] if all(unreadable) else []
    own = (Reason(Category.POD, detail="; ".join(errors)),) if errors else ()
    return (*own, *_unsupported(pod_class.spec))


def _invalid(pod_class: PodClass, well_known: frozenset[str]) -> Iterator[Reason]:
    """SCH-050 to SCH-053, per alternative: a pod with one good OR-term uses the good one (§3 Beyond)."""
    if pod_class.selector or pod_class.spec.affinity:
        opted_out = Requirement(labels.NODE_POOL, False)
        first = pod_class.alternatives[0]
        if labels.NODE_POOL in first and first[labels.NODE_POOL] == opted_out:
            text = (
                "configured to not run on a Karpenter provisioned node (requirement=karpenter.sh/nodepool DoesNotExist)"
            )
            yield Reason(Category.POD, detail=text)
            return
    errors = [*_selector_errors(pod_class.spec, well_known), *_affinity_errors(pod_class.spec, well_known)]
    if errors:
        yield Reason(Category.POD, detail="; ".join(errors))


def is_opt_out(reason: Reason) -> bool:
    """Whether the pod said itself that it wants none of our nodes: no event for that (SCH-051)."""
    return reason.category is Category.POD and reason.detail.startswith("configured to not run")


def _selector_errors(spec: PodSpec, well_known: frozenset[str]) -> list[str]:
    return [
        text
        for key, value in sorted(spec.node_selector.items())
        for text in complaints(key, Op.IN, (value,), well_known)
    ]


def _affinity_errors(spec: PodSpec, well_known: frozenset[str]) -> list[str]:
    """Errors of the required terms, unless some term has none."""
    per_term = [term_errors(term, well_known) for term in required_terms(spec.affinity)]
    return [] if not all(per_term) else [text for errors in per_term for text in errors]


def term_errors(term: NodeSelectorTerm, well_known: frozenset[str]) -> list[str]:
    """Why a required node-affinity term cannot be used; empty when it can."""
    errors = _unreadable(term)
    for entry in term.match_expressions:
        errors += complaints(entry.key, entry.operator, entry.values, well_known)
    return errors


def usable_terms(spec: PodSpec, well_known: frozenset[str]) -> list[bool]:
    """Which of the required terms may be tried: those without errors, else those that can be read at all."""
    terms = required_terms(spec.affinity)
    faultless = [not term_errors(term, well_known) for term in terms]
    return faultless if any(faultless) else [not _unreadable(term) for term in terms]


def _unreadable(term: NodeSelectorTerm) -> list[str]:
    if term.match_fields:
        return ["node selector term with matchFields is not supported"]
    return [] if term.match_expressions else ["an empty node selector term matches no node"]


def _unsupported(spec: PodSpec) -> Iterator[Reason]:
    if spec.resource_claims:
        names = ", ".join(claim.name for claim in spec.resource_claims)
        text = (
            f"pod has Dynamic Resource Allocation requirements that are not yet supported by Karpenter (claims {names})"
        )
        yield Reason(Category.DEVICE, detail=text)


def volume_faults(volumes: PodVolumes) -> tuple[Reason, ...]:
    """Why a waiting pod cannot be planned for with its volumes as they are (SCH-450)."""
    return tuple(Reason(Category.VOLUME, detail=text, transient=volumes.transient) for text in volumes.faults)


def volume_faults_of_moving(volumes: PodVolumes) -> tuple[Reason, ...]:
    """The same for a pod that must leave its node: only what is not known of its volumes counts (SCH-063, SCH-441)."""
    return tuple(Reason(Category.VOLUME, detail=text) for text in volumes.unresolved)


# -- pods that must leave their node ------------------------------------------------------------------------------------


def leaving(snapshot: Snapshot, now: datetime) -> tuple[Pod, ...]:
    """Pods of machines on their way out that will need another place (SCH-060)."""
    return tuple(
        pod
        for view in snapshot.nodes
        if view.leaving and view.node is not None
        for pod in view.pods
        if pods.is_reschedulable(pod, now) and not fully_blocked(pod, snapshot.budgets, now)
    )


def grouped(moving: Iterable[Pod]) -> tuple[tuple[PodGroup, ...], tuple[tuple[Pod, Reason], ...]]:
    """Bound pods by class and look, and those whose requests cannot be read, each with the reason."""
    classes = PodClasses()
    groups: dict[tuple[PodClass, Face], list[Pod]] = {}
    unreadable: list[tuple[Pod, Reason]] = []
    for pod in moving:
        try:
            groups.setdefault((classes.of(pod), face_of(pod)), []).append(pod)
        except ValueError as error:
            unreadable.append((pod, Reason(Category.POD, detail=str(error))))
    found = tuple(PodGroup(*group, tuple(sorted(items, key=age))) for group, items in groups.items())
    return found, tuple(unreadable)


def fully_blocked(pod: Pod, budgets: Iterable[PodDisruptionBudget], now: datetime) -> bool:
    """Whether disruption budgets can never let the pod go (SCH-062)."""
    if not pods.is_active(pod) or pods.tolerates_disruption(pod) or pods.is_protected(pod, now):
        return False
    matching = disruption_budgets.over(pod, budgets)
    if len(matching) != 1:
        return len(matching) > 1
    if disruption_budgets.yields_to(matching[0], pod):
        return False
    spec = matching[0].spec
    return spec.max_unavailable in (0, "0", "0%") or spec.min_available == "100%"
