"""Debug lines about Nodes that begin and cease to match repair policies (K15-501).

The decision evaluates matches itself. These lines announce in advance that a policy will act, and when.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import structlog

from karpenter.api.core import Node
from karpenter.kube.informer import ChangeHandler
from karpenter.model import labels
from karpenter.model.clock import rfc3339
from karpenter.model.repair_policies import PolicyMatch, RepairPolicies

_log = structlog.get_logger()


class RepairMatchLog:
    """Follows Nodes and logs what changes."""

    def __init__(self, policies: RepairPolicies) -> None:
        self._policies = policies
        self._matches: dict[str, frozenset[PolicyMatch]] = {}

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """A Node was added, changed or removed. Nodes without a NodePool are never repaired."""
        node = new or old
        assert node is not None
        name = node.metadata.name
        before = self._matches.pop(name, frozenset())
        if new is None or labels.NODE_POOL not in new.metadata.labels:
            return
        # The message of a condition may change with every report, which changes nothing about the match.
        matches = frozenset(
            replace(match, condition=msgspec.structs.replace(match.condition, message=""))
            for match in self._policies.matches(new)
        )
        if matches:
            self._matches[name] = matches
        for match in sorted(matches - before, key=lambda match: match.governing_order):
            _log.debug("matched repair policy", Node={"name": name}, **match_fields(match))
        if before and not matches:
            _log.debug("no longer matches any repair policy", Node={"name": name})


def match_log_handlers(policies: RepairPolicies | None) -> tuple[ChangeHandler[Node], ...]:
    """The handler of Nodes; none where nothing is repaired."""
    return () if policies is None else (RepairMatchLog(policies).on_node,)


def match_fields(match: PolicyMatch) -> dict[str, object]:
    """A match as the fields of a log line (K15-500)."""
    condition, policy = match.condition, match.policy
    return {
        "condition": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "reason-regex": policy.reason_pattern,
        "fallback": not policy.reason_pattern,
        "action": policy.action.value,
        "eligible-at": rfc3339(match.eligible_at),
    }
