"""The contract between the controllers and a cloud (OPS-210 ff.): ten methods and five ways to fail.

ProviderError                 anything else: retried with back-off
├── InstanceNotFound          the instance is completely gone
├── InsufficientCapacity      what was asked for cannot be had now: give the claim up, plan again
├── NodeClassNotReady         the class is missing or not ready
└── LaunchFailed              refused with a reason the user should read
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.kube.protocol import Kube
from karpenter.model.clock import Clock
from karpenter.model.expected_error import ExpectedError
from karpenter.model.repair_policies import RepairPolicy
from karpenter.model.resources import Resources


class ProviderError(ExpectedError):
    """A call to the cloud failed."""


class InstanceNotFound(ProviderError):
    """The instance does not exist any more (OPS-225)."""

    def __str__(self) -> str:
        return "nodeclaim not found, " + super().__str__()


class InsufficientCapacity(ProviderError):
    """The cloud has none of the requested instances now (OPS-226)."""

    def __str__(self) -> str:
        return "insufficient capacity, " + super().__str__()


class NodeClassNotReady(ProviderError):
    """The node class is not usable (OPS-227)."""

    def __str__(self) -> str:
        return "NodeClassRef not ready, " + super().__str__()


class LaunchFailed(ProviderError):
    """The cloud refused the launch (OPS-228). ``reason`` and ``message`` become those of the claim's Launched condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return "creating nodeclaim, " + super().__str__()


class RebootNotImplemented(ProviderError):
    """The provider cannot reboot instances (K15-510)."""

    def __init__(self) -> None:
        super().__init__("reboot is not implemented by this cloud provider")


class RebootFailed(ProviderError):
    """A reboot was refused for good, such as for a missing permission: it is not tried again (K15-510)."""


@dataclass(frozen=True)
class Instance:
    """An instance as the cloud reports it.

    ``claim_name`` is the NodeClaim it was launched for; ``labels`` are those resolved at launch (type, zone, capacity type
    and the type's own labels). ``node_name`` is the name its Node will have, where the cloud knows that beforehand.
    """

    provider_id: str
    claim_name: str
    labels: dict[str, str]
    capacity: Resources
    allocatable: Resources
    created_at: datetime
    annotations: dict[str, str] = field(default_factory=dict)
    image_id: str = ""
    node_name: str = ""
    terminating: bool = False


@dataclass(frozen=True)
class InstanceDrift:
    """How an instance differs from what its class asks for now: a reason as conditions have them, and which part it is.

    They become those of the claim's ``Drifted`` condition; without a message the reason stands for it.
    """

    reason: str
    message: str = ""


@dataclass(frozen=True)
class HookSatisfied:
    """A registration hook has nothing left to wait for. What it learned goes onto the claim, and from there to the Node."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HookPending:
    """A registration hook is not satisfied yet. It is asked again after this long, with growing pauses where it does not say."""

    retry_after: timedelta | None = None


class RegistrationHook(Protocol):
    """Something a cloud has to finish for an instance before pods may come (OPS-030)."""

    @property
    def name(self) -> str:
        """What conditions and log lines call it."""

    async def check(self, claim: NodeClaim) -> HookSatisfied | HookPending:
        """Whether the claim's instance, whose Node has joined, may be registered. Raises ``ProviderError``. Asked repeatedly."""


class CloudProvider(Protocol):
    """What a cloud must be able to do. All methods raise ``ProviderError`` and nothing else for cloud faults."""

    async def create(self, claim: NodeClaim) -> Instance:
        """Launch one instance for the claim; calling again for the same claim (name and uid) returns the same instance."""

    async def delete(self, provider_id: str) -> None:
        """Ask for the instance to go; ``InstanceNotFound`` once it is completely gone. Called until then."""

    async def get(self, provider_id: str) -> Instance:
        """One instance; ``InstanceNotFound`` when it is gone."""

    async def list(self) -> tuple[Instance, ...]:
        """All instances of this cluster, those already terminating marked as such."""

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        """Everything the pool's class could use, also types without an available offering.

        Returns the identical tuple while nothing changed, so that callers can cache by identity.
        """

    async def drift(self, claim: NodeClaim) -> InstanceDrift | None:
        """How the instance no longer matches its class; None when it does."""

    def repair_policies(self) -> tuple[RepairPolicy, ...]:
        """Node conditions that mean broken: a static set, read once (K15-511). Node repair needs a valid one (K15-204)."""

    def registration_hooks(self) -> tuple[RegistrationHook, ...]:
        """What must be satisfied before a Node is opened to pods, in the order of reports; mostly nothing (OPS-220)."""

    @property
    def name(self) -> str:
        """Short name, the metric label ``provider``."""

    @property
    def node_class_kinds(self) -> tuple[Kind[Wire], ...]:
        """Kinds of node classes this provider serves; claims and pools of other classes are left alone."""


@runtime_checkable
class GarbageCollectingProvider(Protocol):
    """A provider that ends instances without a claim itself (OPS-266)."""

    async def collect_garbage(self) -> object:
        """Run once; called periodically while this process leads. Raises ``ProviderError``."""


@runtime_checkable
class RebootingProvider(Protocol):
    """A provider that can restart an instance in place (K15-510)."""

    async def reboot(self, claim: NodeClaim, operation_id: str) -> None:
        """Have the claim's instance restarted; returns once that is accepted. Repeated calls with an ID are one reboot.

        Raises ``RebootNotImplemented`` and ``RebootFailed``, which are final, ``InstanceNotFound``, and ``ProviderError``.
        """


@dataclass(frozen=True)
class ProviderContext:
    """What a provider of another package is made with. ``kube`` writes only while this process leads."""

    kube: Kube
    clock: Clock


#: What ``--provider MODULE:NAME`` names: a class or a function.
ProviderFactory = Callable[[ProviderContext], CloudProvider]


class UnevaluatedNodePool(ProviderError):
    """The pool's overlays have not been judged yet; soon they will be (OPS-229)."""
