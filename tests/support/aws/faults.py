"""Faults that tests inject, before a call is executed or after (AWS-756, AWS-972)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from moto.core.utils import get_service_model

from support.aws.moto_backend import ACCOUNT
from support.aws.wire import Call, Refusal

#: AWS's texts for the reason of a denial, by short name.
REASONS = {
    "none": "because no identity-based policy allows the {action} action",
    "boundary": "with an explicit deny in a permissions boundary",
    "scp": "with an explicit deny in a service control policy",
}
_USER = f"arn:aws:sts::{ACCOUNT}:assumed-role/controller/session"
#: Refill a second and burst of the request buckets (AWS-756); the first that matches applies.
_BUDGETS = (
    ("CreateFleet", "launch", 2.0, 5.0),
    ("RunInstances", "launch", 2.0, 5.0),
    ("TerminateInstances", "terminate", 5.0, 100.0),
    ("CreateTags", "tags", 10.0, 100.0),
    ("Describe*", "describe", 20.0, 100.0),
    ("Get*", "describe", 20.0, 100.0),
    ("*", "mutate", 5.0, 50.0),
)


@dataclass
class FailingCalls:
    """Calls that fail with a code: ``times`` calls after ``skip`` calls. ``operation`` is a pattern."""

    operation: str
    code: str
    message: str
    status: int = 400
    times: float = 1
    skip: int = 0


@dataclass
class _Bucket:
    left: float
    at: float


class ConnectionLost(Exception):
    """The connection breaks before an answer is sent."""


@dataclass
class Faults:
    """All injected faults; initially none. ``now`` is seconds since the epoch."""

    now: Callable[[], float]
    denied: dict[tuple[str, str], str] = field(default_factory=dict)
    failing: list[FailingCalls] = field(default_factory=list)
    latency: dict[str, float] = field(default_factory=dict)
    limited: bool = False
    expired: bool = False
    _lost_answers: dict[str, list[int]] = field(default_factory=dict)
    _lost_requests: dict[str, list[int]] = field(default_factory=dict)
    _throttled_until: float = -math.inf
    _throttled_calls: int = 0
    _buckets: dict[str, _Bucket] = field(default_factory=dict)

    def reset(self) -> None:
        """Remove all faults."""
        for several in (self.denied, self.latency, self._lost_answers, self._lost_requests, self._buckets):
            several.clear()
        self.failing.clear()
        self.limited = self.expired = False
        self._throttled_until = -math.inf

    def throttle(self, seconds: float) -> None:
        """Throttle every other call for a time."""
        self._throttled_until, self._throttled_calls = self.now() + seconds, 0

    def lose_answer(self, operation: str, nth: int) -> None:
        """The ``nth`` call from now is executed, and its answer is lost."""
        self._lost_answers.setdefault(operation, []).append(nth)

    def lose_request(self, operation: str, nth: int) -> None:
        """The connection of the ``nth`` call from now breaks before the call is executed."""
        self._lost_requests.setdefault(operation, []).append(nth)

    def delay(self, operation: str) -> float:
        """Seconds by which a call is delayed."""
        return self.latency.get(operation, self.latency.get("*", 0.0))

    def is_answer_lost(self, operation: str) -> bool:
        """Whether the answer to this call is lost. Counts the call."""
        return _counts_down(self._lost_answers, operation)

    def check(self, call: Call) -> None:
        """Raises ``Refusal`` or ``ConnectionLost`` for a call that must not be executed."""
        if _counts_down(self._lost_requests, call.operation):
            raise ConnectionLost
        if self.expired:
            raise Refusal(*_of_service(call.service, "expired"))
        if self._is_throttled(call):
            raise Refusal(*_of_service(call.service, "throttled"))
        for element in self.failing:
            if fnmatchcase(call.operation, element.operation) and element.times > 0:
                if element.skip > 0:
                    element.skip -= 1
                    continue
                element.times -= 1
                raise Refusal(element.code, element.message, element.status)
        self.check_allowed(call.action)

    def check_allowed(self, action: str, resource: str = "*") -> None:
        """Whether the policy allows an action such as ``ec2:RunInstances`` on a kind of resource. Raises ``Refusal``."""
        reason = self.denied.get((action, resource))
        if reason is None:
            return
        service, _, _ = action.partition(":")
        because = REASONS[reason].format(action=action)
        shown = "*" if resource == "*" else f"arn:aws:{service}:us-west-2:{ACCOUNT}:{resource}/*"
        message = f"User: {_USER} is not authorized to perform: {action} on resource: {shown} {because}"
        code, status = _of_service(service, "denied")[::2]
        if service == "ec2":
            message = f"You are not authorized to perform this operation. {message}"
        raise Refusal(code, message, status)

    def _is_throttled(self, call: Call) -> bool:
        if self.now() < self._throttled_until:
            self._throttled_calls += 1
            if self._throttled_calls % 2:
                return True
        return self.limited and call.service == "ec2" and not self._has_budget(call.operation)

    def _has_budget(self, operation: str) -> bool:
        _, name, refill, burst = next(budget for budget in _BUDGETS if fnmatchcase(operation, budget[0]))
        bucket = self._buckets.setdefault(name, _Bucket(burst, self.now()))
        bucket.left = min(burst, bucket.left + (self.now() - bucket.at) * refill)
        bucket.at = self.now()
        if bucket.left < 1:
            return False
        bucket.left -= 1
        return True


def _counts_down(waiting: dict[str, list[int]], operation: str) -> bool:
    left = [nth - 1 for nth in waiting.get(operation, ())]
    if left:
        waiting[operation] = [nth for nth in left if nth > 0]
    return 0 in left


def _of_service(service: str, kind: str) -> tuple[str, str, int]:
    """Code, message and status of a refusal in the words of a service's protocol."""
    protocol = str(get_service_model(service).protocol)
    said = {
        "throttled": {
            "ec2": ("RequestLimitExceeded", "Request limit exceeded.", 503),
            "query": ("Throttling", "Rate exceeded", 400),
            "json": ("ThrottlingException", "Rate exceeded", 400),
        },
        "expired": {
            "ec2": ("RequestExpired", "Request has expired.", 400),
            "query": ("ExpiredToken", "The security token included in the request is expired", 403),
            "json": ("ExpiredTokenException", "The security token included in the request is expired", 400),
        },
        "denied": {
            "ec2": ("UnauthorizedOperation", "", 403),
            "query": ("AccessDenied", "", 403),
            "json": ("AccessDeniedException", "", 400),
        },
    }
    return said[kind].get(protocol, said[kind]["json"])
