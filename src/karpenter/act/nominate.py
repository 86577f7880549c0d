"""Nomination: telling the scheduler which pods a new node was bought for.

With tight plans a scheduler that spreads pods over all open nodes strands some of them. So before a node opens, pods planned
for it get its name as ``status.nominatedNodeName``; only where the field is empty or holds a nomination of ours that is out of
date. Who is meant for which claim is what the latest pass said; nothing is stored. Schedulers that ignore the field lose nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import structlog

from karpenter.api.core import Pod
from karpenter.api.kinds import POD
from karpenter.cluster import ClusterState
from karpenter.cluster.snapshot import PodKey, pod_key
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.kube.protocol import Writer

_AT_ONCE = 32
#: Longest a node waits for others that are being nominated for.
_TOGETHER_SECONDS = 5.0
_log = structlog.get_logger()


class Nominating(Protocol):
    """What the rest asks of nomination."""

    def assign(self, assigned: Mapping[str, Sequence[Pod]]) -> None:
        """What the latest pass planned: pods by the key of their machine (claim or node name)."""

    async def nominate_for(self, claim_name: str, node_name: str) -> None:
        """Nominate the pods planned for a claim to its node. Failures cost the nomination, never the registration."""

    async def withdraw_stale(self) -> None:
        """Take back nominations of ours that the latest pass no longer means."""


class NoNomination:
    """Nomination switched off: plain scheduling decides."""

    def assign(self, assigned: Mapping[str, Sequence[Pod]]) -> None:
        """Nobody asks."""

    async def nominate_for(self, claim_name: str, node_name: str) -> None:
        """Nobody is nominated."""

    async def withdraw_stale(self) -> None:
        """Nothing was written."""


class Nominator:
    """Writes and takes back nominations. What it wrote itself it may take back."""

    def __init__(self, kube: Writer, state: ClusterState) -> None:
        self._kube = kube
        self._state = state
        self._assigned: Mapping[str, Sequence[PodKey]] = {}
        self._ours: dict[str, str] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._writing = 0
        self._quiet = asyncio.Event()

    def assign(self, assigned: Mapping[str, Sequence[Pod]]) -> None:
        """What the latest pass planned: pods by the key of their machine (claim or node name)."""
        self._assigned = {key: tuple(pod_key(pod) for pod in pods) for key, pods in assigned.items()}

    async def nominate_for(self, claim_name: str, node_name: str) -> None:
        """Nominate the pods planned for a claim to its node. Failures cost the nomination, never the registration."""
        pods = (self._state.pod(key) for key in self._assigned.get(claim_name, ()))
        waiting = [pod for pod in pods if pod is not None and self._may_nominate(pod, node_name)]
        if not waiting:
            return
        self._writing += 1
        self._quiet.clear()
        try:
            await asyncio.gather(*(self._write(pod, node_name) for pod in waiting))
        finally:
            self._writing -= 1
            if not self._writing:
                self._quiet.set()
        await self._together()

    async def _together(self) -> None:
        """Wait a moment for nodes that join at the same time, so that they open together.

        A scheduler tries every waiting pod when the first of them opens; a pod nominated to one still closed would fail
        and be set back by seconds.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), _TOGETHER_SECONDS)

    async def withdraw_stale(self) -> None:
        """Take back nominations of ours that the latest pass no longer means."""
        meant = {key: name for name, keys in self._assigned.items() for key in keys}
        stale = []
        for pod in self._state.waiting_pods():
            ours = self._ours.get(pod.metadata.uid)
            if ours and ours == pod.status.nominated_node_name and not self._is_meant(meant.get(pod_key(pod)), ours):
                stale.append(pod)
        await asyncio.gather(*(self._write(pod, None) for pod in stale))
        living = {pod.metadata.uid for pod in self._state.waiting_pods()}
        self._ours = {uid: node for uid, node in self._ours.items() if uid in living}

    def _is_meant(self, machine: str | None, node_name: str) -> bool:
        if machine is None:
            return False
        claim = self._state.claim(machine)
        return machine == node_name or (claim is not None and claim.status.node_name in ("", node_name))

    def _may_nominate(self, pod: Pod, node_name: str) -> bool:
        current = pod.status.nominated_node_name
        if pod.spec.node_name or pod.metadata.deletion_timestamp is not None or current == node_name:
            return False
        return not current or self._ours.get(pod.metadata.uid) == current

    async def _write(self, pod: Pod, node_name: str | None) -> None:
        meta = pod.metadata
        async with self._slots:
            try:
                await self._kube.patch(
                    POD, meta.name, {"status": {"nominatedNodeName": node_name}}, meta.namespace, subresource="status"
                )
            except (NotFound, Conflict):
                return
            except KubeError as error:
                _log.warning(
                    "nominating pod failed", Pod={"namespace": meta.namespace, "name": meta.name}, error=str(error)
                )
                return
        if node_name is None:
            self._ours.pop(meta.uid, None)
        else:
            self._ours[meta.uid] = node_name
