"""Ending machines for the controllers, and giving reservations their room back (AWS-526, AWS-600)."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from karpenter.model import labels
from karpenter.model.clock import Clock
from karpenter.providers.aws import facts
from karpenter.providers.aws.cache import Expiring
from karpenter.providers.aws.instances.reading import Instances
from karpenter.providers.aws.surroundings import Observed
from karpenter.providers.contract import InstanceNotFound

_REMEMBERED = timedelta(hours=1)


class Returns(Protocol):
    """Counts what reservations hold."""

    def returned(self, reservation: str) -> None:
        """One machine left it."""


class Ending:
    """Ends machines; each that is gone is counted back to its reservation once, however often it is asked for."""

    def __init__(self, instances: Instances, observed: Observed, returns: Returns, clock: Clock) -> None:
        self._instances = instances
        self._observed = observed
        self._returns = returns
        self._gone: Expiring[str, bool] = Expiring(clock, _REMEMBERED)

    async def delete(self, provider_id: str) -> None:
        """Have a machine ended; ``InstanceNotFound`` once it is gone. Raises ``ProviderError``."""
        try:
            await self._instances.delete(provider_id)
        except InstanceNotFound:
            self._count_back(facts.instance_id(provider_id))
            raise

    def _count_back(self, instance_id: str) -> None:
        claim = self._observed.claim_of(instance_id)
        reservation = claim.metadata.labels.get(labels.RESERVATION_ID, "") if claim is not None else ""
        if reservation and not self._gone.get(instance_id):
            self._gone.put(instance_id, True)
            self._returns.returned(reservation)
