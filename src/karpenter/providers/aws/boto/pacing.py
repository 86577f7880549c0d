"""How many calls a second: a little less than AWS grants an account, so that others in it are served too (AWS-756).

EC2 counts calls in groups. A call waits here, on the event loop, until its group may make another; threads are only taken by
calls that may go. Where AWS asks for fewer calls all the same (others in the account call, too), the group slows down by a
third, and gains a tenth of its usual speed with every ten calls that pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

#: How much of what AWS grants we take.
_SHARE = 0.9
_SLOWER = 2 / 3
_SLOWEST = 0.1
_FASTER = 0.01


class Budget(NamedTuple):
    """What AWS grants: calls per second in the long run, and at once."""

    per_second: float
    burst: int


class Group(StrEnum):
    """Calls that AWS counts together."""

    EC2_READ = "ec2 read"
    EC2_WRITE = "ec2 write"
    EC2_LAUNCH = "ec2 launch"
    EC2_TERMINATE = "ec2 terminate"
    EC2_TAG = "ec2 tag"
    IAM = "iam"
    SSM = "ssm"
    PRICING = "pricing"
    QUEUE = "queue"
    EKS = "eks"
    ZONAL_SHIFT = "zonal shift"
    IDENTITY = "identity"


#: EC2's are AWS's figures; those of the other services are ours, and cautious.
BUDGETS: Mapping[Group, Budget] = {
    Group.EC2_READ: Budget(20.0, 100),
    Group.EC2_WRITE: Budget(5.0, 50),
    Group.EC2_LAUNCH: Budget(2.0, 5),
    Group.EC2_TERMINATE: Budget(5.0, 100),
    Group.EC2_TAG: Budget(10.0, 100),
    Group.IAM: Budget(10.0, 20),
    Group.SSM: Budget(20.0, 40),
    Group.PRICING: Budget(10.0, 20),
    Group.QUEUE: Budget(50.0, 100),
    Group.EKS: Budget(5.0, 10),
    Group.ZONAL_SHIFT: Budget(2.0, 4),
    Group.IDENTITY: Budget(5.0, 10),
}


class Pace:
    """The pace of one group. Waiting costs no thread; who is cancelled while waiting gives the turn back."""

    def __init__(self, budget: Budget) -> None:
        self._usual = budget.per_second * _SHARE
        self._per_second = self._usual
        self._burst = max(1.0, budget.burst * _SHARE)
        self._tokens = self._burst
        self._counted_at: float | None = None

    @property
    def per_second(self) -> float:
        """Calls per second at the moment."""
        return self._per_second

    async def take(self) -> None:
        """Wait until another call may go."""
        self._refill()
        self._tokens -= 1.0
        if self._tokens >= 0.0:
            return
        try:
            await asyncio.sleep(-self._tokens / self._per_second)
        except asyncio.CancelledError:
            self._tokens += 1.0
            raise

    def throttled(self) -> None:
        """AWS asks for fewer calls: what was saved up is spent, too."""
        self._refill()
        self._tokens = min(self._tokens, 0.0)
        self._per_second = max(self._usual * _SLOWEST, self._per_second * _SLOWER)

    def passed(self) -> None:
        """AWS took a call."""
        if self._per_second < self._usual:
            self._refill()
            self._per_second = min(self._usual, self._per_second + self._usual * _FASTER)

    def _refill(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._counted_at is not None:
            self._tokens = min(self._burst, self._tokens + (now - self._counted_at) * self._per_second)
        self._counted_at = now
