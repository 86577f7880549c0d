"""Machines that end before they join, and why (AWS-858).

A volume whose key the launcher may not use ends its machine seconds after the start; the API server then shows nothing but claims
that never become nodes. EC2 knows the reason for about an hour, so it is asked for and told on the claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

import structlog

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.model.clock import Clock
from karpenter.providers.aws import facts
from karpenter.providers.aws.cache import Expiring
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.launch.consequences import Notices
from karpenter.providers.aws.ports import InstancePort
from karpenter.providers.aws.shapes import Filter, InstanceInfo
from karpenter.providers.aws.surroundings import Observed
from karpenter.providers.contract import ProviderError

REASON = "InstanceEnded"
PAUSE_SECONDS = 60.0
#: EC2 takes so many values in one filter.
_MOST_VALUES = 200
#: Ends somebody wished for.
_WISHED = frozenset({"Client.UserInitiatedShutdown", "Client.InstanceInitiatedShutdown"})
_REMEMBERED = timedelta(hours=2)
_log = structlog.get_logger()


class Deaths:
    """Tells of each machine that ended before its node joined, once."""

    def __init__(self, ec2: InstancePort, observed: Observed, notices: Notices, clock: Clock) -> None:
        self._ec2 = ec2
        self._observed = observed
        self._notices = notices
        self._told: Expiring[str, bool] = Expiring(clock, _REMEMBERED)

    async def look(self) -> float:
        """One round; seconds until the next. No call while every machine has joined. Raises ``ProviderError``."""
        waiting = {key: claim for key, claim in _waiting(self._observed.claims()).items() if not self._told.get(key)}
        ids = sorted(waiting)
        for start in range(0, len(ids), _MOST_VALUES):
            for info in await self._ended(ids[start : start + _MOST_VALUES]):
                self._tell(waiting[info.instance_id], info)
        return PAUSE_SECONDS

    async def _ended(self, ids: Sequence[str]) -> tuple[InstanceInfo, ...]:
        filters = (
            Filter(name="instance-id", values=tuple(ids)),
            Filter(name="instance-state-name", values=("shutting-down", "terminated")),
        )
        try:
            return await self._ec2.describe_instances(filters=filters)
        except AwsError as error:
            raise ProviderError(f"asking why machines ended, {error}") from error

    def _tell(self, claim: NodeClaim, info: InstanceInfo) -> None:
        why = info.state_reason
        if why is None or why.code in _WISHED:
            return
        self._told.put(info.instance_id, True)
        message = f"instance {info.instance_id} ended before its node joined ({why.code}): {why.message}"
        self._notices.warning(NODE_CLAIM, claim.metadata, REASON, message)  # type: ignore[arg-type]
        _log.error("instance ended before its node joined", NodeClaim={"name": claim.metadata.name}, error=message)


def _waiting(claims: Iterable[NodeClaim]) -> Mapping[str, NodeClaim]:
    """Claims by instance that have a machine and no node yet."""
    found = {}
    for claim in claims:
        if claim.status.provider_id and not claim.status.node_name and claim.metadata.deletion_timestamp is None:
            try:
                found[facts.instance_id(claim.status.provider_id)] = claim
            except facts.BadProviderId:
                continue
    return found
