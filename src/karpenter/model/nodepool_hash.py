"""The hash that shows whether a NodeClaim still matches its pool's template (API-500 ff.).

Covered is what ends up on the node and cannot be compared field by field later: labels, annotations, taints, the node class
and the two lifetimes. Requirements are compared by meaning instead, and everything about disruption, limits and weight
concerns the pool, not its nodes. Two spellings of one thing hash alike: order of taints, ``60m`` and ``1h``, absent and empty.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import timedelta

from karpenter.api.karpenter import NodePool, NodePoolTaint
from karpenter.model import durations, labels

#: Bumped whenever the hash of an unchanged pool would change (API-506). Unlike any version of another implementation (API-505).
NODE_POOL_HASH_VERSION = "py1"

_HASH_BYTES = 8


def node_pool_hash(pool: NodePool) -> str:
    """Decimal text of a 64-bit hash over the template (API-503); the same in every process."""
    template = pool.spec.template
    spec = template.spec
    covered = {
        "labels": dict(template.metadata.labels),
        "annotations": dict(template.metadata.annotations),
        "taints": _canonical_taints(spec.taints),
        "startupTaints": _canonical_taints(spec.startup_taints),
        "nodeClassRef": [spec.node_class_ref.group, spec.node_class_ref.kind, spec.node_class_ref.name],
        "terminationGracePeriod": _canonical_duration(spec.termination_grace_period),
        "expireAfter": _canonical_duration(spec.expire_after),
    }
    present = {name: value for name, value in covered.items() if value not in ({}, [], None, "")}
    canonical = json.dumps(present, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.sha256(canonical.encode()).digest()
    return str(int.from_bytes(digest[:_HASH_BYTES], "big"))


def hash_annotations(pool: NodePool) -> dict[str, str]:
    """The hash annotations that a pool, and every claim created from it, carries (API-500)."""
    return {labels.NODE_POOL_HASH: node_pool_hash(pool), labels.NODE_POOL_HASH_VERSION: NODE_POOL_HASH_VERSION}


def _canonical_taints(taints: Iterable[NodePoolTaint]) -> list[list[str]]:
    """The set of taints, sorted. The time a taint was added does not matter."""
    return [list(taint_key) for taint_key in sorted({(taint.key, taint.value or "", taint.effect) for taint in taints})]


def _canonical_duration(text: str | None) -> int | str | None:
    """Microseconds; ``Never`` and what cannot be read stand for themselves."""
    if not text or text == durations.NEVER:
        return text
    try:
        return durations.parse_duration(text) // timedelta(microseconds=1)
    except durations.DurationError:
        return text
