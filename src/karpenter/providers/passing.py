"""What every wrapper around a cloud starts from: each call passes through unchanged. A wrapper overrides what it is about."""

from __future__ import annotations

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.catalog.types import InstanceType
from karpenter.providers.contract import CloudProvider, Drift, Instance, RegistrationHook, RepairPolicy


class PassingProvider:
    """A provider that is another one, call for call."""

    def __init__(self, provider: CloudProvider) -> None:
        self._provider = provider

    async def create(self, claim: NodeClaim) -> Instance:
        """Buy one machine for the claim."""
        return await self._provider.create(claim)

    async def delete(self, provider_id: str) -> None:
        """Ask for the machine to go."""
        await self._provider.delete(provider_id)

    async def get(self, provider_id: str) -> Instance:
        """One machine."""
        return await self._provider.get(provider_id)

    async def list(self) -> tuple[Instance, ...]:
        """All machines of this cluster."""
        return await self._provider.list()

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """Everything the pool's class could use."""
        return await self._provider.instance_types(pool)

    async def drift(self, claim: NodeClaim) -> Drift | None:
        """How the machine no longer matches its class."""
        return await self._provider.drift(claim)

    def repair_policies(self) -> tuple[RepairPolicy, ...]:
        """Node conditions that mean broken."""
        return self._provider.repair_policies()

    def registration_hooks(self) -> tuple[RegistrationHook, ...]:
        """What must be satisfied before a Node is opened to pods."""
        return self._provider.registration_hooks()

    @property
    def name(self) -> str:
        """Short name, the metric label ``provider``."""
        return self._provider.name

    @property
    def node_class_kinds(self) -> tuple[Kind[Wire], ...]:
        """Kinds of node classes the provider serves."""
        return self._provider.node_class_kinds
