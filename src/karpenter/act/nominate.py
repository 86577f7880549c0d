"""Nomination: telling the scheduler which pods a new node was bought for.

With tight plans a scheduler that spreads pods over all open nodes strands some of them. So before a node opens, pods planned
for it get its name as ``status.nominatedNodeName``; only where the field is empty or holds a nomination of ours that is out of
date. Who is meant for which claim is what the latest pass said; nothing is stored. Schedulers that ignore the field lose nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import structlog

from karpenter.api.core import Pod
from karpenter.api.kinds import POD
from karpenter.cluster import ClusterState
from karpenter.cluster.snapshot import PodKey, pod_key
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.kube.protocol import Kube

_AT_ONCE = 32
#: The scheduler writes to the same pods; so often a nomination that met such a write is tried again.
_TRIES = 3
#: Longest a node waits for others that are being nominated for.
_TOGETHER_SECONDS = 5.0
_log = structlog.get_logger()


class Nominating(Protocol):
    """What the rest asks of nomination."""

    def assign(self, assigned: Mapping[str, Sequence[Pod]]) -> None:
        """What the latest pass planned: pods by the key of their machine (claim or node name)."""

    async def nominate_for(self, claim_name: str, node_name: str) -> None:
        """Nominate the pods planned for a claim to its node. Failures cost the nomination, never the registration."""

    async def nominate_ahead(self, claim_name: str, node_name: str) -> None:
        """The same while the machine is still starting, where its Node's name is known already."""

    async def nominate_to(self, pod: Pod, claim_name: str, node_name: str) -> None:
        """Nominate one pod to a node that is open, for a claim's sake (or, without claim, the node's)."""

    async def withdraw_stale(self) -> None:
        """Take back nominations of ours that the latest pass no longer means."""


@dataclass(frozen=True)
class _Nomination:
    """A nomination of ours: to which node, and for which claim's sake."""

    claim: str
    node: str


class NoNomination:
    """Nomination switched off: plain scheduling decides."""

    def assign(self, assigned: Mapping[str, Sequence[Pod]]) -> None:
        """Nobody asks."""

    async def nominate_for(self, claim_name: str, node_name: str) -> None:
        """Nobody is nominated."""

    async def nominate_ahead(self, claim_name: str, node_name: str) -> None:
        """Nobody is nominated."""

    async def nominate_to(self, pod: Pod, claim_name: str, node_name: str) -> None:
        """Nobody is nominated."""

    async def withdraw_stale(self) -> None:
        """Nothing was written."""


class Nominator:
    """Writes and takes back nominations. What it wrote itself it may take back."""

    def __init__(self, kube: Kube, state: ClusterState) -> None:
        self._kube = kube
        self._state = state
        self._assigned: Mapping[str, Sequence[PodKey]] = {}
        self._ours: dict[str, _Nomination] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._writing = 0
        self._quiet = asyncio.Event()

    def assign(self, assigned: Mapping[str, Sequence[Pod]]) -> None:
        """What the latest pass planned: pods by the key of their machine (claim or node name)."""
        self._assigned = {key: tuple(pod_key(pod) for pod in pods) for key, pods in assigned.items()}

    async def nominate_for(self, claim_name: str, node_name: str) -> None:
        """Nominate the pods planned for a claim to its node. Failures cost the nomination, never the registration."""
        await self.nominate_ahead(claim_name, node_name)
        if self._writing:
            await self._together()

    async def nominate_ahead(self, claim_name: str, node_name: str) -> None:
        """The same while the machine is still starting, where its Node's name is known already.

        Schedulers pass over a nomination to a Node that does not exist, and one patch per pod takes its time: better while
        nothing else can be done than while a ready machine waits.
        """
        pods = (self._state.pod(key) for key in self._assigned.get(claim_name, ()))
        waiting = [pod for pod in pods if pod is not None and self._may_nominate(pod, node_name)]
        if not waiting:
            return
        self._writing += 1
        self._quiet.clear()
        try:
            await asyncio.gather(*(self._nominate(pod, claim_name, node_name) for pod in waiting))
        finally:
            self._writing -= 1
            if not self._writing:
                self._quiet.set()

    async def nominate_to(self, pod: Pod, claim_name: str, node_name: str) -> None:
        """Nominate one pod to a node that is open. What the scheduler has done meanwhile stays as it is."""
        await self._nominate(pod, claim_name, node_name)

    async def _nominate(self, pod: Pod, claim_name: str, node_name: str) -> None:
        """Nominate against the version that was judged: what somebody else nominated meanwhile is not overwritten."""
        for _ in range(_TRIES):
            if not self._may_nominate(pod, node_name):
                return
            try:
                if await self._write(pod, node_name):
                    self._ours[pod.metadata.uid] = _Nomination(claim_name, node_name)
                return
            except Conflict:
                current = await self._read(pod)
            if current is None:
                return
            pod = current

    async def _read(self, pod: Pod) -> Pod | None:
        try:
            return await self._kube.get(POD, pod.metadata.name, pod.metadata.namespace)
        except KubeError:
            return None

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
            if ours is None or ours.node != pod.status.nominated_node_name:
                continue
            if meant.get(pod_key(pod)) not in (ours.claim, ours.node):
                stale.append(pod)
        await asyncio.gather(*(self._withdraw(pod) for pod in stale))
        living = {pod.metadata.uid for pod in self._state.waiting_pods()}
        self._ours = {uid: ours for uid, ours in self._ours.items() if uid in living}

    async def _withdraw(self, pod: Pod) -> None:
        with suppress(Conflict):  # changed meanwhile: the next pass judges it anew
            if await self._write(pod, None):
                self._ours.pop(pod.metadata.uid, None)

    def _may_nominate(self, pod: Pod, node_name: str) -> bool:
        current = pod.status.nominated_node_name
        if pod.spec.node_name or pod.metadata.deletion_timestamp is not None or current == node_name:
            return False
        ours = self._ours.get(pod.metadata.uid)
        return not current or (ours is not None and ours.node == current)

    async def _write(self, pod: Pod, node_name: str | None) -> bool:
        """Write a nomination or take it back (None); whether that was done. Raises ``Conflict`` when the pod has changed."""
        meta = pod.metadata
        patch = {"status": {"nominatedNodeName": node_name}}
        async with self._slots:
            try:
                await self._kube.patch(
                    POD, meta.name, patch, meta.namespace, subresource="status", resource_version=meta.resource_version
                )
            except Conflict:
                raise
            except NotFound:
                return False
            except KubeError as error:
                _log.error(
                    "nominating pod failed", Pod={"namespace": meta.namespace, "name": meta.name}, error=str(error)
                )
                return False
        return True
