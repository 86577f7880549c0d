"""What goes wrong on purpose, before a call is carried out or after (AWS-756, AWS-972)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from moto.core.utils import get_service_model

from support.aws.moto_side import ACCOUNT
from support.aws.wire import Call, Refusal

#: Why a policy says no, in AWS's words, by short name.
REASONS = {
    "none": "because no identity-based policy allows the {action} action",
    "boundary": "with an explicit deny in a permissions boundary",
    "scp": "with an explicit deny in a service control policy",
}
_USER = f"arn:aws:sts::{ACCOUNT}:assumed-role/controller/session"
#: Refill a second and burst of the request buckets (AWS-756); the first that matches counts.
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
class Failing:
    """Calls that fail with a code: after ``skip`` that pass, ``times`` of them. ``operation`` is a pattern."""

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


class Lost(Exception):
    """The connection breaks before the call is carried out."""


@dataclass
class Faults:
    """All of them; none to begin with. ``now`` is seconds since the epoch."""

    now: Callable[[], float]
    denied: dict[tuple[str, str], str] = field(default_factory=dict)
    failing: list[Failing] = field(default_factory=list)
    latency: dict[str, float] = field(default_factory=dict)
    limited: bool = False
    expired: bool = False
    _lost_answers: dict[str, list[int]] = field(default_factory=dict)
    _lost_requests: dict[str, list[int]] = field(default_factory=dict)
    _stormy_until: float = -math.inf
    _in_storm: int = 0
    _buckets: dict[str, _Bucket] = field(default_factory=dict)

    def reset(self) -> None:
        """None any more."""
        for several in (self.denied, self.latency, self._lost_answers, self._lost_requests, self._buckets):
            several.clear()
        self.failing.clear()
        self.limited = self.expired = False
        self._stormy_until = -math.inf

    def storm(self, seconds: float) -> None:
        """Until then every other call is told to come less often."""
        self._stormy_until, self._in_storm = self.now() + seconds, 0

    def lose_answer(self, operation: str, nth: int) -> None:
        """The ``nth`` call from now on is carried out, and its answer never arrives."""
        self._lost_answers.setdefault(operation, []).append(nth)

    def lose_request(self, operation: str, nth: int) -> None:
        """The connection of the ``nth`` call from now on breaks before it is carried out."""
        self._lost_requests.setdefault(operation, []).append(nth)

    def delay(self, operation: str) -> float:
        """Seconds a call waits before it is looked at."""
        return self.latency.get(operation, self.latency.get("*", 0.0))

    def is_answer_lost(self, operation: str) -> bool:
        """Whether the answer to this call, which counts, is to be lost."""
        return _counts_down(self._lost_answers, operation)

    def check(self, call: Call) -> None:
        """Raises ``Refusal`` or ``Lost`` for a call that is not to be carried out."""
        if _counts_down(self._lost_requests, call.operation):
            raise Lost
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
        if self.now() < self._stormy_until:
            self._in_storm += 1
            if self._in_storm % 2:
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
