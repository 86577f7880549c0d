"""Which waiting pods a plan is made for, and which it cannot serve (SCH §3).

A constraint that is not supported yet never gets lost: the pod stays waiting and the reason names the constraint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from karpenter.api.core import Pod, PodDisruptionBudget, PodSpec
from karpenter.api.scheduling_constraints import NodeSelectorTerm
from karpenter.model import labels, pod_disruption, pods
from karpenter.model.pod_requirements import pod_requirement_errors
from karpenter.model.requirements import Op, Requirement
from karpenter.scheduling.unschedulable_reasons import (
    InvalidPod,
    OptedOut,
    ResourceClaimUnusable,
    UnschedulableReason,
    UnsupportedResourceClaims,
    VolumeUnusable,
)
from karpenter.state.cluster_devices import PodDevices
from karpenter.state.pod_counts import NamespacedLabels, namespaced_labels
from karpenter.state.pod_signature import PodSignature, PodSignatureCache, required_node_affinity_terms
from karpenter.state.pod_volumes import PodVolumes
from karpenter.state.snapshot import ClusterSnapshot, PodGroup, creation_order
from karpenter.state.state_node import StateNode


def awaits_preemption(pod: Pod, nodes: Mapping[str, StateNode]) -> bool:
    """Whether the scheduler is making room for the pod on a node (SCH-040c).

    The same field carries our own nominations, which never exclude a pod; preemption shows by its victims, pods of lower
    priority on their way out of the nominated node.
    """
    node = nodes.get(pod.status.nominated_node_name)
    if node is None or node.marked_for_deletion:
        return False
    priority = pod.spec.priority or 0
    return any(
        victim.metadata.deletion_timestamp is not None and (victim.spec.priority or 0) < priority
        for victim in node.pods
    )


def ineligibility_reasons(signature: PodSignature, well_known: frozenset[str]) -> tuple[UnschedulableReason, ...]:
    """Why no plan can be made for waiting pods of this class; empty when one can."""
    return tuple(_invalid_requirements(signature, well_known))


def ineligibility_reasons_of_bound(signature: PodSignature) -> tuple[UnschedulableReason, ...]:
    """The same for pods that must leave their node: which labels they name is not checked again (SCH-063)."""
    unreadable = [_malformed_term(term) for term in required_node_affinity_terms(signature.spec.affinity)]
    errors = [text for texts in unreadable for text in texts] if all(unreadable) else []
    return (UnschedulableReason(InvalidPod(tuple(errors))),) if errors else ()


def _invalid_requirements(signature: PodSignature, well_known: frozenset[str]) -> Iterator[UnschedulableReason]:
    """SCH-050 to SCH-053, per alternative: a pod with one good OR-term uses the good one (§3 Beyond)."""
    if signature.node_selector or signature.spec.affinity:
        opted_out = Requirement(labels.NODE_POOL, False)
        first = signature.node_alternatives[0]
        if labels.NODE_POOL in first and first[labels.NODE_POOL] == opted_out:
            yield UnschedulableReason(OptedOut())
            return
    errors = [*_selector_errors(signature.spec, well_known), *_affinity_errors(signature.spec, well_known)]
    if errors:
        yield UnschedulableReason(InvalidPod(tuple(errors)))


def is_opt_out(reason: UnschedulableReason) -> bool:
    """Whether the pod said itself that it wants none of our nodes: no event for that (SCH-051)."""
    return isinstance(reason.cause, OptedOut)


def _selector_errors(spec: PodSpec, well_known: frozenset[str]) -> list[str]:
    return [
        text
        for key, value in sorted(spec.node_selector.items())
        for text in pod_requirement_errors(key, Op.IN, (value,), well_known)
    ]


def _affinity_errors(spec: PodSpec, well_known: frozenset[str]) -> list[str]:
    """Errors of the required terms, unless some term has none."""
    per_term = [term_errors(term, well_known) for term in required_node_affinity_terms(spec.affinity)]
    return [] if not all(per_term) else [text for errors in per_term for text in errors]


def term_errors(term: NodeSelectorTerm, well_known: frozenset[str]) -> list[str]:
    """Why a required node-affinity term cannot be used; empty when it can."""
    errors = _malformed_term(term)
    for entry in term.match_expressions:
        errors += pod_requirement_errors(entry.key, entry.operator, entry.values, well_known)
    return errors


def usable_terms(spec: PodSpec, well_known: frozenset[str]) -> list[bool]:
    """Which of the required terms may be tried: those without errors, else those that can be read at all."""
    terms = required_node_affinity_terms(spec.affinity)
    faultless = [not term_errors(term, well_known) for term in terms]
    return faultless if any(faultless) else [not _malformed_term(term) for term in terms]


def _malformed_term(term: NodeSelectorTerm) -> list[str]:
    if term.match_fields:
        return ["node selector term with matchFields is not supported"]
    return [] if term.match_expressions else ["an empty node selector term matches no node"]


def unsupported_claims(spec: PodSpec) -> tuple[UnschedulableReason, ...]:
    """The reason of pods with claims while devices are not planned with (SCH-781); empty for others."""
    names = tuple(claim.name for claim in spec.resource_claims)
    return (UnschedulableReason(UnsupportedResourceClaims(names)),) if names else ()


def device_reasons(devices: PodDevices) -> tuple[UnschedulableReason, ...]:
    """Why a pod cannot be planned for with its resource claims as they are (SCH-783)."""
    return tuple(
        UnschedulableReason(ResourceClaimUnusable(error, devices.errors_are_transient)) for error in devices.errors
    )


def volume_reasons(volumes: PodVolumes) -> tuple[UnschedulableReason, ...]:
    """Why a waiting pod cannot be planned for with its volumes as they are (SCH-450)."""
    return tuple(
        [UnschedulableReason(VolumeUnusable(text, volumes.errors_are_transient)) for text in volumes.claim_errors]
    )


def volume_reasons_of_bound(volumes: PodVolumes) -> tuple[UnschedulableReason, ...]:
    """The same for a pod that must leave its node: only what is not known of its volumes counts (SCH-063, SCH-441)."""
    return tuple([UnschedulableReason(VolumeUnusable(text)) for text in volumes.unresolved_claim_errors])


# -- pods that must leave their node ------------------------------------------------------------------------------------


def pods_leaving_nodes(snapshot: ClusterSnapshot, now: datetime) -> tuple[Pod, ...]:
    """Pods of nodes on their way out that will need another place (SCH-060)."""
    return tuple(
        pod
        for view in snapshot.nodes
        if view.marked_for_deletion and view.node is not None
        for pod in view.pods
        if pod_disruption.is_currently_reschedulable(pod, now) and not blocked_by_budgets(pod, snapshot.pdbs, now)
    )


def grouped_by_class(moving: Iterable[Pod]) -> tuple[tuple[PodGroup, ...], tuple[tuple[Pod, UnschedulableReason], ...]]:
    """Bound pods by signature and labels, and those whose requests cannot be read, each with the reason."""
    classes = PodSignatureCache()
    groups: dict[tuple[PodSignature, NamespacedLabels], list[Pod]] = {}
    unreadable: list[tuple[Pod, UnschedulableReason]] = []
    for pod in moving:
        try:
            groups.setdefault((classes.signature_of(pod), namespaced_labels(pod)), []).append(pod)
        except ValueError as error:
            unreadable.append((pod, UnschedulableReason(InvalidPod((str(error),)))))
    pod_groups = tuple(PodGroup(*group, tuple(sorted(items, key=creation_order))) for group, items in groups.items())
    return pod_groups, tuple(unreadable)


def blocked_by_budgets(pod: Pod, budgets: Iterable[PodDisruptionBudget], now: datetime) -> bool:
    """Whether disruption budgets can never let the pod go (SCH-062)."""
    if not pods.is_active(pod) or pod_disruption.tolerates_disruption(pod) or pod_disruption.is_protected(pod, now):
        return False
    matching = pod_disruption.pdbs_selecting(pod, budgets)
    if len(matching) != 1:
        return len(matching) > 1
    if pod_disruption.allows_unready_eviction(matching[0], pod):
        return False
    spec = matching[0].spec
    return spec.max_unavailable in (0, "0", "0%") or spec.min_available == "100%"
