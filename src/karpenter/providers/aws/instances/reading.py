"""Reading and ending machines: cached, batched, one bad id never spoiling the others (AWS-521 to AWS-527, AWS-751, AWS-752)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from karpenter.model import labels
from karpenter.model.clock import Clock
from karpenter.providers.aws import facts, failures, names
from karpenter.providers.aws.batching import Batcher, Window
from karpenter.providers.aws.cache import Expiring
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.ports import InstancePort
from karpenter.providers.aws.series import DESCRIBE_INSTANCES, TERMINATE_INSTANCES, InstanceSeries
from karpenter.providers.aws.settings import Cluster
from karpenter.providers.aws.shapes import Filter, InstanceInfo
from karpenter.providers.contract import InstanceNotFound, ProviderError

R = TypeVar("R")

READ_WINDOW = Window(idle_seconds=0.1)
END_WINDOW = Window(idle_seconds=0.1)
#: How long EC2 may take to show a machine it made.
VISIBLE_WITHIN = timedelta(minutes=1)
_STATE_FILTER = Filter(name="instance-state-name", values=facts.STATES)
_SINGLES_AT_ONCE = 20


class ZoneShifted(ProviderError):
    """The machine's zone is being kept away from: nothing is done to it (AWS-616)."""


@dataclass(frozen=True)
class Region:
    """The cluster, and the ids of the zones it keeps away from at the moment."""

    cluster: Cluster
    shifted: Callable[[], frozenset[str]]
    zone_id: Callable[[str], str]

    def is_shifted(self, zone: str) -> bool:
        """Whether a zone is kept away from."""
        shifted = self.shifted()
        return bool(shifted) and self.zone_id(zone) in shifted


class Instances:
    """The cluster's machines."""

    def __init__(self, ec2: InstancePort, region: Region, clock: Clock, series: InstanceSeries) -> None:
        self._ec2 = ec2
        self._region = region
        self._series = series
        self._known: dict[str, InstanceInfo] = {}
        self._fresh: Expiring[str, bool] = Expiring(clock, VISIBLE_WITHIN)
        self._reader: Batcher[str, str, InstanceInfo | None] = Batcher(
            READ_WINDOW, self._read, series.batcher(DESCRIBE_INSTANCES)
        )
        self._ender: Batcher[str, str, bool] = Batcher(END_WINDOW, self._end, series.batcher(TERMINATE_INSTANCES))

    def bought(self, instance_id: str) -> None:
        """A machine was just made: that EC2 does not show it for a moment does not mean that it is gone."""
        self._fresh.put(instance_id, True)

    async def get(self, instance_id: str) -> InstanceInfo:
        """A machine as last read, or read now. Raises ``InstanceNotFound``, ``ProviderError``."""
        return self._known.get(instance_id) or await self.look(instance_id)

    async def look(self, instance_id: str) -> InstanceInfo:
        """A machine as EC2 has it now; in a shifted zone as last read (AWS-522). Raises as ``get`` does."""
        known = self._known.get(instance_id)
        if known is not None and self._is_shifted(known):
            return known
        found = await self._reader.ask("", instance_id)
        if found is not None:
            self._known[instance_id] = found
            self._fresh.drop(instance_id)
            return found
        self._known.pop(instance_id, None)
        if self._fresh.get(instance_id):
            raise ProviderError(f"instance {instance_id} was just made, EC2 does not show it yet")
        raise InstanceNotFound(f"instance {instance_id} does not exist")

    async def list(self) -> tuple[InstanceInfo, ...]:
        """All machines of the cluster, by id (AWS-521). Raises ``ProviderError``."""
        filters = (
            Filter(name="tag-key", values=(labels.NODE_POOL,)),
            Filter(name="tag-key", values=(names.NODE_CLASS,)),
            Filter(name=f"tag:{names.CLUSTER_TAG}", values=(self._region.cluster.name,)),
            _STATE_FILTER,
        )
        try:
            found = await self._ec2.describe_instances(filters=filters)
        except AwsError as error:
            raise ProviderError(f"listing instances, {error}") from error
        kept = {key: info for key, info in self._known.items() if self._is_shifted(info)}
        self._known = {**kept, **{info.instance_id: info for info in found}}
        return tuple(sorted(found, key=lambda info: info.instance_id))

    async def delete(self, provider_id: str) -> None:
        """Have a machine ended; ``InstanceNotFound`` once it is gone (AWS-526). Raises ``ProviderError``."""
        info = await self.look(facts.instance_id(provider_id))
        self.refuse_shifted(info)
        if info.state.name == "shutting-down":
            return
        try:
            await self._ender.ask("", info.instance_id)
        except AwsError as error:
            if error.is_not_found:
                self._known.pop(info.instance_id, None)
                raise InstanceNotFound(f"instance {info.instance_id} does not exist") from error
            self._series.termination_failed(info.placement.availability_zone)
            raise ProviderError(f"ending instance {info.instance_id}, {failures.explained(str(error))}") from error

    async def tag(self, info: InstanceInfo, tags: Mapping[str, str]) -> None:
        """Tag a machine. Raises ``ProviderError``."""
        self.refuse_shifted(info)
        try:
            await self._ec2.create_tags((info.instance_id,), tags)
        except AwsError as error:
            if error.is_not_found:
                raise InstanceNotFound(f"instance {info.instance_id} does not exist") from error
            raise ProviderError(f"tagging instance {info.instance_id}, {failures.explained(str(error))}") from error
        self._known.pop(info.instance_id, None)

    def refuse_shifted(self, info: InstanceInfo) -> None:
        """Raises ``ZoneShifted`` for a machine in a zone the cluster keeps away from."""
        if self._is_shifted(info):
            zone = info.placement.availability_zone
            raise ZoneShifted(f"zone {zone} is shifted away from, instance {info.instance_id} is left alone")

    def _is_shifted(self, info: InstanceInfo) -> bool:
        return self._region.is_shifted(info.placement.availability_zone)

    # -- calls --------------------------------------------------------------------------------------------------------------

    async def _read(self, bucket: str, ids: Sequence[str]) -> Sequence[InstanceInfo | Exception | None]:
        """All at once; what the answer lacks, or everything where the call fails, one by one (AWS-751)."""
        try:
            found = await self._described(dict.fromkeys(ids))
        except AwsError:
            found = {}
        missing = [item for item in dict.fromkeys(ids) if item not in found]
        singles = await _each(missing, self._read_one)
        return [found[item] if item in found else singles[item] for item in ids]

    async def _read_one(self, instance_id: str) -> InstanceInfo | None:
        try:
            found = await self._described((instance_id,))
        except AwsError as error:
            if error.is_not_found:
                return None
            raise ProviderError(f"reading instance {instance_id}, {failures.explained(str(error))}") from error
        return found.get(instance_id)

    async def _described(self, ids: Iterable[str]) -> dict[str, InstanceInfo]:
        found = await self._ec2.describe_instances(ids=tuple(ids), filters=(_STATE_FILTER,))
        return {info.instance_id: info for info in found}

    async def _end(self, bucket: str, ids: Sequence[str]) -> Sequence[bool | Exception]:
        """All at once; those the answer does not report as ending, or all where the call fails, one by one (AWS-752)."""
        try:
            ending = await self._ended(dict.fromkeys(ids))
        except AwsError:
            ending = frozenset()
        singles = await _each([item for item in dict.fromkeys(ids) if item not in ending], self._end_one)
        return [True if item in ending else singles[item] for item in ids]

    async def _end_one(self, instance_id: str) -> bool:
        return instance_id in await self._ended((instance_id,))

    async def _ended(self, ids: Iterable[str]) -> frozenset[str]:
        changes = await self._ec2.terminate_instances(tuple(ids))
        return frozenset(item.instance_id for item in changes if item.current_state.name in facts.ENDING)


async def _each(ids: Sequence[str], call: Callable[[str], Awaitable[R]]) -> dict[str, R | Exception]:
    """One call per id, a few at a time; a fault is the answer of its id alone."""
    slots = asyncio.Semaphore(_SINGLES_AT_ONCE)

    async def one(instance_id: str) -> R | Exception:
        async with slots:
            try:
                return await call(instance_id)
            except (AwsError, ProviderError) as error:
                return error

    return dict(zip(ids, await asyncio.gather(*map(one, ids)), strict=True))
