"""A cloud that does what a test scripts, and a connection to the API server that records, refuses and cuts off writes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from karpenter.api import kinds
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.model.repair_policies import RepairPolicy
from karpenter.providers.contract import Instance, InstanceDrift, InstanceNotFound, RegistrationHook
from karpenter.simulation import LoopClock
from karpenter.simulation.apiserver import MemoryKube
from support.instance_types import inc

TYPES = inc(8)


@dataclass(frozen=True)
class Write:
    """One write of the controller, as it was asked for."""

    verb: str
    kind: str
    name: str
    body: Any = None
    subresource: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.kind}/{self.subresource}" if self.subresource else f"{self.verb} {self.kind}"


class InterceptedKube:
    """The controller's connection. ``refuse`` may raise before a write, ``after`` is told of every write that was done."""

    def __init__(self, inner: MemoryKube) -> None:
        self.inner = inner
        self.writes: list[Write] = []
        self.refuse: Callable[[Write], None] = lambda write: None
        self.after: Callable[[Write], None] = lambda write: None
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def get(self, *args: Any, **more: Any) -> Any:
        await self._live()
        return await self.inner.get(*args, **more)

    async def create(self, kind: Any, obj: Any) -> Any:
        return await self._do(Write("create", kind.name, obj.metadata.name, obj), self.inner.create(kind, obj))

    async def patch(self, kind: Any, name: str, patch: Any, namespace: str = "", **more: Any) -> Any:
        write = Write("patch", kind.name, name, patch, more.get("subresource", ""))
        return await self._do(write, self.inner.patch(kind, name, patch, namespace, **more))

    async def delete(self, kind: Any, name: str, namespace: str = "", **more: Any) -> None:
        await self._do(Write("delete", kind.name, name, more), self.inner.delete(kind, name, namespace, **more))

    async def evict(self, name: str, namespace: str, **more: Any) -> None:
        await self._do(Write("evict", "Pod", name, more), self.inner.evict(name, namespace, **more))

    async def _do(self, write: Write, call: Awaitable[Any]) -> Any:
        assert inspect.iscoroutine(call)
        try:
            await self._live()
            self.refuse(write)
        except BaseException:
            call.close()
            raise
        answer = await call
        self.writes.append(write)
        self.after(write)
        await self._live()
        return answer

    async def _live(self) -> None:
        """A process that crashed neither asks nor hears answers."""
        if self.dead:
            await asyncio.Event().wait()


class FakeCloud:
    """A cloud that does what a test says. ``refusals`` are raised by the next calls of a method, one each."""

    name = "fake"
    node_class_kinds = (kinds.KWOK_NODE_CLASS,)

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self.instances: dict[str, Instance] = {}
        self.launched: list[str] = []
        self.calls: list[tuple[str, str]] = []
        self.refusals: dict[str, list[Exception]] = {}
        #: How many delete calls an instance survives before it is gone.
        self.lingers = 1
        self.capacity = {"cpu": "4", "memory": "8Gi", "pods": "40"}
        self.hooks: tuple[RegistrationHook, ...] = ()
        #: Calls that never answer: names of methods, and of claims or provider IDs they are about ("*" for all). "created" is
        #: a create that does its work first.
        self.hangs: set[tuple[str, str]] = set()
        self._asked_to_go: dict[str, int] = {}

    def refuse(self, method: str, *errors: Exception) -> None:
        self.refusals.setdefault(method, []).extend(errors)

    async def _called(self, method: str, about: str) -> None:
        await asyncio.sleep(0)
        self.calls.append((method, about))
        await self._hang(method, about)
        waiting = self.refusals.get(method)
        if waiting:
            raise waiting.pop(0)

    async def _hang(self, method: str, about: str) -> None:
        if not self.hangs.isdisjoint({(method, about), (method, "*")}):
            await asyncio.Event().wait()

    async def create(self, claim: NodeClaim) -> Instance:
        await self._called("create", claim.metadata.name)
        provider_id = f"fake:///{claim.metadata.name}-{claim.metadata.uid}"
        if provider_id not in self.instances:
            amounts = res.parse_resources(self.capacity)
            self.launched.append(provider_id)
            own = {labels.INSTANCE_TYPE: "t3", labels.ZONE: "z1", labels.CAPACITY_TYPE: "on-demand"}
            self.instances[provider_id] = Instance(
                provider_id, claim.metadata.name, own, amounts, amounts, self._clock.now(), {"from": "cloud"}, "image-1"
            )
        await self._hang("created", claim.metadata.name)
        return self.instances[provider_id]

    async def delete(self, provider_id: str) -> None:
        await self._called("delete", provider_id)
        asked = self._asked_to_go[provider_id] = self._asked_to_go.get(provider_id, 0) + 1
        if provider_id not in self.instances:
            raise InstanceNotFound(provider_id)
        self.instances[provider_id] = replace(self.instances[provider_id], terminating=True)
        if asked > self.lingers:
            del self.instances[provider_id]
            raise InstanceNotFound(provider_id)

    async def get(self, provider_id: str) -> Instance:
        await self._called("get", provider_id)
        if provider_id not in self.instances:
            raise InstanceNotFound(provider_id)
        return self.instances[provider_id]

    async def list(self) -> tuple[Instance, ...]:
        await self._called("list", "")
        return tuple(self.instances.values())

    async def instance_types(self, pool: NodePool) -> tuple[InstanceType, ...]:
        await self._called("instance_types", pool.metadata.name)
        return TYPES

    async def drift(self, claim: NodeClaim) -> InstanceDrift | None:
        return None

    def repair_policies(self) -> tuple[RepairPolicy, ...]:
        return ()

    def registration_hooks(self) -> tuple[RegistrationHook, ...]:
        return self.hooks
