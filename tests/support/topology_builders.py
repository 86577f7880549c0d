"""Short words for what pods say about each other: spread constraints, affinity terms, and pods of an app."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from karpenter.api.core import Pod
from karpenter.api.meta import LabelSelector, WireResources
from karpenter.api.scheduling_constraints import (
    Affinity,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from karpenter.model import labels
from support.builders import node_and_claim, pod, pods


def of_app(name: str) -> LabelSelector:
    return LabelSelector(match_labels={"app": name})


_WEB = of_app("web")


def spread_over(
    key: str = labels.ZONE,
    skew: int = 1,
    *,
    soft: bool = False,
    selector: LabelSelector | None = _WEB,
    **fields: object,
) -> TopologySpreadConstraint:
    """Spread over the domains of a key; the pods of app ``web`` unless said otherwise."""
    when = "ScheduleAnyway" if soft else "DoNotSchedule"
    return TopologySpreadConstraint(
        max_skew=skew,
        topology_key=key,
        when_unsatisfiable=when,
        label_selector=selector,
        **fields,
    )


def affinity_term(app: str = "web", key: str = labels.HOSTNAME, **fields: object) -> PodAffinityTerm:
    """A term about the pods of an app."""
    return PodAffinityTerm(topology_key=key, label_selector=of_app(app), **fields)


def affinity_terms(*terms: PodAffinityTerm, preferred: Iterable[PodAffinityTerm] = ()) -> PodAffinity:
    """Required terms, and preferred ones of rising weight, for either direction."""
    weighted = tuple(
        WeightedPodAffinityTerm(weight=n, pod_affinity_term=pod_affinity_term)
        for n, pod_affinity_term in enumerate(preferred, 1)
    )
    return PodAffinity(required=terms, preferred=weighted)


def pod_affinity_to(*terms: PodAffinityTerm, preferred: Iterable[PodAffinityTerm] = ()) -> Affinity:
    """Pod affinity."""
    return Affinity(pod_affinity=affinity_terms(*terms, preferred=preferred))


def pod_anti_affinity_to(*terms: PodAffinityTerm, preferred: Iterable[PodAffinityTerm] = ()) -> Affinity:
    """Pod anti-affinity."""
    return Affinity(pod_anti_affinity=affinity_terms(*terms, preferred=preferred))


def app_pods(
    count: int,
    requests: WireResources | None = None,
    *,
    app: str = "web",
    prefix: str = "",
    spread: Iterable[TopologySpreadConstraint] = (),
    own: Mapping[str, str] = {},
    **spec: object,
) -> list[Pod]:
    """Waiting pods of an app; ``own`` are further labels of theirs."""
    return pods(
        count,
        requests,
        prefix=prefix or app,
        meta={"labels": {"app": app, **own}},
        topology_spread_constraints=tuple(spread),
        **spec,
    )


def running_app_pod(name: str, on: str, app: str = "web", **fields: object) -> Pod:
    """A bound pod of an app."""
    meta = {"labels": {"app": app}, **fields.pop("meta", {})}
    return pod(name, node_name=on, meta=meta, **fields)


def full_node(name: str, zone: str) -> object:
    """A node without room, in a zone."""
    return node_and_claim(name, {"cpu": "1m"}, labels={labels.ZONE: zone})
