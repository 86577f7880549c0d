"""Where a pod may run: taints and tolerations, node selectors and affinity, pod affinity, topology spread (``v1``)."""

from __future__ import annotations

from datetime import datetime

import msgspec

from karpenter.api.meta import LabelSelector, Wire


class Taint(Wire, frozen=True, kw_only=True):
    """A node taint."""

    key: str
    effect: str
    value: str = ""
    time_added: datetime | None = None


class Toleration(Wire, frozen=True, kw_only=True):
    """A pod toleration; an empty key with operator Exists tolerates every key."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class NodeSelectorRequirement(Wire, frozen=True, kw_only=True):
    """One expression of a node selector term."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Wire, frozen=True, kw_only=True):
    """Expressions that must all hold."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class PreferredSchedulingTerm(Wire, frozen=True, kw_only=True):
    """A weighted node preference."""

    weight: int
    preference: NodeSelectorTerm


class NodeSelector(Wire, frozen=True, kw_only=True):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(Wire, frozen=True, kw_only=True):
    """Required (OR of terms) and preferred (weighted) node affinity."""

    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)
    preferred: tuple[PreferredSchedulingTerm, ...] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class PodAffinityTerm(Wire, frozen=True, kw_only=True):
    """Pods that must share (or, in anti-affinity, must not share) a topology domain with this pod."""

    topology_key: str
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class WeightedPodAffinityTerm(Wire, frozen=True, kw_only=True):
    """A weighted pod (anti-)affinity preference."""

    weight: int
    pod_affinity_term: PodAffinityTerm


class PodAffinity(Wire, frozen=True, kw_only=True):
    """Required and preferred pod affinity or anti-affinity."""

    required: tuple[PodAffinityTerm, ...] = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=()
    )
    preferred: tuple[WeightedPodAffinityTerm, ...] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class Affinity(Wire, frozen=True, kw_only=True):
    """All affinities of a pod."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(Wire, frozen=True, kw_only=True):
    """How evenly matching pods must spread over the domains of a topology key."""

    max_skew: int
    topology_key: str
    when_unsatisfiable: str
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: tuple[str, ...] = ()
