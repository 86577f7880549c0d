"""The nodes a DaemonSet runs on, and its pods there."""

from __future__ import annotations

import msgspec

from karpenter.api.apps import DaemonSet
from karpenter.api.core import Node, Pod, PodSpec, PodTemplateSpec
from karpenter.api.scheduling_constraints import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Toleration,
)
from karpenter.model import taints
from karpenter.simulation.scheduler_node_info import matches_node

#: Taints that every DaemonSet pod tolerates: (key suffix, effect).
_DAEMON_TAINTS = (
    ("not-ready", "NoExecute"),
    ("unreachable", "NoExecute"),
    ("disk-pressure", "NoSchedule"),
    ("memory-pressure", "NoSchedule"),
    ("pid-pressure", "NoSchedule"),
    ("unschedulable", "NoSchedule"),
)
_DAEMON_TOLERATIONS = tuple(
    Toleration(key=f"node.kubernetes.io/{name}", operator="Exists", effect=effect) for name, effect in _DAEMON_TAINTS
)
_NAME_FIELD = "metadata.name"


def is_same_for_daemon_sets(before: Node, after: Node) -> bool:
    """Whether nothing that DaemonSets depend on has changed."""
    return before.metadata.labels == after.metadata.labels and before.spec == after.spec


def should_run_on(daemon_set: DaemonSet, node: Node) -> bool:
    """Whether the DaemonSet needs a pod on this node: selector and affinity match, and no taint blocks it."""
    return _may_run(daemon_set.spec.template.spec, node, frozenset({"NoSchedule", "NoExecute"}))


def should_continue_on(daemon_set: DaemonSet, node: Node) -> bool:
    """Whether an existing pod may stay: a NoSchedule taint does not evict it."""
    return _may_run(daemon_set.spec.template.spec, node, frozenset({"NoExecute"}))


def _may_run(spec: PodSpec, node: Node, effects: frozenset[str]) -> bool:
    blocking = taints.untolerated(node.spec.taints, (*spec.tolerations, *_DAEMON_TOLERATIONS))
    return matches_node(spec, node) and not any(taint.effect in effects for taint in blocking)


def template_for(daemon_set: DaemonSet, node: str) -> PodTemplateSpec:
    """The template with the node written into its affinity; the scheduler then binds the pod."""
    template = daemon_set.spec.template
    spec = template.spec
    affinity = spec.affinity or Affinity()
    preferred = affinity.node_affinity.preferred if affinity.node_affinity is not None else ()
    field = NodeSelectorRequirement(key=_NAME_FIELD, operator="In", values=(node,))
    required = NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(field,)),))
    pinned = msgspec.structs.replace(affinity, node_affinity=NodeAffinity(required=required, preferred=preferred))
    tolerations = (*spec.tolerations, *(each for each in _DAEMON_TOLERATIONS if each not in spec.tolerations))
    return msgspec.structs.replace(
        template, spec=msgspec.structs.replace(spec, affinity=pinned, tolerations=tolerations)
    )


def intended_node(pod: Pod) -> str:
    """The node a DaemonSet pod was made for; empty if it names none."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    terms = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()
    for term in terms:
        for field in term.match_fields:
            if field.key == _NAME_FIELD and len(field.values) == 1:
                return field.values[0]
    return pod.spec.node_name
