"""Labels that pods and NodePools ask for, that nothing defines, and that look like a well-known label."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from functools import cache

from karpenter.api.core import Node, PodSpec
from karpenter.api.karpenter import NodePool
from karpenter.api.scheduling_constraints import NodeSelectorTerm, PodAffinityTerm
from karpenter.cli.cluster_objects import ClusterObjects, PlanObject
from karpenter.model import labels
from karpenter.model.pod_templates import PodCarrier, pod_spec_of, pod_spec_path
from karpenter.model.structural_schema import child_path

#: Labels of older releases.
_RENAMED = {"karpenter.sh/provisioner-name": labels.NODE_POOL}
_MIN_SIMILARITY = 0.8
_MIN_DOMAIN_SIMILARITY = 0.5
_KNOWN = labels.WELL_KNOWN | {labels.HOSTNAME}


def asked_labels(obj: PlanObject) -> Iterator[tuple[str, str]]:
    """Path and key of each label that a pod, a workload's template or a NodePool asks of nodes."""
    if isinstance(obj, NodePool):
        for index, requirement in enumerate(obj.spec.template.spec.requirements):
            yield f"spec.template.spec.requirements[{index}].key", requirement.key
    elif isinstance(obj, PodCarrier):
        yield from _pod_labels(pod_spec_of(obj), ".".join(pod_spec_path(type(obj))))


def _pod_labels(spec: PodSpec, path: str) -> Iterator[tuple[str, str]]:
    for key in spec.node_selector:
        yield child_path(f"{path}.nodeSelector", key), key
    for index, constraint in enumerate(spec.topology_spread_constraints):
        yield f"{path}.topologySpreadConstraints[{index}].topologyKey", constraint.topology_key
    if spec.affinity is None:
        return
    if spec.affinity.node_affinity is not None:
        for term in _node_terms(spec):
            for expression in term.match_expressions:
                yield f"{path}.affinity.nodeAffinity", expression.key
    for affinity_term in _pod_terms(spec):
        yield f"{path}.affinity", affinity_term.topology_key


def _node_terms(spec: PodSpec) -> Iterator[NodeSelectorTerm]:
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    if affinity is not None:
        yield from affinity.required.node_selector_terms if affinity.required is not None else ()
        yield from (weighted.preference for weighted in affinity.preferred)


def _pod_terms(spec: PodSpec) -> Iterator[PodAffinityTerm]:
    affinity = spec.affinity
    for pod_affinity in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else ():
        if pod_affinity is not None:
            yield from pod_affinity.required
            yield from (weighted.pod_affinity_term for weighted in pod_affinity.preferred)


def defined_labels(objects: ClusterObjects) -> frozenset[str]:
    """Labels that NodePools or nodes of the input define."""
    return frozenset((*_node_labels(objects.nodes), *_pool_labels(objects.pools)))


def _node_labels(nodes: Iterable[Node]) -> Iterator[str]:
    for node in nodes:
        yield from node.metadata.labels


def _pool_labels(pools: Iterable[NodePool]) -> Iterator[str]:
    for pool in pools:
        yield from pool.spec.template.metadata.labels


@cache
def similar_label(key: str) -> str:
    """The well-known label that was probably meant; empty where the key is one, or looks like none."""
    if not key or key in _KNOWN or key in labels.LABEL_ALIASES:
        return ""
    if key in _RENAMED:
        return _RENAMED[key]
    domain, _, name = key.rpartition("/")
    same_name = [well_known for well_known in sorted(_KNOWN) if well_known.rpartition("/")[2] == name]
    candidates = (
        same_name
        if not domain
        else [well_known for well_known in same_name if _is_like(domain, well_known.rpartition("/")[0])]
    )
    near = difflib.get_close_matches(key, candidates or _KNOWN, n=1, cutoff=0.0 if candidates else _MIN_SIMILARITY)
    return near[0] if near else ""


def _is_like(domain: str, well_known: str) -> bool:
    return difflib.SequenceMatcher(None, domain, well_known).ratio() >= _MIN_DOMAIN_SIMILARITY
