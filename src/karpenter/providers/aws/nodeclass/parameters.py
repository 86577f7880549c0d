"""SSM parameters that hold image ids, kept between looks (AWS-181, AWS-182)."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

import structlog

from karpenter.model.clock import Clock
from karpenter.providers.aws.cache import Expiring
from karpenter.providers.aws.nodeclass import queries
from karpenter.providers.aws.nodeclass.images import is_deprecated
from karpenter.providers.aws.ports import DiscoveryPort, SsmPort

_KEPT = timedelta(hours=24)
#: A parameter of the user's changes when the user says so, so it is asked for more often.
_KEPT_OF_USER = timedelta(minutes=5)
_log = structlog.get_logger()


class _Value(NamedTuple):
    image_id: str
    mutable: bool


class Parameters:
    """Values of parameters by name."""

    def __init__(self, ssm: SsmPort, ec2: DiscoveryPort, clock: Clock) -> None:
        self._ssm = ssm
        self._ec2 = ec2
        self._clock = clock
        self._values: Expiring[str, _Value] = Expiring(clock, _KEPT)

    async def of_release(self, name: str, mutable: bool) -> str:
        """The value of a public parameter; ``mutable`` where it follows the newest release. Raises ``AwsError``."""
        return await self._get(name, mutable, _KEPT)

    async def of_user(self, name: str) -> str:
        """The value of a parameter a term names. Raises ``AwsError``."""
        return await self._get(name, True, _KEPT_OF_USER)

    async def drop_outdated(self) -> None:
        """Forget values that may have changed and whose image is deprecated or gone, so that the new one is read (AWS-182).

        Raises ``AwsError``.
        """
        mutable = {name: value.image_id for name, value in self._values.items() if value.mutable}
        current: set[str] = set()
        for query in queries.by_ids(tuple(dict.fromkeys(mutable.values()))):
            found = await self._ec2.describe_images(query)
            current |= {image.image_id for image in found if not is_deprecated(image, self._clock.now())}
        for name, image_id in mutable.items():
            if image_id not in current:
                self._values.drop(name)

    async def _get(self, name: str, mutable: bool, kept: timedelta) -> str:
        known = self._values.get(name)
        if known is not None:
            return known.image_id
        value = await self._ssm.get_parameter(name)
        self._values.put(name, _Value(value, mutable), kept)
        _log.info("discovered ssm parameter", parameter=name, value=value)
        return value
