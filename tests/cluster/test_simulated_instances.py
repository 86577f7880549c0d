"""The stand-in for instances against a real API server, scheduler and workload controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

from controlplane import deployed
from controlplane.harness import ControlPlane
from karpenter.api import crds
from karpenter.api.karpenter import NodeClaim, NodeClaimResourceRequests, NodeClaimSpec, NodeClassReference
from karpenter.api.kinds import KWOK_NODE_CLASS, LEASE, NODE, NODE_CLAIM, POD
from karpenter.api.kwok_node_class import KWOKNodeClass
from karpenter.api.meta import ObjectMeta
from karpenter.instancetypes import ec2_packaged_types
from karpenter.kube.errors import NotFound
from karpenter.kube.protocol import Kube
from karpenter.model import conditions
from karpenter.model.clock import SystemClock
from karpenter.providers.simulated import SimulatedNodes, SimulatedProvider, SimulatedTiming

NAME = "simulated-instances"
QUICK = SimulatedTiming(shutdown=timedelta(seconds=1), lease_renewal=timedelta(seconds=1))
_DEADLINE_SECONDS = 60


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _DEADLINE_SECONDS
    while not await condition():
        assert loop.time() < deadline, f"waited a minute for {what}"
        await asyncio.sleep(0.1)


def workload(kind: str, **spec: object) -> dict[str, object]:
    annotations = {"karpenter.kwok.sh/run-seconds": "1"} if kind == "Job" else {}
    template = {
        "metadata": {"labels": {"app": f"{NAME}-{kind.lower()}"}, "annotations": annotations},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": NAME},
            "containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": "100m"}}}],
            **({"restartPolicy": "Never"} if kind == "Job" else {}),
        },
    }
    return {
        "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
        "kind": kind,
        "metadata": {"name": NAME, "namespace": "default"},
        "spec": {"template": template, **spec},
    }


async def phases(kube: Kube, kind: str) -> list[str]:
    listing = await kube.list(POD, "default", label_selector=f"app={NAME}-{kind.lower()}")
    return [pod.status.phase for pod in listing.items]


async def is_gone(kube: Kube, node: str) -> bool:
    with suppress(NotFound):
        await kube.get(NODE, node)
        return False
    return True


async def test_a_simulated_instance_lives_and_ends_on_a_real_cluster(working_control_plane: ControlPlane) -> None:
    """OPS-250 to OPS-266: what we write is accepted, the scheduler uses the Node, controllers see their pods run and end."""
    working_control_plane.apply(*crds.custom_resource_definitions())
    with deployed.installed(working_control_plane) as account:
        async with working_control_plane.client() as kube, account.client() as ours:
            claim = await _claimed(kube)
            provider = SimulatedProvider(ours, SystemClock(), ec2_packaged_types.packaged_instance_types())
            simulated_nodes = asyncio.create_task(SimulatedNodes(ours, SystemClock(), QUICK).run())
            try:
                await _play(kube, provider, claim, working_control_plane)
            finally:
                simulated_nodes.cancel()
                with suppress(asyncio.CancelledError):
                    await simulated_nodes


async def _claimed(kube: Kube) -> NodeClaim:
    await kube.create(KWOK_NODE_CLASS, KWOKNodeClass(metadata=ObjectMeta(name=NAME)))
    reference = NodeClassReference(group="karpenter.kwok.sh", kind="KWOKNodeClass", name=NAME)
    resources = NodeClaimResourceRequests(requests={"cpu": "1", "memory": "1Gi"})
    spec = NodeClaimSpec(requirements=(), node_class_ref=reference, resources=resources)
    return await kube.create(NODE_CLAIM, NodeClaim(metadata=ObjectMeta(name=NAME), spec=spec))


async def _play(kube: Kube, provider: SimulatedProvider, claim: NodeClaim, control_plane: ControlPlane) -> None:
    launched = await provider.create(claim)
    name = launched.provider_id.removeprefix("kwok://")

    async def is_up() -> bool:
        with suppress(NotFound):
            node = await kube.get(NODE, name)
            taints = [taint.key for taint in node.spec.taints]
            return conditions.is_true(node.status.conditions, "Ready") and taints == ["karpenter.sh/unregistered"]
        return False

    async def are(kind: str, expected: list[str]) -> bool:
        return await phases(kube, kind) == expected

    await until(is_up, "the Node to be ready")
    await kube.patch(NODE, name, {"spec": {"taints": []}})
    labels = {"app": f"{NAME}-deployment"}
    control_plane.apply(workload("Deployment", replicas=3, selector={"matchLabels": labels}), workload("Job"))
    await until(lambda: are("Deployment", ["Running"] * 3), "the Deployment to run")
    await until(lambda: are("Job", ["Succeeded"]), "the Job to succeed")

    async def has_heartbeat() -> bool:
        with suppress(NotFound):
            return (await kube.get(LEASE, name, "kube-node-lease")).spec.renew_time is not None
        return False

    await until(has_heartbeat, "the first heartbeat")

    async def job_is_complete() -> bool:
        job = control_plane.request("GET", f"/apis/batch/v1/namespaces/default/jobs/{NAME}")
        status = job["status"]
        return isinstance(status, dict) and status.get("succeeded") == 1

    await until(job_is_complete, "the Job to be complete")
    control_plane.apply(workload("Deployment", replicas=0, selector={"matchLabels": labels}))
    await until(lambda: are("Deployment", []), "the pods to stop")
    await provider.delete(launched.provider_id)
    await until(lambda: is_gone(kube, name), "the Node to go")

    async def has_ended() -> bool:
        return await provider.list() == ()

    await until(has_ended, "the instance to end")
