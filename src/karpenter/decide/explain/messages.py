"""Sentences for reasons. Users alert on these texts, so the known ones are kept as prefixes (SCH-334, SCH §33)."""

from __future__ import annotations

import json
from collections.abc import Iterable

from karpenter.decide.plan import SkippedPool
from karpenter.decide.reasons import Category, Reason, Skip
from karpenter.model import resources as res
from karpenter.model import taints
from karpenter.model.requirements import Incompatibility, Undefined
from karpenter.model.resources import Resources

_NO = "no instance type"
_ROWS = {
    Category.TYPES_NOTHING: f"{_NO} met the scheduling requirements or had enough resources or had a required offering",
    Category.TYPES_REQUIREMENTS_RESOURCES: f"{_NO} met the scheduling requirements or had enough resources",
    Category.TYPES_REQUIREMENTS_OFFERING: f"{_NO} met the scheduling requirements or had a required offering",
    Category.TYPES_RESOURCES_OFFERING: f"{_NO} had enough resources or had a required offering",
    Category.TYPES_REQUIREMENTS: f"{_NO} met all requirements",
    Category.TYPES_RESOURCES: f"{_NO} has enough resources",
    Category.TYPES_OFFERING: f"{_NO} has the required offering",
    Category.TYPES_NOT_ALL_OFFERING: (
        f"{_NO} which met the scheduling requirements and had enough resources, had a required offering"
    ),
    Category.TYPES_NOT_ALL_REQUIREMENTS: (
        f"{_NO} which had enough resources and the required offering met the scheduling requirements"
    ),
    Category.TYPES_NOT_ALL_RESOURCES: (
        f"{_NO} which met the scheduling requirements and the required offering had the required resources"
    ),
    Category.TYPES_NEVER_TOGETHER: f"{_NO} met the requirements/resources/offering tuple",
    Category.MIN_VALUES: "minValues requirement is not met for label(s)",
}
_FILTERED = "NodePool requirements filtered out all compatible available instance types"
_SKIPS = {
    Skip.STATIC: "NodePool is static and full: pods bring it no nodes beyond spec.replicas",
    Skip.DELETING: "NodePool is being deleted",
    Skip.NOT_READY: "NodePool is not ready",
    Skip.UNRESOLVED: "instance types could not be resolved",
    Skip.NO_TYPES: "no resolved instance types found",
    Skip.FILTERED: _FILTERED,
    Skip.FILTERED_MIN_VALUES: f"{_FILTERED} due to minValues incompatibility",
}
#: From this many cores on a request is probably meant in millicores (SCH-334 row 7).
_SUSPICIOUS_CPU = 1_000_000 * res.ONE


def message(reason: Reason) -> str:
    """One sentence for one reason."""
    if reason.category in _ROWS:
        return _types(reason)
    if reason.category is Category.TAINT:
        return "; ".join(f"did not tolerate taint (taint={taints.text(taint)})" for taint in reason.taints)
    if reason.category is Category.REQUIREMENTS:
        return "incompatible requirements, " + "; ".join(_incompatible(item) for item in reason.incompatible)
    if reason.category is Category.LIMITS:
        return f"{reason.detail} (NodePool={reason.node_pool})"
    if reason.category is Category.NO_POOL:
        return f"no dynamic nodepools found ({_skip(reason)})" if reason.skip else "no dynamic nodepools found"
    return _skip(reason) if reason.category is Category.SKIPPED_POOL else reason.detail


def skip_message(skipped: SkippedPool) -> str:
    """Why a NodePool took no part (SCH-653)."""
    return _with_detail(_SKIPS[skipped.reason], skipped.detail)


def _skip(reason: Reason) -> str:
    return _with_detail(_SKIPS[reason.skip], reason.detail) if reason.skip else reason.detail


def _with_detail(text: str, detail: str) -> str:
    return f"{text}: {detail}" if detail else text


def pod_message(reasons: Iterable[Reason]) -> str:
    """All reasons of a pod in one text, each headed by the pool it concerns, equal ones said once (SCH-312 Beyond)."""
    by_text: dict[str, list[str]] = {}
    for reason in reasons:
        by_text.setdefault(message(reason), []).append(reason.node_pool)
    parts = []
    for text, pools in by_text.items():
        named = [pool for pool in pools if pool]
        parts.append(f"{text}" if not named else f"nodepool {', '.join(named)}: {text}")
    return "; ".join(parts)


def _types(reason: Reason) -> str:
    short = f" (label(s)=[{' '.join(reason.min_values)}])" if reason.min_values else ""
    text = f"{_ROWS[reason.category]}{short}, requirements={reason.requirements}, resources={_resources(reason)}"
    if reason.category is Category.TYPES_RESOURCES and reason.requests.get(res.CPU, 0) >= _SUSPICIOUS_CPU:
        text += " (CPU request >= 1 Million, m vs M typo?)"
    return text


def _resources(reason: Reason) -> str:
    """The pod's requests with the least and the most DaemonSets add (SCH-335)."""
    least = _json(res.add(reason.requests, reason.least_daemon_requests))
    most = _json(res.add(reason.requests, reason.most_daemon_requests))
    return least if least == most else f"min={least}, max={most}"


def _json(resources: Resources) -> str:
    return json.dumps(res.to_wire(resources), separators=(",", ":"), sort_keys=True)


def _incompatible(item: Incompatibility) -> str:
    if isinstance(item, Undefined):
        hint = f' (typo of "{item.meant}"?)' if item.meant else ""
        return f'label "{item.asked.key}" does not have known values{hint}'
    return f"key {item.asked.key}, {item.asked} not in {item.offered}"
