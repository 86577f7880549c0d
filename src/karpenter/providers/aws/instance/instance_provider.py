"""Reading and ending instances: cached, batched, one bad id never spoiling the others (AWS-521 to AWS-527, AWS-751, AWS-752)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from typing import Protocol, TypeVar

import structlog
from cachetools import TTLCache

from karpenter.model import labels
from karpenter.model.clock import Clock
from karpenter.providers.aws import aws_errors, aws_labels
from karpenter.providers.aws.aws_apis import InstanceApi
from karpenter.providers.aws.aws_context import AwsClusterView
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.aws_metrics import DESCRIBE_INSTANCES_BATCHER, TERMINATE_INSTANCES_BATCHER, InstanceMetrics
from karpenter.providers.aws.aws_settings import AwsClusterInfo
from karpenter.providers.aws.aws_types import Ec2Filter
from karpenter.providers.aws.ec2_descriptions import InstanceInfo
from karpenter.providers.aws.instance import instance_info
from karpenter.providers.aws.request_batching import RequestBatcher, RequestBatchWindow
from karpenter.providers.contract import InstanceNotFound, ProviderError, RebootFailed

R = TypeVar("R")

DESCRIBE_WINDOW = RequestBatchWindow(idle_seconds=0.1)
TERMINATE_WINDOW = RequestBatchWindow(idle_seconds=0.1)
#: How long EC2 may take to show an instance it made.
VISIBILITY_DELAY = timedelta(minutes=1)
_STATE_FILTER = Ec2Filter(name="instance-state-name", values=instance_info.LISTED_STATES)
_MAX_SINGLE_CALLS = 20

_log = structlog.get_logger()


class ZoneShifted(ProviderError):
    """The instance's zone is being kept away from: nothing is done to it (AWS-616)."""


@dataclass(frozen=True)
class InstanceScope:
    """The cluster, and the ids of the zones it keeps away from at the moment."""

    cluster: AwsClusterInfo
    shifted_zone_ids: Callable[[], frozenset[str]]
    zone_id: Callable[[str], str]

    def is_shifted(self, zone: str) -> bool:
        """Whether a zone is kept away from."""
        shifted = self.shifted_zone_ids()
        return bool(shifted) and self.zone_id(zone) in shifted


class InstanceProvider:
    """The cluster's instances."""

    def __init__(self, ec2: InstanceApi, scope: InstanceScope, clock: Clock, metrics: InstanceMetrics) -> None:
        self._ec2 = ec2
        self._scope = scope
        self._metrics = metrics
        self._cache: dict[str, InstanceInfo] = {}
        self._recently_launched: TTLCache[str, bool, datetime] = TTLCache(inf, VISIBILITY_DELAY, clock.now)
        self._describe_batcher: RequestBatcher[str, str, InstanceInfo | None] = RequestBatcher(
            DESCRIBE_WINDOW, self._describe_batch, metrics.batcher(DESCRIBE_INSTANCES_BATCHER)
        )
        self._terminate_batcher: RequestBatcher[str, str, bool] = RequestBatcher(
            TERMINATE_WINDOW, self._terminate_batch, metrics.batcher(TERMINATE_INSTANCES_BATCHER)
        )

    def mark_launched(self, instance_id: str) -> None:
        """An instance was just made: that EC2 does not show it for a moment does not mean that it is gone."""
        self._recently_launched[instance_id] = True

    async def get(self, instance_id: str) -> InstanceInfo:
        """An instance as last read, or read now. Raises ``InstanceNotFound``, ``ProviderError``."""
        return self._cache.get(instance_id) or await self.describe(instance_id)

    async def describe(self, instance_id: str) -> InstanceInfo:
        """An instance as EC2 has it now; in a shifted zone as last read (AWS-522). Raises as ``get`` does."""
        cached = self._cache.get(instance_id)
        if cached is not None and self._is_shifted(cached):
            return cached
        info = await self._describe_batcher.submit("", instance_id)
        if info is not None:
            self._cache[instance_id] = info
            self._recently_launched.pop(instance_id, None)
            return info
        self._cache.pop(instance_id, None)
        if self._recently_launched.get(instance_id):
            raise ProviderError(f"instance {instance_id} was just made, EC2 does not show it yet")
        raise InstanceNotFound(f"instance {instance_id} does not exist")

    async def list(self) -> tuple[InstanceInfo, ...]:
        """All instances of the cluster, by id (AWS-521). Raises ``ProviderError``."""
        filters = (
            Ec2Filter(name="tag-key", values=(labels.NODE_POOL,)),
            Ec2Filter(name="tag-key", values=(aws_labels.NODE_CLASS,)),
            Ec2Filter(name=f"tag:{aws_labels.CLUSTER_TAG}", values=(self._scope.cluster.name,)),
            _STATE_FILTER,
        )
        try:
            infos = await self._ec2.describe_instances(filters=filters)
        except AwsError as error:
            raise ProviderError(f"listing instances, {error}") from error
        kept = {key: info for key, info in self._cache.items() if self._is_shifted(info)}
        self._cache = {**kept, **{info.instance_id: info for info in infos}}
        return tuple(sorted(infos, key=lambda info: info.instance_id))

    async def delete(self, provider_id: str) -> None:
        """Have an instance ended; ``InstanceNotFound`` once it is gone (AWS-526). Raises ``ProviderError``."""
        info = await self.describe(instance_info.parse_instance_id(provider_id))
        self.refuse_shifted(info)
        if info.state.name == "shutting-down":
            return
        try:
            await self._terminate_batcher.submit("", info.instance_id)
        except AwsError as error:
            if error.is_not_found:
                self._cache.pop(info.instance_id, None)
                raise InstanceNotFound(f"instance {info.instance_id} does not exist") from error
            self._metrics.termination_failed(info.placement.availability_zone)
            reason = aws_errors.explain_denial(str(error))
            raise ProviderError(f"ending instance {info.instance_id}, {reason}") from error

    async def reboot(self, provider_id: str, operation_id: str) -> None:
        """Have an instance restarted in place (K15-A60, K15-A61).

        Raises ``RebootFailed``, which is final, ``InstanceNotFound``, ``ProviderError``.
        """
        info = await self.get(instance_info.parse_instance_id(provider_id))
        self.refuse_shifted(info)
        try:
            await self._ec2.reboot_instances((info.instance_id,))
        except AwsError as error:
            if error.is_not_found:
                self._cache.pop(info.instance_id, None)
                raise InstanceNotFound(f"instance {info.instance_id} does not exist") from error
            text = f"rebooting instance {info.instance_id}, {aws_errors.explain_denial(str(error))}"
            raise (RebootFailed(text) if error.code == "UnauthorizedOperation" else ProviderError(text)) from error
        _log.info("rebooted instance", **{"instance-id": info.instance_id, "operation-id": operation_id})

    async def tag(self, info: InstanceInfo, tags: Mapping[str, str]) -> None:
        """Tag an instance. Raises ``ProviderError``."""
        self.refuse_shifted(info)
        try:
            await self._ec2.create_tags((info.instance_id,), tags)
        except AwsError as error:
            if error.is_not_found:
                raise InstanceNotFound(f"instance {info.instance_id} does not exist") from error
            raise ProviderError(
                f"tagging instance {info.instance_id}, {aws_errors.explain_denial(str(error))}"
            ) from error
        self._cache.pop(info.instance_id, None)

    def refuse_shifted(self, info: InstanceInfo) -> None:
        """Raises ``ZoneShifted`` for an instance in a zone the cluster keeps away from."""
        if self._is_shifted(info):
            zone = info.placement.availability_zone
            raise ZoneShifted(f"zone {zone} is shifted away from, instance {info.instance_id} is left alone")

    def _is_shifted(self, info: InstanceInfo) -> bool:
        return self._scope.is_shifted(info.placement.availability_zone)

    # -- calls --------------------------------------------------------------------------------------------------------------

    async def _describe_batch(self, bucket: str, ids: Sequence[str]) -> Sequence[InstanceInfo | Exception | None]:
        """All at once; what the answer lacks, or everything where the call fails, one by one (AWS-751)."""
        try:
            infos = await self._describe_ids(dict.fromkeys(ids))
        except AwsError:
            infos = {}
        missing = [fromkey for fromkey in dict.fromkeys(ids) if fromkey not in infos]
        singles = await _call_each(missing, self._describe_one)
        return [infos[instance_id] if instance_id in infos else singles[instance_id] for instance_id in ids]

    async def _describe_one(self, instance_id: str) -> InstanceInfo | None:
        try:
            infos = await self._describe_ids((instance_id,))
        except AwsError as error:
            if error.is_not_found:
                return None
            raise ProviderError(f"reading instance {instance_id}, {aws_errors.explain_denial(str(error))}") from error
        return infos.get(instance_id)

    async def _describe_ids(self, ids: Iterable[str]) -> dict[str, InstanceInfo]:
        infos = await self._ec2.describe_instances(ids=tuple(ids), filters=(_STATE_FILTER,))
        return {info.instance_id: info for info in infos}

    async def _terminate_batch(self, bucket: str, ids: Sequence[str]) -> Sequence[bool | Exception]:
        """All at once; those the answer does not report as ending, or all where the call fails, one by one (AWS-752)."""
        try:
            ending = await self._terminate_ids(dict.fromkeys(ids))
        except AwsError:
            ending = frozenset()
        singles = await _call_each(
            [fromkey for fromkey in dict.fromkeys(ids) if fromkey not in ending], self._terminate_one
        )
        return [True if instance_id in ending else singles[instance_id] for instance_id in ids]

    async def _terminate_one(self, instance_id: str) -> bool:
        return instance_id in await self._terminate_ids((instance_id,))

    async def _terminate_ids(self, ids: Iterable[str]) -> frozenset[str]:
        changes = await self._ec2.terminate_instances(tuple(ids))
        return frozenset(
            state_change.instance_id
            for state_change in changes
            if state_change.current_state.name in instance_info.TERMINATING_STATES
        )


async def _call_each(ids: Sequence[str], call: Callable[[str], Awaitable[R]]) -> dict[str, R | Exception]:
    """One call per id, a few at a time; a fault is the answer of its id alone."""
    slots = asyncio.Semaphore(_MAX_SINGLE_CALLS)

    async def one(instance_id: str) -> R | Exception:
        async with slots:
            try:
                return await call(instance_id)
            except (AwsError, ProviderError) as error:
                return error

    return dict(zip(ids, await asyncio.gather(*map(one, ids)), strict=True))


_RETURNED_FOR = timedelta(minutes=15)


class ReservationReturns(Protocol):
    """Counts what reservations hold."""

    def mark_terminated(self, reservation: str) -> None:
        """One instance left it."""


class InstanceTerminator:
    """Ends instances; each that is gone is counted back to its reservation once, however often it is asked for."""

    def __init__(
        self, instances: InstanceProvider, cluster_view: AwsClusterView, reservations: ReservationReturns, clock: Clock
    ) -> None:
        self._instances = instances
        self._cluster_view = cluster_view
        self._reservations = reservations
        self._returned: TTLCache[str, bool, datetime] = TTLCache(inf, _RETURNED_FOR, clock.now)

    async def delete(self, provider_id: str) -> None:
        """Have an instance ended; ``InstanceNotFound`` once it is gone. Raises ``ProviderError``."""
        try:
            await self._instances.delete(provider_id)
        except InstanceNotFound:
            self._return_reservation(instance_info.parse_instance_id(provider_id))
            raise

    def _return_reservation(self, instance_id: str) -> None:
        claim = self._cluster_view.claim_of(instance_id)
        reservation = claim.metadata.labels.get(labels.RESERVATION_ID, "") if claim is not None else ""
        if reservation and not self._returned.get(instance_id):
            self._returned[instance_id] = True
            self._reservations.mark_terminated(reservation)
