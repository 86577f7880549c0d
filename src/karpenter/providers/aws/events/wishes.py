"""What the owner of a NodePool lets AWS's warnings do, and how a machine is marked for replacement (ours, AWS §14 Beyond).

Two warnings leave time: that a spot machine is at risk, and that maintenance comes in days. The first is only told, the second
ends the machine at once, unless the NodePool says otherwise in annotations::

    karpenter.k8s.aws/rebalance-recommendations: replace
    karpenter.k8s.aws/scheduled-changes: within-budgets

Then the NodeClaim is marked, and counts as drifted: its replacement is bought first, and disruption budgets are asked.
Maintenance that is a day away waits for nobody any more. The mark is an annotation, so it outlives this process, and people see
it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import NotFound
from karpenter.kube.protocol import JsonObject, Writer
from karpenter.model import labels
from karpenter.providers.aws.events.messages import Notice, NoticeKind

#: On a NodePool: what to do about spot machines at risk; ``replace``, anything else means nothing.
REBALANCE = f"{labels.AWS_GROUP}/rebalance-recommendations"
#: On a NodePool: what to do about maintenance to come; ``within-budgets``, anything else means at once.
SCHEDULED_CHANGES = f"{labels.AWS_GROUP}/scheduled-changes"
#: On a NodeClaim: what its machine is to be replaced for.
REPLACE_FOR = f"{labels.AWS_GROUP}/replace-for"

_REPLACE, _WITHIN_BUDGETS = "replace", "within-budgets"
#: So long before maintenance begins budgets are not asked any more.
LEAD = timedelta(hours=24)
#: What drift calls the marks.
_REASONS = {
    NoticeKind.REBALANCE: "RebalanceRecommended",
    NoticeKind.SCHEDULED_CHANGE: "ScheduledChange",
    NoticeKind.EVENT_STATUS: "ScheduledChange",
}


def is_replaced_within_budgets(notice: Notice, pool: NodePool | None, now: datetime) -> bool:
    """Whether the pool wants a machine the notice is about to be replaced like one that drifted."""
    if pool is None:
        return False
    wishes = pool.metadata.annotations
    if notice.kind is NoticeKind.REBALANCE:
        return wishes.get(REBALANCE) == _REPLACE
    if notice.kind not in _REASONS or wishes.get(SCHEDULED_CHANGES) != _WITHIN_BUDGETS:
        return False
    return notice.begins is not None and notice.begins - now > LEAD


async def mark_for_replacement(kube: Writer, claim: NodeClaim, kind: NoticeKind) -> None:
    """Mark a claim, unless it is. Raises ``KubeError``."""
    if REPLACE_FOR in claim.metadata.annotations:
        return
    patch: JsonObject = {"metadata": {"annotations": {REPLACE_FOR: _REASONS[kind]}}}
    try:
        await kube.patch(NODE_CLAIM, claim.metadata.name, patch)
    except NotFound:
        return


def replacement_reason(claim: NodeClaim) -> str:
    """Why a claim's machine counts as drifted though it is as its class wants it; empty where it does not."""
    return claim.metadata.annotations.get(REPLACE_FOR, "")
