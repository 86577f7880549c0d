"""The main job on a real control plane: pods wait, nodes join, pods are bound; with memory and CPU of the controller.

The simulated instances run in a process of their own. The floor is what the control plane takes by itself: the same pods,
bound by the same scheduler onto the nodes that the controller had launched, which are Ready then.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import NamedTuple

import msgspec

from bench.figures import Figure
from controlplane.harness import ControlPlane, Json
from controlplane.process import Controller, controller
from karpenter.api import crds, kinds
from karpenter.api.core import Node
from karpenter.kube.informer import Informer

NODE_CLASS: Json = {
    "apiVersion": "karpenter.kwok.sh/v1alpha1",
    "kind": "KWOKNodeClass",
    "metadata": {"name": "default"},
    "spec": {"nodeRegistrationDelay": "2s"},
}
#: Long enough for a computer that does other work as well.
_DEADLINE_SECONDS = 600.0
#: What the controller may take until so many pods are bound.
_CPU_SECONDS = {2000: 3.0}
_SHAPES = (("100m", "128Mi"), ("250m", "512Mi"), ("500m", "1Gi"), ("1", "2Gi"), ("1500m", "4Gi"))


def node_pool(consolidate_after: str = "5s") -> Json:
    """A pool as people write them, free to remove everything at once."""
    requirements = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
        {"key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["c", "m", "r"]},
        {"key": "karpenter.k8s.aws/instance-generation", "operator": "Gt", "values": ["4"]},
    ]
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "default"},
        "spec": {
            "template": {"spec": {"nodeClassRef": reference, "requirements": requirements}},
            "disruption": {"consolidateAfter": consolidate_after, "budgets": [{"nodes": "100%"}]},
        },
    }


def deployments(pods: int) -> list[Json]:
    """Deployments of five request shapes with this many pods together."""
    return [_deployment(number, pods // len(_SHAPES), *shape) for number, shape in enumerate(_SHAPES)]


def _deployment(number: int, replicas: int, cpu: str, memory: str) -> Json:
    labels = {"app": f"web-{number}"}
    container = {"name": "app", "image": "pause", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"web-{number}", "namespace": "default"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def figures(pods: int, target_seconds: float, *, nominate: bool) -> Iterator[Figure]:
    """One scale-up on a control plane of its own, and the same pods on the nodes that it left, without a controller."""
    label = f"{pods} pods, {'with' if nominate else 'without'} nomination"
    with ControlPlane(scheduler=True, controllers=True) as plane:
        plane.apply(*crds.custom_resource_definitions())
        plane.apply(NODE_CLASS, node_pool("Never"))
        with _kubelets(plane.kubeconfig):
            with _controller(plane, nominate=nominate) as running:
                running.await_line("Starting Controller")
                _await_storage(plane, running)
                before = running.cpu_seconds
                bound = asyncio.run(_bound(plane, pods))
                used = running.cpu_seconds - before
                yield Figure(f"{label}: bound after the last exists", bound.after_last, "s", target_seconds)
                yield Figure(
                    f"{label}: controller CPU until bound", used, "s", _CPU_SECONDS.get(pods), _requests(running)
                )
                yield from _of_controller(label, running)
            floor = asyncio.run(_bound_again(plane, pods))
    note = f"{bound.in_all:.1f} s, and {floor.in_all:.1f} s onto nodes that are Ready already"
    yield Figure(f"{label}: bound in all, to the scheduler alone", bound.in_all / floor.in_all, "x", 1.25, note)


def _await_storage(plane: ControlPlane, running: Controller) -> None:
    """Wait until the server has set up the storage of the kinds anew, as it does after the controller wrote to their CRDs."""
    running.until(running.is_ready, "be ready")
    for path in (
        "karpenter.sh/v1/nodepools",
        "karpenter.sh/v1/nodeclaims",
        "karpenter.kwok.sh/v1alpha1/kwoknodeclasses",
    ):
        plane.request("GET", f"/apis/{path}")


def _controller(plane: ControlPlane, *, nominate: bool) -> AbstractContextManager[Controller]:
    flags = ("--provider", "bench.kubelets:provider", "--nominate-pods", str(nominate).lower())
    return controller(plane.kubeconfig, *flags, environment={"PYTHONPATH": os.pathsep.join(sys.path)})


@contextmanager
def _kubelets(kubeconfig: str) -> Iterator[None]:
    """What runs on the instances, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-m", "bench.kubelets", kubeconfig], env=environment)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _requests(running: Controller) -> str:
    """The requests of the controller, the most frequent first."""
    counts: Counter[str] = Counter()
    for (name, labels), value in running.metrics().items():
        if name == "client_go_request_duration_seconds_count":
            described = dict(labels)
            counts[" ".join(filter(None, (described[key] for key in ("verb", "kind", "subresource"))))] += int(value)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common(8))


def _of_controller(label: str, running: Controller) -> Iterator[Figure]:
    decided = running.lines("found provisionable pod(s)")
    first_batch = int(str(running.lines("computed new nodeclaim(s) to fit pod(s)")[0]["nodeclaims"]))
    created = running.lines("created nodeclaim")
    decision = float(str(decided[0]["duration"]).removesuffix("ms")) / 1000
    whole = decision + (_logged_at(created[first_batch - 1]) - _logged_at(decided[0])).total_seconds()
    note = f"{first_batch} claims, decision {decision:.3f} s; {len(created) - first_batch} claims more in later passes"
    yield Figure(f"{label}: batch closed to claims created", whole, "s", 1.0, note)
    resident_target = 150.0 if label.startswith("500 ") else None
    yield Figure(f"{label}: controller resident", running.resident_mb, "MB", resident_target)


def _logged_at(line: Mapping[str, object]) -> datetime:
    """When a log line was written."""
    return datetime.fromisoformat(str(line["time"]))


class _Bound(NamedTuple):
    """Seconds until all pods were bound: after the last of them existed, and since the first was asked for."""

    after_last: float
    in_all: float


async def _bound(plane: ControlPlane, pods: int) -> _Bound:
    """Ask for pods, and wait until a watch sees all of them bound. Raises ``TimeoutError`` that says how far they came."""
    async with plane.client() as kube:
        informer = Informer(kube, kinds.POD)
        exist, bound = asyncio.Event(), asyncio.Event()
        seen: set[str] = set()
        placed: set[str] = set()

        def count(_old: object, new: object) -> None:
            if isinstance(new, kinds.POD.type):
                seen.add(new.metadata.uid)
                if new.spec.node_name:
                    placed.add(new.metadata.uid)
            if len(seen) >= pods:
                exist.set()
            if len(placed) >= pods:
                bound.set()

        informer.subscribe(count)
        following = asyncio.create_task(informer.run())
        began = time.monotonic()
        await asyncio.to_thread(plane.apply, *deployments(pods))
        try:
            async with asyncio.timeout(_DEADLINE_SECONDS):
                await exist.wait()
                started = time.monotonic()
                await bound.wait()
        except TimeoutError:
            raise TimeoutError(f"of {pods} pods {len(seen)} exist and {len(placed)} are bound") from None
        following.cancel()
        return _Bound(time.monotonic() - started, time.monotonic() - began)


async def _bound_again(plane: ControlPlane, pods: int) -> _Bound:
    """The same once more, after all pods are gone, while their nodes stay and there is one more of each.

    The scheduler spreads pods, so without more room it would leave some of them out of nodes that a plan had filled.
    """
    await asyncio.to_thread(plane.delete, *deployments(pods))
    async with plane.client() as kube:
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while (await kube.list(kinds.POD, "default")).items:
                await asyncio.sleep(1)
        nodes = (await kube.list(kinds.NODE)).items
    for number, node in enumerate(nodes):
        await asyncio.to_thread(_add_node, plane, f"more-{number}", node)
    return await _bound(plane, pods)


def _add_node(plane: ControlPlane, name: str, like: Node) -> None:
    """A Node that is Ready, of the same size and in the same place."""
    shown = {key: value for key, value in like.metadata.labels.items() if key.startswith("topology.")}
    status = {**msgspec.to_builtins(like.status), "conditions": [{"type": "Ready", "status": "True"}]}
    metadata: Json = {"name": name, "labels": {**shown, "kubernetes.io/hostname": name}}
    plane.request("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status})
    without_taints: Json = {"spec": {"taints": None}}
    plane.request("PATCH", f"/api/v1/nodes/{name}", without_taints, "application/merge-patch+json")
