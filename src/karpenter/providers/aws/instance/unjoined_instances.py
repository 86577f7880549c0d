"""Reports instances that were gone before their node joined: ended by themselves, or given up (AWS-858, AWS-932)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from cachetools import TTLCache

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.model.clock import Clock
from karpenter.providers.aws.aws_apis import InstanceApi
from karpenter.providers.aws.aws_context import AwsClusterView, AwsEventRecorder
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_types import Ec2Filter
from karpenter.providers.aws.ec2_descriptions import InstanceInfo
from karpenter.providers.aws.instance import instance_info
from karpenter.providers.aws.instance.console_output import ConsoleOutputReader
from karpenter.providers.contract import ProviderError

INSTANCE_ENDED_REASON = "InstanceEnded"
INSTANCE_NEVER_JOINED_REASON = "InstanceNeverJoined"
PERIOD_SECONDS = 60.0
#: EC2 takes so many values in one filter.
_MAX_FILTER_VALUES = 200
#: Terminations on request.
_REQUESTED_END_CODES = frozenset({"Client.UserInitiatedShutdown", "Client.InstanceInitiatedShutdown"})
_MAX_REPORTED = 10_000
_REPORTED_FOR = timedelta(hours=2)
#: An instance that lived for less has printed nothing yet that EC2 shows.
_MIN_LIFE = timedelta(minutes=2)
#: EC2 shows the last output some minutes after an instance is gone, and keeps it for an hour.
_GIVEN_UP_FOR = timedelta(minutes=15)
_MAX_GIVEN_UP = 1_000
#: Console outputs read in one pass.
_MAX_READ = 20
_log = structlog.get_logger()


@dataclass(frozen=True)
class UnjoinedDependencies:
    """What the reporter works with. ``console`` is None where console output is not read."""

    ec2: InstanceApi
    cluster_view: AwsClusterView
    events: AwsEventRecorder
    clock: Clock
    console: ConsoleOutputReader | None = None


class UnjoinedInstanceReporter:
    """Publishes one event for each instance that was gone before its node joined, with the end of its console output.

    An instance that ended by itself is always reported. One whose NodeClaim was deleted, mostly for a time-out, is reported where
    it left console output.
    """

    def __init__(self, dependencies: UnjoinedDependencies) -> None:
        self._dependencies = dependencies
        clock = dependencies.clock
        self._reported: TTLCache[str, bool, datetime] = TTLCache(_MAX_REPORTED, _REPORTED_FOR, clock.now)
        #: Claims that were deleted before their node joined, by instance.
        self._given_up: TTLCache[str, NodeClaim, datetime] = TTLCache(_MAX_GIVEN_UP, _GIVEN_UP_FOR, clock.now)

    def on_claim(self, old: NodeClaim | None, new: NodeClaim | None) -> None:
        """Informer handler: a claim that goes without a node is to be reported, if its console output is read at all."""
        claim = new or old
        if self._dependencies.console is None or claim is None or claim.metadata.deletion_timestamp is None:
            return
        instance_id = _waiting_instance(claim)
        if instance_id and self._lived(claim) and not self._reported.get(instance_id):
            self._given_up[instance_id] = claim

    def _lived(self, claim: NodeClaim) -> bool:
        created, deleted = claim.metadata.creation_timestamp, claim.metadata.deletion_timestamp
        return created is not None and deleted is not None and deleted - created >= _MIN_LIFE

    async def reconcile(self) -> float:
        """One pass; seconds until the next. No call while every instance has joined. Raises ``ProviderError``."""
        waiting = {
            key: claim
            for key, claim in _unregistered_claims(self._dependencies.cluster_view.claims()).items()
            if not self._reported.get(key)
        }
        ids = sorted(waiting)
        for start in range(0, len(ids), _MAX_FILTER_VALUES):
            for info in await self._describe_ended(ids[start : start + _MAX_FILTER_VALUES]):
                await self._report_ended(waiting[info.instance_id], info)
        for instance_id, claim in list(self._given_up.items())[:_MAX_READ]:
            await self._report_given_up(instance_id, claim)
        return PERIOD_SECONDS

    async def _describe_ended(self, ids: Sequence[str]) -> tuple[InstanceInfo, ...]:
        filters = (
            Ec2Filter(name="instance-id", values=tuple(ids)),
            Ec2Filter(name="instance-state-name", values=("shutting-down", "terminated")),
        )
        try:
            return await self._dependencies.ec2.describe_instances(filters=filters)
        except AwsError as error:
            raise ProviderError(f"asking why instances ended, {error}") from error

    async def _report_ended(self, claim: NodeClaim, info: InstanceInfo) -> None:
        why = info.state_reason
        if why is None or why.code in _REQUESTED_END_CODES:
            return
        tail = await self._tail(info.instance_id)
        if not tail and self._dependencies.console is not None and info.state.name == "shutting-down":
            return  # EC2 shows the last output once the instance is gone.
        message = f"instance {info.instance_id} ended before its node joined ({why.code}): {why.message}"
        self._publish(info.instance_id, claim, INSTANCE_ENDED_REASON, _with_console(message, tail))

    async def _report_given_up(self, instance_id: str, claim: NodeClaim) -> None:
        tail = await self._tail(instance_id)
        if not tail:
            return
        message = f"instance {instance_id} was given up before its node joined"
        self._publish(instance_id, claim, INSTANCE_NEVER_JOINED_REASON, _with_console(message, tail))

    async def _tail(self, instance_id: str) -> str:
        console = self._dependencies.console
        return await console.tail(instance_id) if console is not None else ""

    def _publish(self, instance_id: str, claim: NodeClaim, reason: str, message: str) -> None:
        self._reported[instance_id] = True
        self._given_up.pop(instance_id, None)
        self._dependencies.events.warning(NODE_CLAIM, claim.metadata, reason, message)
        _log.error("instance was gone before its node joined", NodeClaim={"name": claim.metadata.name}, error=message)


def _with_console(message: str, tail: str) -> str:
    return f"{message}; its console output ended with:\n{tail}" if tail else message


def _waiting_instance(claim: NodeClaim) -> str:
    """The instance of a claim that has no node yet; empty where there is none."""
    if not claim.status.provider_id or claim.status.node_name:
        return ""
    try:
        return instance_info.parse_instance_id(claim.status.provider_id)
    except instance_info.InvalidProviderId:
        return ""


def _unregistered_claims(claims: Iterable[NodeClaim]) -> Mapping[str, NodeClaim]:
    """Claims by instance that have an instance and no node yet, and are to stay."""
    staying = (claim for claim in claims if claim.metadata.deletion_timestamp is None)
    by_instance = {_waiting_instance(claim): claim for claim in staying}
    return {instance_id: claim for instance_id, claim in by_instance.items() if instance_id}
