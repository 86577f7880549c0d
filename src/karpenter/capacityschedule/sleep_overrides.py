"""Annotations that overrule schedules: on NodePools, on namespaces, and on pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from karpenter.api.core import Namespace, Node, Pod
from karpenter.api.karpenter import NodePool
from karpenter.capacityschedule.sleep_decision import SleepOverrides
from karpenter.model import labels, pods
from karpenter.model.clock import parse_annotation_time


def listed_overrides(
    pools: Sequence[NodePool], listed_pods: Iterable[Pod], nodes: Iterable[Node], namespaces: Iterable[Namespace]
) -> SleepOverrides:
    """What the annotations of a cluster's objects ask for, as they are listed; finished pods do not count."""
    kept = kept_awake_namespaces(namespaces)
    pool_of = {node.metadata.name: node.metadata.labels.get(labels.NODE_POOL, "") for node in nodes}
    annotated = (
        (pod, pool_of.get(pod.spec.node_name, ""))
        for pod in listed_pods
        if (labels.KEEP_AWAKE_UNTIL in pod.metadata.annotations or pod.metadata.namespace in kept)
        and not pods.is_finished(pod)
    )
    return sleep_overrides(pools, annotated, kept)


def kept_awake_namespaces(namespaces: Iterable[Namespace]) -> dict[str, str]:
    """The annotation ``karpenter.sh/keep-awake-until`` of namespaces that have it, by name."""
    return {
        namespace.metadata.name: text
        for namespace in namespaces
        if (text := namespace.metadata.annotations.get(labels.KEEP_AWAKE_UNTIL))
    }


def sleep_overrides(
    pools: Iterable[NodePool], pods_by_pool: Iterable[tuple[Pod, str]], namespaces: Mapping[str, str]
) -> SleepOverrides:
    """What annotations ask for.

    ``pods_by_pool``: pods with the NodePool of their node, empty without one. A pod without a node keeps every NodePool awake, as
    each may be the one that it needs; a pod on a node without a NodePool keeps none. ``namespaces``: as of
    ``kept_awake_namespaces``. An annotation that is no RFC 3339 time counts as absent.
    """
    names = [pool.metadata.name for pool in pools if pool.spec.replicas is None]
    awake: dict[str, datetime] = {}
    asleep: dict[str, datetime] = {}
    for pool in pools:
        _extend(awake, [pool.metadata.name], pool.metadata.annotations.get(labels.KEEP_AWAKE_UNTIL, ""))
        _extend(asleep, [pool.metadata.name], pool.metadata.annotations.get(labels.ASLEEP_UNTIL, ""))
    for pod, pool_name in pods_by_pool:
        if pod.spec.node_name and not pool_name:
            continue
        for text in (
            pod.metadata.annotations.get(labels.KEEP_AWAKE_UNTIL, ""),
            namespaces.get(pod.metadata.namespace, ""),
        ):
            _extend(awake, [pool_name] if pool_name else names, text)
    return SleepOverrides(awake, asleep)


def _extend(moments: dict[str, datetime], names: Iterable[str], text: str) -> None:
    moment = parse_annotation_time(text) if text else None
    if moment is not None:
        for name in names:
            moments[name] = max(moments.get(name, moment), moment).astimezone(UTC)
