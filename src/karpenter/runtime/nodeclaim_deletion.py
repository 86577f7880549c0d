"""Counting what happens to claims, with the labels every such series carries (OPS-411 to OPS-421)."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Protocol

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import NotFound
from karpenter.kube.protocol import Kube
from karpenter.metrics import Metrics
from karpenter.model import durations, labels, pods
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft
from karpenter.state import ClusterState

_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def snake_case(text: str) -> str:
    """``WhenEmptyOrUnderutilized`` as ``when_empty_or_underutilized`` (OPS-405)."""
    return _WORD_BOUNDARY.sub("_", text).lower()


def termination_mode(claim: NodeClaim) -> str:
    """How its pods will be treated: ``graceful``, ``eventual`` or ``forceful`` (OPS-421, DIS-552)."""
    text = claim.spec.termination_grace_period
    period = durations.parse_duration_or_never(text) if text else None
    if period is None:
        return "graceful"
    return "eventual" if period > timedelta(0) else "forceful"


class DisruptionMetrics(Protocol):
    """Where disruptions are counted: the process's metrics and cluster state."""

    @property
    def metrics(self) -> Metrics:
        """The series."""

    @property
    def state(self) -> ClusterState:
        """The pods of each Node."""


class DeletionContext(DisruptionMetrics, Protocol):
    """Where a claim is deleted and its disruption counted."""

    @property
    def kube(self) -> Kube:
        """The API server."""


def count_disrupted(context: DisruptionMetrics, claim: NodeClaim, reason: str, consolidation_policy: str = "") -> None:
    """This process began the end of a claim, for a reason in snake case; its pods that must move are counted as well.

    ``consolidation_policy`` is the pool's, given only where consolidation is the reason.
    """
    described = {
        "reason": reason,
        "nodepool": claim.metadata.labels.get(labels.NODE_POOL, ""),
        "capacity_type": claim.metadata.labels.get(labels.CAPACITY_TYPE, ""),
        "consolidation_policy": snake_case(consolidation_policy),
        "termination_mode": termination_mode(claim),
    }
    context.metrics.nodeclaims_disrupted_total.labels(**described).inc()
    moving = sum(pods.is_reschedulable(pod) for pod in context.state.pods_on(claim.status.node_name))
    if moving:
        context.metrics.pods_disruption_initiated_total.labels(**described).inc(moving)


def count_unhealthy(context: DisruptionMetrics, claim: NodeClaim, condition_type: str, mode: str) -> None:
    """Count a NodeClaim whose node is repaired because of a condition; ``mode`` is how its pods are treated."""
    claim_labels = claim.metadata.labels
    context.metrics.nodeclaims_unhealthy_disrupted_total.labels(
        condition=snake_case(condition_type),
        nodepool=claim_labels.get(labels.NODE_POOL, ""),
        capacity_type=claim_labels.get(labels.CAPACITY_TYPE, ""),
        image_id=claim.status.image_id,
        termination_mode=mode,
    ).inc()


async def delete_claim(draft: NodeClaimDraft, context: DeletionContext, reason: str) -> bool:
    """Delete the claim for a reason of OPS-421; whether it was there. Nothing else of the draft is written.

    Raises ``KubeError``.
    """
    draft.is_deleted = True
    try:
        await context.kube.delete(NODE_CLAIM, draft.name, uid=draft.claim.metadata.uid)
    except NotFound:
        return False
    draft.was_deleted_here = True
    count_disrupted(context, draft.claim, reason)
    return True
