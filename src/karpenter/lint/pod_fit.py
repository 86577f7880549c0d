"""Which NodePools could launch a node for the pods of a workload, by the rules of the scheduler for one pod alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from karpenter.instancetypes.type_sets import TypeSet
from karpenter.lint.lint_input import LintInput, PodSource, PoolOffer
from karpenter.model.pods import template_requests
from karpenter.model.requirements import Requirements, compatible
from karpenter.scheduling.offerings.nodepool_templates import NodePoolTemplate, daemon_node_terms, daemon_tolerates
from karpenter.state.host_ports import host_ports_of


class Obstacle(StrEnum):
    """The first thing that keeps a pod off the nodes of a NodePool."""

    TAINTS = "does not tolerate the taints"
    REQUIREMENTS = "asks for labels that nodes do not have"
    SIZE = "requests more than the largest instance type has free"
    HOST_PORTS = "needs a host port that a DaemonSet takes"


@dataclass(frozen=True, slots=True)
class PodFit:
    """The types of a pool that hold the pod, or what is in the way."""

    offer: PoolOffer
    types: TypeSet
    obstacle: Obstacle | None


def pod_fits(pod: PodSource, lint_input: LintInput) -> Iterator[PodFit]:
    """How the pod fits each NodePool that can launch anything and is not static."""
    for offer in lint_input.offers.values():
        if offer.template is not None and offer.pool.spec.replicas is None:
            yield _fit(pod, offer, offer.template)


def accepted_requirements(pod: PodSource, template: NodePoolTemplate) -> list[Requirements]:
    """What nodes of the pool would have to be like for the pod, one for each of its alternatives."""
    return [
        template.requirements_with(term)
        for term in daemon_node_terms(pod.spec)
        if compatible(template.requirements, term, template.index.well_known)
    ]


def _fit(pod: PodSource, offer: PoolOffer, template: NodePoolTemplate) -> PodFit:
    if not daemon_tolerates(pod.spec, template.taints):
        return PodFit(offer, 0, Obstacle.TAINTS)
    matching: TypeSet = 0
    for requirements in accepted_requirements(pod, template):
        matching |= template.index.matching(requirements) & template.index.with_available_offering(requirements)
    matching &= template.types
    if not matching:
        return PodFit(offer, 0, Obstacle.REQUIREMENTS)
    fitting = matching & template.types_fitting(template_requests(pod.spec))
    if not fitting:
        return PodFit(offer, 0, Obstacle.SIZE)
    free = fitting & template.types_with_free_ports(host_ports_of(pod.spec))
    return PodFit(offer, free, None if free else Obstacle.HOST_PORTS)
