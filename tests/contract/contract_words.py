"""Small helpers of the contract tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from karpenter.api import core
from karpenter.api.karpenter import (
    NodeClaim,
    NodeClaimSpec,
    NodeClaimTemplate,
    NodeClaimTemplateSpec,
    NodeClassReference,
    NodePool,
    NodePoolSpec,
    NodeSelectorRequirementWithMinValues,
)
from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta, OwnerReference, Wire
from karpenter.kube.errors import KubeError
from karpenter.kube.protocol import EventType, Kube, WatchEvent

T = TypeVar("T", bound=Wire)
R = TypeVar("R")
_DEADLINE_SECONDS = 30.0
_POLL_SECONDS = 0.05
_CLASS = NodeClassReference(group="karpenter.kwok.sh", kind="KWOKNodeClass", name="default")
_LINUX = NodeSelectorRequirementWithMinValues(key="kubernetes.io/os", operator="In", values=("linux",))


@dataclass(frozen=True)
class Backend:
    """An API server and the product's client of it."""

    kube: Kube
    #: Forgets the history kept for watches. A real server has none from before its CRDs were installed anyway.
    forget: Callable[[], None]


class _Container(core.Container, frozen=True, kw_only=True):
    """A container a real server accepts: decisions read no image, so the product's struct has none."""

    image: str


def pod(name: str, namespace: str, labels: Mapping[str, str] | None = None, **spec: object) -> core.Pod:
    """A pod no scheduler looks at."""
    return core.Pod(
        metadata=ObjectMeta(name=name, namespace=namespace, labels=labels or {}),
        spec=core.PodSpec(containers=(_Container(name="main", image="none"),), scheduler_name="nobody", **spec),  # type: ignore[arg-type]
    )


def config_map(name: str, namespace: str, **meta: object) -> core.ConfigMap:
    return core.ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace, **meta), data={"a": "1"})  # type: ignore[arg-type]


def pool(name: str) -> NodePool:
    spec = NodeClaimTemplateSpec(requirements=(_LINUX,), node_class_ref=_CLASS)
    return NodePool(metadata=ObjectMeta(name=name), spec=NodePoolSpec(template=NodeClaimTemplate(spec=spec)))


def claim(name: str) -> NodeClaim:
    return NodeClaim(metadata=ObjectMeta(name=name), spec=NodeClaimSpec(requirements=(_LINUX,), node_class_ref=_CLASS))


def owned_by(kind: Kind[T], meta: ObjectMeta) -> OwnerReference:
    return OwnerReference(api_version=kind.api_version, kind=kind.name, name=meta.name, uid=meta.uid, controller=True)


def condition(type_: str, status: str, reason: str = "Test") -> dict[str, str]:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": "",
        "lastTransitionTime": "2024-05-06T07:08:09Z",
    }


async def take(events: object, count: int) -> list[WatchEvent[Wire]]:
    """The next ``count`` events of a watch, bookmarks left out."""
    seen: list[WatchEvent[Wire]] = []
    async with asyncio.timeout(_DEADLINE_SECONDS), aclosing(events) as stream:  # type: ignore[type-var]
        async for event in stream:
            if event.type is not EventType.BOOKMARK:
                seen.append(event)
            if len(seen) == count:
                break
    return seen


async def eventually(attempt: Callable[[], Awaitable[R]], accept: Callable[[R], bool]) -> R:
    """The first accepted result of ``attempt`` before a deadline."""
    async with asyncio.timeout(_DEADLINE_SECONDS):
        while True:
            result = await attempt()
            if accept(result):
                return result
            await asyncio.sleep(_POLL_SECONDS)


async def outcome(call: Awaitable[object]) -> type[KubeError] | None:
    """The kind of error a call ends in, None when it succeeds."""
    try:
        await call
    except KubeError as error:
        return type(error)
    return None


async def run_pod(kube: Kube, name: str, namespace: str, *, ready: bool = True) -> None:
    """Bind a pod and report it running, as scheduler and kubelet would."""
    from karpenter.api.kinds import POD

    await kube.bind(name, namespace, "some-node")
    status = {"phase": "Running", "conditions": [condition("Ready", "True" if ready else "False")]}
    await kube.patch(POD, name, {"status": status}, namespace, subresource="status")
