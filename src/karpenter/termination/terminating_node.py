"""A Node under termination: its state during one pass, and the changes of the Node object that start it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from karpenter.api.core import Node, Pod
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import POD
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import KubeError
from karpenter.model import labels, taints
from karpenter.model.clock import parse_annotation_time
from karpenter.providers.contract import ProviderError
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft

#: Poll interval of a terminating node (DIS-038).
DRAIN_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class StepBlocked:
    """The result of a step that has to wait: requeue delay, blockers, and the provider error if there was one."""

    requeue_after_seconds: float
    blockers: Sequence[str]
    error: ProviderError | None = None


@dataclass
class TerminatingNode:
    """A terminating Node during one pass. Without a claim there are no conditions, no deadline and no instance (DIS-511)."""

    node: Node
    claim: NodeClaim | None
    now: datetime
    deadline: datetime | None = None
    #: Text of a deadline annotation that cannot be parsed.
    invalid_deadline: str = ""
    draft: NodeClaimDraft | None = field(init=False)

    def __post_init__(self) -> None:
        self.draft = NodeClaimDraft(self.claim, self.now) if self.claim is not None else None
        text = self.claim.metadata.annotations.get(labels.TERMINATION_TIMESTAMP, "") if self.claim is not None else ""
        self.deadline = parse_annotation_time(text)
        self.invalid_deadline = text if self.deadline is None else ""

    @property
    def name(self) -> str:
        """Name of the Node."""
        return self.node.metadata.name

    def is_past_deadline(self) -> bool:
        """Whether the termination grace period has ended."""
        return self.deadline is not None and self.now > self.deadline

    def is_true(self, condition_type: str) -> bool:
        """Whether a condition of the claim is True."""
        return self.draft is not None and self.draft.is_true(condition_type)

    def set_condition(self, condition_type: str, status: str, reason: str = "", message: str = "") -> None:
        """Set a condition of the claim, if there is one."""
        if self.draft is not None:
            self.draft.set_condition(condition_type, status, reason, message)


def cordoned_node(node: Node) -> Node:
    """The Node with the disruption taint and excluded from load balancers (DIS-514)."""
    other_taints = tuple(taint for taint in node.spec.taints if taint.key != labels.DISRUPTED_TAINT.key)
    node_labels = {**node.metadata.labels, labels.EXCLUDE_FROM_LOAD_BALANCERS: "karpenter"}
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(node.metadata, labels=node_labels),
        spec=msgspec.structs.replace(node.spec, taints=(*other_taints, labels.DISRUPTED_TAINT)),
    )


def tainted_node(node: Node) -> Node:
    """The Node with the disruption taint, unless it has one already."""
    if any(taints.is_same_taint(taint, labels.DISRUPTED_TAINT) for taint in node.spec.taints):
        return node
    return msgspec.structs.replace(
        node, spec=msgspec.structs.replace(node.spec, taints=(*node.spec.taints, labels.DISRUPTED_TAINT))
    )


async def pods_on_node(context: ControllerContext, node_name: str) -> tuple[Pod, ...]:
    """Pods bound to a node, listed from the API server because the informer may lag behind.

    Raises ``KubeError``, also when a pod cannot be decoded: an undecodable pod must not count as absent.
    """
    listing = await context.kube.list(POD, field_selector=f"spec.nodeName={node_name}")
    if listing.undecodable:
        raise KubeError(f"a pod on node {node_name} cannot be read: {listing.undecodable[0].error}")
    return listing.items
