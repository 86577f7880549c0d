"""Conditions of the termination steps that have to wait."""

from __future__ import annotations

from collections.abc import Sequence

from karpenter.model import conditions
from karpenter.runtime.backoff_schedules import MessageThrottle
from karpenter.termination import blockers
from karpenter.termination.terminating_node import TerminatingNode


class StepConditions:
    """Keeps the condition of a waiting step Unknown, with its blockers as the message, rewritten at most every ten seconds."""

    def __init__(self) -> None:
        self._message_throttle = MessageThrottle()

    def set_waiting(
        self, terminating: TerminatingNode, condition_type: str, reason: str, blocker_texts: Sequence[str]
    ) -> None:
        """Set the condition of a step that waits; without blockers the message is the reason."""
        if terminating.draft is None:
            return
        condition = terminating.draft.condition(condition_type)
        stored = condition.message if condition is not None and condition.status == conditions.UNKNOWN else ""
        message = self._message_throttle.text_to_write(
            _key(terminating.node.metadata.uid, condition_type),
            stored,
            blockers.join_blockers(blocker_texts) or reason,
            terminating.now,
        )
        terminating.set_condition(condition_type, conditions.UNKNOWN, reason, message)

    def forget(self, node_uid: str) -> None:
        """The Node is gone."""
        for condition_type in (conditions.DRAINED, conditions.VOLUMES_DETACHED):
            self._message_throttle.forget(_key(node_uid, condition_type))


def _key(node_uid: str, condition_type: str) -> str:
    return f"{node_uid}/{condition_type}"
