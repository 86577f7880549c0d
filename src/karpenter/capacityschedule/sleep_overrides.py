"""Annotations that overrule schedules: on NodePools, on namespaces, and on pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from karpenter.api.core import Pod
from karpenter.api.karpenter import NodePool
from karpenter.capacityschedule.sleep_decision import SleepOverrides
from karpenter.model import labels
from karpenter.model.clock import parse_annotation_time


def sleep_overrides(
    pools: Iterable[NodePool], pods: Iterable[tuple[Pod, str]], namespaces: Mapping[str, str]
) -> SleepOverrides:
    """What annotations ask for.

    ``pods``: pods with their NodePool, empty for pods without a node: those keep every NodePool awake, as each may be the one
    they need. ``namespaces``: the annotation ``karpenter.sh/keep-awake-until`` of namespaces that have it, by name. An
    annotation that is no RFC 3339 time counts as absent.
    """
    names = [pool.metadata.name for pool in pools if pool.spec.replicas is None]
    awake: dict[str, datetime] = {}
    asleep: dict[str, datetime] = {}
    for pool in pools:
        _extend(awake, [pool.metadata.name], pool.metadata.annotations.get(labels.KEEP_AWAKE_UNTIL, ""))
        _extend(asleep, [pool.metadata.name], pool.metadata.annotations.get(labels.ASLEEP_UNTIL, ""))
    for pod, pool_name in pods:
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
