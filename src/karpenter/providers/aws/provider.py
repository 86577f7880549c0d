"""The cloud contract on EC2 (OPS-210 ff.): each method finds the class and hands over to whoever does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import EC2_NODE_CLASS, Kind
from karpenter.api.meta import Wire
from karpenter.catalog.types import InstanceType
from karpenter.kube.protocol import Reader
from karpenter.model import conditions, labels
from karpenter.model.clock import Clock
from karpenter.providers.aws import facts, names
from karpenter.providers.aws.events import subjects
from karpenter.providers.aws.events.repair import POLICIES
from karpenter.providers.aws.events.wishes import replacement_reason
from karpenter.providers.aws.instances.ending import Ending
from karpenter.providers.aws.instances.reading import Instances
from karpenter.providers.aws.launch import outcome, preconditions
from karpenter.providers.aws.launch.launcher import Launcher
from karpenter.providers.aws.nodeclass.drift import Drift as Found
from karpenter.providers.aws.nodeclass.drift import Machine, class_drift, confirmed
from karpenter.providers.aws.nodeclass.hashing import Editions
from karpenter.providers.aws.nodeclass.placement import PlacementGroups
from karpenter.providers.aws.shapes import InstanceInfo
from karpenter.providers.aws.surroundings import Herald, Observed
from karpenter.providers.aws.types.market import Market
from karpenter.providers.contract import (
    Drift,
    Instance,
    LaunchFailed,
    NodeClassNotReady,
    ProviderError,
    RegistrationHook,
    RepairPolicy,
)


@dataclass(frozen=True)
class Desks:
    """Who does what."""

    kube: Reader
    market: Market
    launcher: Launcher
    instances: Instances
    ending: Ending
    groups: PlacementGroups
    editions: Editions
    hooks: tuple[RegistrationHook, ...]


@dataclass(frozen=True)
class View:
    """What the provider sees of its process: the cluster as watched, a class by its name, and events."""

    observed: Observed
    class_named: Callable[[str], EC2NodeClass | None]
    herald: Herald


class AwsProvider:
    """Machines on EC2. Implements ``CloudProvider``."""

    def __init__(self, desks: Desks, view: View, clock: Clock, reserved_capacity: bool) -> None:
        self._desks = desks
        self._view = view
        self._clock = clock
        self._reserved_capacity = reserved_capacity

    @property
    def name(self) -> str:
        """AWS-691"""
        return "aws"

    @property
    def node_class_kinds(self) -> tuple[Kind[Wire], ...]:
        """AWS-691"""
        return (EC2_NODE_CLASS,)  # type: ignore[return-value]

    def repair_policies(self) -> tuple[RepairPolicy, ...]:
        """AWS-690"""
        return POLICIES

    def registration_hooks(self) -> tuple[RegistrationHook, ...]:
        """The partition of a placement group (AWS-612)."""
        return self._desks.hooks

    async def create(self, claim: NodeClaim) -> Instance:
        """Buy one machine for the claim (AWS-410 to AWS-417)."""
        node_class = self._watched_class(claim)
        if node_class is None:
            node_class = await preconditions.usable_class(self._desks.kube, claim, self._view.herald)
        try:
            types = self._desks.market.types_for(node_class)
        except ProviderError as error:
            raise LaunchFailed("InstanceTypeResolutionFailed", str(error)) from error
        bought = await self._desks.launcher.launch(claim, node_class, types)
        self._desks.instances.bought(facts.instance_id(bought.provider_id))
        return bought

    def _watched_class(self, claim: NodeClaim) -> EC2NodeClass | None:
        """The class as last watched if it can be launched from; whatever else it is, the API server has the last word.

        So a wave of launches does not read the same class once for every claim.
        """
        found = self._view.class_named(claim.spec.node_class_ref.name)
        if found is None or found.metadata.deletion_timestamp is not None:
            return None
        try:
            preconditions.check(found)
        except ProviderError:
            return None
        return found

    async def delete(self, provider_id: str) -> None:
        """Have a machine ended (AWS-526)."""
        await self._desks.ending.delete(provider_id)

    async def get(self, provider_id: str) -> Instance:
        """One machine, as EC2 has it now (AWS-522)."""
        return self._instance(await self._desks.instances.look(facts.instance_id(provider_id)))

    async def list(self) -> tuple[Instance, ...]:
        """All machines of the cluster (AWS-521)."""
        return tuple(map(self._instance, await self._desks.instances.list()))

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """Everything the pool's class could use (AWS §§7-8).

        Raises ``NodeClassNotReady`` where the class itself says, or is about to say, what is missing.
        """
        reference = pool.spec.template.spec.node_class_ref
        node_class = self._view.class_named(reference.name)
        if node_class is None:
            raise NodeClassNotReady(f"EC2NodeClass {reference.name} of NodePool {pool.metadata.name} does not exist")
        try:
            return self._desks.market.types_for(node_class)
        except ProviderError as error:
            if conditions.is_true(node_class.status.conditions, "Ready"):
                raise
            raise NodeClassNotReady(str(error)) from error

    async def drift(self, claim: NodeClaim) -> Drift | None:
        """How a machine differs from its class now (AWS-560 to AWS-568). No call is made where the class itself was changed."""
        wished = replacement_reason(claim)
        if wished:
            return Drift(wished)
        node_class = self._class_of(claim)
        if node_class is None:
            return None
        found = class_drift(claim, node_class, self._desks.editions.changed)
        if not found.reason:
            found = await self._machine_drift(claim, node_class)
        return Drift(found.reason, found.message) if found.reason else None

    async def _machine_drift(self, claim: NodeClaim, node_class: EC2NodeClass) -> Found:
        instances = self._desks.instances
        instance_id = facts.instance_id(claim.status.provider_id)
        machine = Machine(
            claim=claim,
            node_class=node_class,
            instance=await instances.get(instance_id),
            types={item.name: item for item in self._desks.market.types_for(node_class)},
            group_id=self._group_id(node_class),
        )
        return await confirmed(machine, lambda: instances.look(instance_id))

    def _class_of(self, claim: NodeClaim) -> EC2NodeClass | None:
        """The class the claim's pool has now; None, and an event on the pool, where there is none to compare with (AWS-560)."""
        name = claim.metadata.labels.get(labels.NODE_POOL, "")
        pool = next((item for item in self._view.observed.pools() if item.metadata.name == name), None)
        if pool is None:
            return None
        node_class = self._view.class_named(pool.spec.template.spec.node_class_ref.name)
        if node_class is None or node_class.metadata.deletion_timestamp is not None:
            self._view.herald.warning(
                subjects.POOL, pool.metadata, preconditions.UNRESOLVED, preconditions.UNRESOLVED_TEXT
            )
            return None
        return node_class

    def _group_id(self, node_class: EC2NodeClass) -> str | None:
        """The placement group's id; empty where the class asks for none, None where it is not known."""
        if node_class.spec.placement_group_selector is None:
            return ""
        group = self._desks.groups.known(node_class)
        return group.group_id if group is not None else None

    def _instance(self, info: InstanceInfo) -> Instance:
        """A described machine. Of a pool or class that is gone nothing is told but what EC2 says (AWS-525)."""
        node_class = self._view.class_named(facts.tag(info, names.NODE_CLASS)) or EC2NodeClass()
        bought = outcome.from_info(info, self._reserved_capacity)
        return Instance(
            provider_id=facts.own_provider_id(info),
            claim_name=facts.tag(info, names.CLAIM_TAG),
            labels={
                **outcome.machine_labels(bought, node_class, None),
                labels.INSTANCE_TYPE: info.instance_type,
                labels.NODE_POOL: facts.tag(info, labels.NODE_POOL),
            },
            capacity={},
            allocatable={},
            created_at=info.launch_time or self._clock.now(),
            image_id=info.image_id,
            node_name=info.private_dns_name,
            terminating=facts.is_going(info),
        )
