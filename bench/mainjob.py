"""The main job on a real control plane: pods wait, machines come, pods are bound; with memory and CPU of the controller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from datetime import datetime

from bench.figures import Figure
from controlplane.harness import ControlPlane, Json
from controlplane.process import Controller, controller
from karpenter.api import crds, kinds
from karpenter.kube.informer import Informer

NODE_CLASS: Json = {
    "apiVersion": "karpenter.kwok.sh/v1alpha1",
    "kind": "KWOKNodeClass",
    "metadata": {"name": "default"},
    "spec": {"nodeRegistrationDelay": "2s"},
}
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
    """One scale-up on a control plane of its own."""
    label = f"{pods} pods, {'with' if nominate else 'without'} nomination"
    with ControlPlane(scheduler=True, controllers=True) as plane:
        plane.apply(*crds.custom_resource_definitions())
        plane.apply(NODE_CLASS, node_pool("Never"))
        with controller(plane.kubeconfig, "--nominate-pods", str(nominate).lower()) as running:
            running.await_line("Starting Controller")
            before = running.cpu_seconds
            seconds = asyncio.run(_bound_seconds(plane, pods))
            used = running.cpu_seconds - before
            yield Figure(f"{label}: bound after the last exists", seconds, "s", target_seconds)
            yield Figure(f"{label}: controller CPU until bound", used, "s", None, "with its simulated kubelets")
            yield from _of_controller(label, running)


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


async def _bound_seconds(plane: ControlPlane, pods: int) -> float:
    """Seconds from the moment all pods exist until all are bound, as a watch sees it."""
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
        await asyncio.to_thread(plane.apply, *deployments(pods))
        await exist.wait()
        started = time.monotonic()
        await asyncio.wait_for(bound.wait(), 180)
        following.cancel()
        return time.monotonic() - started
