"""Many nodes drained at once on a real control plane: how long it takes, and how fast evictions are asked for.

Every node holds pods nobody replaces, so that nothing but endings is measured: eviction, the pods' own two seconds, five seconds
of shutting down, finalizers. When evictions were asked for is read from the API server's audit log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

import msgspec

from bench.figures import Figure
from bench.mainjob import NODE_CLASS
from controlplane import deployed
from controlplane.harness import ControlPlane
from controlplane.process import Controller, controller
from karpenter.api import crds, kinds
from karpenter.api.karpenter import NodeClaim, NodeClaimResourceRequests, NodeClaimSpec, NodeClassReference
from karpenter.api.kinds import Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.kube import config
from karpenter.kube.client import KubeClient
from karpenter.model import conditions
from karpenter.model.token_bucket import TokenBucket

NODES, PODS_PER_NODE = 200, 20
_TARGET_SECONDS = 60.0
#: The eviction limit at one core (OPS-702): at once, and per second after that.
_BURST, _PER_SECOND = 1000, 100
_WINDOWS_SECONDS = (1.0, 20.0)
_OWN_QPS = 2000
_DEADLINE_SECONDS = 600.0


class _Container(Wire, frozen=True, kw_only=True):
    name: str
    image: str


class _Spec(Wire, frozen=True, kw_only=True):
    node_name: str
    containers: tuple[_Container, ...]


class _Pod(Wire, frozen=True, kw_only=True):
    """A pod as a user writes it: the product's own struct leaves out what it has no use for."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec


_PODS = Kind("", "v1", "pods", "Pod", True, _Pod)


class _Object(Wire, frozen=True, kw_only=True):
    subresource: str = ""


class _Call(Wire, frozen=True, kw_only=True):
    object_ref: _Object = _Object()
    request_received_timestamp: datetime


def figures() -> Iterator[Figure]:
    """One drain of everything, on a control plane of its own."""
    with ControlPlane(scheduler=True, controllers=True) as plane:
        plane.apply(*crds.custom_resource_definitions())
        plane.apply(NODE_CLASS)
        with deployed.installed(plane) as account, controller(account.kubeconfig) as running:
            running.await_line("Starting Controller")
            yield from _figures(plane, running, asyncio.run(_drain(plane, running)))


@dataclass(frozen=True)
class _Taken:
    """What a drain took: seconds on the clock, and of the controller's processor time."""

    seconds: float
    cpu_seconds: float


def _figures(plane: ControlPlane, running: Controller, taken: _Taken) -> Iterator[Figure]:
    size = f"{NODES} nodes of {PODS_PER_NODE} pods"
    asked = _evictions(plane)
    yield Figure("all nodes drained and gone", taken.seconds, "s", _TARGET_SECONDS, size)
    for window in _WINDOWS_SECONDS:
        note = f"{len(asked)} calls for {NODES * PODS_PER_NODE} pods"
        limit = _BURST + _PER_SECOND * window
        yield Figure(f"most evictions asked for within {window:.0f} s", _most_within(asked, window), "", limit, note)
    yield Figure("controller CPU while draining", taken.cpu_seconds, "s")
    yield Figure("controller resident", running.resident_mb, "MB")


def _evictions(plane: ControlPlane) -> list[float]:
    """When evictions were asked for, in seconds."""
    lines = (plane.folder / "audit.log").read_bytes().rpartition(b"\n")[0].splitlines()
    calls = (msgspec.json.decode(line, type=_Call) for line in lines)
    return sorted(
        call.request_received_timestamp.timestamp() for call in calls if call.object_ref.subresource == "eviction"
    )


def _most_within(times: list[float], seconds: float) -> int:
    most = first = 0
    for last, now in enumerate(times):
        while now - times[first] > seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


async def _drain(plane: ControlPlane, running: Controller) -> _Taken:
    """What it takes from the first deletion until no Node and no claim is left."""
    connection = config.load(plane.kubeconfig)
    async with config.connect(connection, TokenBucket(_OWN_QPS, _OWN_QPS)) as kube:
        nodes = await _nodes(kube)
        await asyncio.gather(*(kube.create(_PODS, pod) for node in nodes for pod in _pods(node)))
        await _until(lambda: _all_run(kube))
        started, cpu_before = time.monotonic(), running.cpu_seconds
        claims = (await kube.list(kinds.NODE_CLAIM)).items
        await asyncio.gather(*(kube.delete(kinds.NODE_CLAIM, claim.metadata.name) for claim in claims))
        await _until(lambda: _all_gone(kube))
        return _Taken(time.monotonic() - started, running.cpu_seconds - cpu_before)


async def _nodes(kube: KubeClient) -> list[str]:
    """Names of the Nodes of as many claims, all initialised."""
    reference = NodeClassReference(group="karpenter.kwok.sh", kind="KWOKNodeClass", name="default")
    resources = NodeClaimResourceRequests(requests={"cpu": "1", "pods": str(PODS_PER_NODE)})
    spec = NodeClaimSpec(requirements=(), node_class_ref=reference, resources=resources)
    names = [f"drained-{number:03}" for number in range(NODES)]
    await asyncio.gather(
        *(kube.create(kinds.NODE_CLAIM, NodeClaim(metadata=ObjectMeta(name=name), spec=spec)) for name in names)
    )
    await _until(lambda: _all_initialised(kube))
    return [claim.status.node_name for claim in (await kube.list(kinds.NODE_CLAIM)).items]


def _pods(node: str) -> list[_Pod]:
    spec = _Spec(node_name=node, containers=(_Container(name="app", image="pause"),))
    return [
        _Pod(metadata=ObjectMeta(name=f"{node}-{number:02}", namespace="default"), spec=spec)
        for number in range(PODS_PER_NODE)
    ]


async def _all_initialised(kube: KubeClient) -> bool:
    claims = (await kube.list(kinds.NODE_CLAIM)).items
    return all(conditions.is_true(claim.status.conditions, "Initialized") for claim in claims)


async def _all_run(kube: KubeClient) -> bool:
    pods = (await kube.list(kinds.POD, "default")).items
    return all(pod.status.phase == "Running" for pod in pods)


async def _all_gone(kube: KubeClient) -> bool:
    return not (await kube.list(kinds.NODE_CLAIM)).items and not (await kube.list(kinds.NODE)).items


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + _DEADLINE_SECONDS
    while not await holds():
        if time.monotonic() > end:
            raise TimeoutError("the cluster did not get there in ten minutes")
        await asyncio.sleep(0.5)
