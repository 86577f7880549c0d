"""Annotations that overrule schedules: on NodePools, on namespaces, and on pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from karpenter.api.core import Namespace, Node, Pod
from karpenter.api.karpenter import NodePool
from karpenter.capacityschedule.sleep_decision import SleepOverrides
from karpenter.model import labels, pods
from karpenter.model.clock import parse_annotation_time


@dataclass(frozen=True)
class AnnotatedObjects:
    """The objects of a cluster whose annotations overrule schedules, as they are listed."""

    pools: Sequence[NodePool]
    pods: Iterable[Pod]
    nodes: Iterable[Node]
    namespaces: Iterable[Namespace]


def listed_overrides(listed: AnnotatedObjects) -> SleepOverrides:
    """What the annotations of listed objects ask for; finished pods do not count."""
    namespaces = kept_awake_namespaces(listed.namespaces)
    pool_of = {node.metadata.name: node.metadata.labels.get(labels.NODE_POOL, "") for node in listed.nodes}
    pods_by_pool = (
        (pod, pool_of.get(pod.spec.node_name, ""))
        for pod in kept_awake_pods(listed.pods, namespaces)
        if not pods.is_finished(pod)
    )
    return sleep_overrides(listed.pools, pods_by_pool, namespaces)


def kept_awake_namespaces(namespaces: Iterable[Namespace]) -> dict[str, str]:
    """The annotation ``karpenter.sh/keep-awake-until`` of namespaces that have it, by name."""
    return {
        namespace.metadata.name: text
        for namespace in namespaces
        if (text := namespace.metadata.annotations.get(labels.KEEP_AWAKE_UNTIL))
    }


def kept_awake_pods(listed: Iterable[Pod], namespaces: Mapping[str, str]) -> Iterator[Pod]:
    """The pods that ask for it themselves or by their namespace. ``namespaces``: as of ``kept_awake_namespaces``."""
    return (
        pod
        for pod in listed
        if labels.KEEP_AWAKE_UNTIL in pod.metadata.annotations or pod.metadata.namespace in namespaces
    )


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
