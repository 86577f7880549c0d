"""Deleting pods whose node is running out of time, past budgets and protection (DIS-530, DIS-535, DIS-536)."""

from __future__ import annotations

import asyncio
from datetime import datetime

import structlog

from karpenter.act.events import NORMAL, WARNING, Happening, about_node, about_pod
from karpenter.act.world import World
from karpenter.api.core import Node, Pod
from karpenter.api.kinds import POD
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.model.clock import rfc3339

#: A pod deleted already is deleted once more only after so long: where the API server's clock is ahead of ours the time it
#: grants always ends too late, and each look would delete anew.
_AGAIN_AFTER_SECONDS = 10.0
_log = structlog.get_logger()


def is_forced(pod: Pod, deadline: datetime | None, now: datetime) -> bool:
    """Whether the pod must be deleted now for its node to meet the deadline (DIS-530)."""
    if deadline is None:
        return False
    deleted = pod.metadata.deletion_timestamp
    if deleted is not None:
        return deleted > deadline
    grace = pod.spec.termination_grace_period_seconds
    return grace is not None and (deadline - now).total_seconds() < grace


class Forcer:
    """Deletes pods with what time is left, at least a second: never at once, or two of them could run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._deleted_at: dict[str, float] = {}
        self._forget_at = 0.0

    async def delete(self, pods: list[Pod], node: Node, deadline: datetime) -> None:
        """Delete these pods of the node. One that cannot be deleted now is said, and does not keep the others."""
        due = [pod for pod in pods if self._is_due(pod.metadata.uid)]
        await asyncio.gather(*(self._delete(pod, node, deadline) for pod in due))

    def _is_due(self, uid: str) -> bool:
        now = asyncio.get_running_loop().time()
        if now >= self._forget_at:
            self._deleted_at = {uid: at for uid, at in self._deleted_at.items() if now - at < _AGAIN_AFTER_SECONDS}
            self._forget_at = now + _AGAIN_AFTER_SECONDS
        return now - self._deleted_at.get(uid, -_AGAIN_AFTER_SECONDS) >= _AGAIN_AFTER_SECONDS

    async def _delete(self, pod: Pod, node: Node, deadline: datetime) -> None:
        meta = pod.metadata
        grace = max(1, int((deadline - self._world.clock.now()).total_seconds()))
        try:
            await self._world.kube.delete(POD, meta.name, meta.namespace, uid=meta.uid, grace_period_seconds=grace)
        except (NotFound, Conflict):
            return
        except KubeError as error:
            self._say_failed(pod, node, error)
            return
        self._deleted_at[meta.uid] = asyncio.get_running_loop().time()
        self._say(pod, grace, deadline)

    def _say_failed(self, pod: Pod, node: Node, error: KubeError) -> None:
        namespace, name = pod.metadata.namespace, pod.metadata.name
        _log.error("deleting pod failed", Pod={"namespace": namespace, "name": name}, error=str(error))
        text = f"Failed to drain node, deleting pod {namespace}/{name}: {error}"
        about = about_node(node.metadata)
        self._world.events.publish(Happening(about, WARNING, "FailedDraining", text, (namespace, name)))

    def _say(self, pod: Pod, grace: int, deadline: datetime) -> None:
        wanted = pod.spec.termination_grace_period_seconds
        end = rfc3339(deadline)
        _log.debug(
            "deleting pod",
            **{
                "namespace": pod.metadata.namespace,
                "name": pod.metadata.name,
                "pod.terminationGracePeriodSeconds": wanted,
                "delete.gracePeriodSeconds": grace,
                "nodeclaim.terminationTime": end,
            },
        )
        text = (
            f"Deleted the pod to accommodate the terminationTime {end} of the node. The pod was granted {grace} seconds of "
            f"grace-period of its {wanted} terminationGracePeriodSeconds. This bypasses the PDB of the pod and the "
            "do-not-disrupt annotation."
        )
        self._world.events.publish(Happening(about_pod(pod), NORMAL, "Disrupted", text))
