"""Node repair policies: which conditions of a Node mean that it is broken, what is done about it, and when (K15-203 to K15-221).

A policy names a condition and, by a regular expression, its reasons. The one policy without an expression is the fallback for
reasons that no policy knows. Several policies may be eligible at once; ``RepairPolicies.decision`` merges them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property

from karpenter.api.core import Node
from karpenter.api.meta import Condition
from karpenter.model import conditions
from karpenter.model.expected_error import ExpectedError

_STATUSES = (conditions.TRUE, conditions.FALSE, conditions.UNKNOWN)
_MAX_PRIORITY = 100
#: So long a wait weighs as much as one step of priority (K15-220).
_PRIORITY_STEP = timedelta(minutes=30)


#: How long after the start of the process no older condition of a Node is trusted: kubelets report every five minutes where
#: nothing changes, and a restored etcd shows conditions of the day of the backup until then.
SETTLING = timedelta(minutes=6)


def trusted_from(node: Node, changed_at: datetime | None, started_at: datetime) -> datetime:
    """From when a condition is trusted that changed at a moment: at once where it or its Node is younger than the process."""
    times = (node.metadata.creation_timestamp, changed_at)
    is_recent = any(at is not None and at >= started_at for at in times)
    return started_at if is_recent else started_at + SETTLING


class RepairAction(StrEnum):
    """What repairs a node."""

    REPLACE = "ReplaceNode"
    REBOOT = "RebootNode"


@dataclass(frozen=True)
class RepairPolicy:
    """A condition of a Node that marks it as broken once it has lasted ``toleration`` (K15-203).

    ``reason_pattern``: a regular expression that is searched in the condition's reason; empty for the fallback. ``drain_bound``:
    how long a drain may take at most, None for no bound of its own. ``priority``: 0 to 100, higher first.
    """

    condition_type: str
    condition_status: str
    toleration: timedelta
    reason_pattern: str = ""
    drain_bound: timedelta | None = None
    priority: int = 0
    action: RepairAction = RepairAction.REPLACE

    def covers(self, condition: Condition) -> bool:
        """Whether it is about this condition, whatever its reason (K15-215)."""
        return (condition.type, condition.status) == (self.condition_type, self.condition_status)

    def matches(self, condition: Condition) -> bool:
        """Whether it is about this condition and its reason; without a pattern about every reason (K15-270)."""
        return self.covers(condition) and re.search(self.reason_pattern, condition.reason) is not None


class InvalidRepairPolicies(ExpectedError):
    """A provider's repair policies cannot be used; the message names everything that is wrong (K15-204)."""


@dataclass(frozen=True)
class RepairDecision:
    """What is done about a Node, and why (K15-218 to K15-220).

    ``condition`` and ``policy`` govern it since ``eligible_at``. ``drain_bound``: None leaves the drain to the NodeClaim;
    ``drain_bound_condition`` is the type of the condition whose policy states it. ``score``: higher is more urgent.
    """

    condition: Condition
    policy: RepairPolicy
    eligible_at: datetime
    score: float
    drain_bound: timedelta | None = None
    drain_bound_condition: str = ""

    @property
    def action(self) -> RepairAction:
        """Replace or reboot."""
        return self.policy.action


@dataclass(frozen=True)
class PolicyMatch:
    """A policy that a condition matches, and since when it may act."""

    condition: Condition
    policy: RepairPolicy
    eligible_at: datetime

    @property
    def governing_order(self) -> tuple[int, datetime, str]:
        """Of several matches the first governs the decision (K15-218)."""
        return (-self.policy.priority, self.eligible_at, self.condition.type)


@dataclass(frozen=True)
class RepairPolicies:
    """A valid set of policies. Make one with ``repair_policies``."""

    policies: tuple[RepairPolicy, ...]

    def is_unhealthy(self, node: Node) -> bool:
        """Whether a condition of the Node is covered, for any duration and reason (K15-228)."""
        return any((condition.type, condition.status) in self._covered for condition in node.status.conditions)

    @cached_property
    def _covered(self) -> frozenset[tuple[str, str]]:
        return frozenset((policy.condition_type, policy.condition_status) for policy in self.policies)

    def decision(self, node: Node, now: datetime, rebooted_at: datetime | None = None) -> RepairDecision | None:
        """What is due for a Node now; None while nothing is. ``rebooted_at``: the end of its last reboot (K15-216)."""
        if not self.is_unhealthy(node):
            return None
        eligible = [match for match in self.matches(node, rebooted_at) if match.eligible_at <= now]
        if not eligible:
            return None
        action = _most_disruptive(match.policy.action for match in eligible)
        governing = min(
            (match for match in eligible if match.policy.action is action), key=lambda match: match.governing_order
        )
        bound = min(
            (
                (match.policy.drain_bound, match.eligible_at, match.condition.type)
                for match in eligible
                if match.policy.drain_bound is not None
            ),
            default=None,
        )
        return RepairDecision(
            governing.condition,
            governing.policy,
            governing.eligible_at,
            max(self._score(match, now) for match in eligible),
            bound[0] if bound is not None else None,
            bound[2] if bound is not None else "",
        )

    def next_eligible(self, node: Node, now: datetime, rebooted_at: datetime | None = None) -> datetime | None:
        """When the next policy becomes eligible for a Node; None if none is going to (K15-221)."""
        if not self.is_unhealthy(node):
            return None
        moments = (match.eligible_at for match in self.matches(node, rebooted_at))
        return min((moment for moment in moments if moment > now), default=None)

    def matches(self, node: Node, rebooted_at: datetime | None = None) -> Iterator[PolicyMatch]:
        """The policies that conditions of a Node match, and when each may act (K15-215, K15-216)."""
        created = node.metadata.creation_timestamp
        for condition in node.status.conditions:
            starts = [at for at in (condition.last_transition_time, created, rebooted_at) if at is not None]
            for policy in self._policies_for(condition) if starts else ():
                yield PolicyMatch(condition, policy, max(starts) + policy.toleration)

    def _policies_for(self, condition: Condition) -> tuple[RepairPolicy, ...]:
        """The specific policies that match a covered condition; the fallback where none does (K15-215, K15-217)."""
        if not any(policy.covers(condition) for policy in self.policies):
            return ()
        specific = tuple(policy for policy in self.policies if policy.reason_pattern and policy.matches(condition))
        return specific or tuple(policy for policy in self.policies if not policy.reason_pattern)

    def _score(self, match: PolicyMatch, now: datetime) -> float:
        """Rank of the priority among those of the whole set, plus the wait in steps (K15-220)."""
        ranks = sorted({policy.priority for policy in self.policies})
        return ranks.index(match.policy.priority) + (now - match.eligible_at) / _PRIORITY_STEP


def repair_policies(policies: Sequence[RepairPolicy]) -> RepairPolicies:
    """The policies of a provider as a set. Raises ``InvalidRepairPolicies`` with every error (K15-204)."""
    if not policies:
        raise InvalidRepairPolicies(
            "node repair requires the cloud provider to define RepairPolicies, but it defines none; "
            "--feature-gates=NodeRepair=false switches node repair off"
        )
    errors = [f"policy {number}: {error}" for number, policy in enumerate(policies) for error in _errors(policy)]
    fallbacks = [policy for policy in policies if not policy.reason_pattern]
    if len(fallbacks) != 1:
        errors.append(f"exactly one policy must have no reason pattern, {len(fallbacks)} have none")
    errors += [
        f"the policy without a reason pattern must have action {RepairAction.REPLACE}"
        for policy in fallbacks
        if policy.action is not RepairAction.REPLACE
    ]
    if errors:
        raise InvalidRepairPolicies(f"node repair requires valid RepairPolicies, {'; '.join(errors)}")
    return RepairPolicies(tuple(policies))


def _errors(policy: RepairPolicy) -> Iterator[str]:
    if not policy.condition_type:
        yield "the condition type is empty"
    if policy.condition_status not in _STATUSES:
        yield f"condition status {policy.condition_status!r} is none of {', '.join(_STATUSES)}"
    if policy.toleration < timedelta(0):
        yield "the toleration is negative"
    if policy.drain_bound is not None and policy.drain_bound < timedelta(0):
        yield "the drain bound is negative"
    if not 0 <= policy.priority <= _MAX_PRIORITY:
        yield f"priority {policy.priority} is not between 0 and {_MAX_PRIORITY}"
    try:
        re.compile(policy.reason_pattern)
    except re.error as error:
        yield f"reason pattern {policy.reason_pattern!r} is no regular expression: {error}"


def _most_disruptive(actions: Iterable[RepairAction]) -> RepairAction:
    return RepairAction.REPLACE if RepairAction.REPLACE in set(actions) else RepairAction.REBOOT
