"""Nomination: telling the scheduler which pods a new node was launched for.

With tight plans a scheduler that spreads pods over all open nodes strands some of them. So before a node opens, pods planned
for it get its name as ``status.nominatedNodeName``; only where the field is empty or holds an outdated nomination of ours. The
latest pass decides which pods belong to which claim; nothing is stored. Schedulers that ignore the field lose nothing.

A scheduler keeps the room of a nominated pod free, but it tries every waiting pod whenever any node opens, and removes the
nomination of a pod whose node is still closed; then any pod may take the room. Each try that fails also costs the scheduler more
the more nominations there are. Four measures prevent that:

* While an instance starts, only pods are nominated that the scheduler has tried: it will soon try the others.
* Nodes that join within moments of each other gather, and open together when the pods of all of them are nominated.
* Before they do, nominations that were lost meanwhile are written again, and all have come back through the watch: a scheduler
  watches pods and nodes separately, and has usually received these pods by then.
* A pod that loses its nomination to a node that has just opened gets it again, a few times: a scheduling attempt that began
  earlier removed it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from karpenter.api.core import Pod
from karpenter.api.kinds import POD
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.kube.protocol import Kube
from karpenter.model import pods
from karpenter.provisioning.opening_batches import OpeningBatches
from karpenter.runtime.batch_window import BatchWindow
from karpenter.state import ClusterState
from karpenter.state.snapshot import PodKey, pod_key

_MAX_CONCURRENT_PATCHES = 32
#: Nodes opened at once. As many as possible: until the last of them is open, the scheduler tries pods in vain.
_MAX_CONCURRENT_OPENINGS = 128
#: The scheduler writes to the same pods; so often a nomination that met such a write is tried again.
_MAX_ATTEMPTS = 3
#: Nodes open together once none has joined for so long, and none waits longer for others to join than that.
_OPENING_WINDOW = BatchWindow(idle_seconds=1.0, max_seconds=5.0)
#: None waits longer than that for nominations to others that have joined.
_LONGEST_PREPARATION_SECONDS = 15.0
#: Longest a node stays closed for the sake of nominations that are lost again and again, or never come back.
_OBSERVE_TIMEOUT_SECONDS = 3.0
#: So often a nomination to an open node is given again: a pod that keeps losing it does not fit there.
_MAX_REPEATS = 3
_log = structlog.get_logger()


class PodNominator(Protocol):
    """The interface of nomination for other components."""

    def set_planned_pods(self, planned_pods: Mapping[str, Sequence[Pod]]) -> None:
        """What the latest pass planned: pods by the key of their node (NodeClaim or Node name)."""

    def opening(self, claim_name: str, node_name: str) -> AbstractAsyncContextManager[None]:
        """Nominate the pods planned for a claim to its node, which is to be opened inside.

        Entering it takes as long as others are waited for. Failures cost the nomination, never the registration.
        """

    async def nominate_planned_pods(self, claim_name: str, node_name: str) -> None:
        """The same while the instance is still starting, where its Node's name is known already: pods the scheduler has tried."""

    async def nominate_pod(self, pod: Pod, claim_name: str, node_name: str) -> None:
        """Nominate one pod to a node that is open, for a claim's sake (or, without claim, the node's)."""

    async def withdraw_stale(self) -> None:
        """Take back nominations of ours that the latest pass no longer means."""

    def pod_updated(self, pod: Pod) -> None:
        """The watch delivered this version of a pod."""

    async def run(self) -> None:
        """Give nominations again that were lost to a node just open, until cancelled."""


@dataclass(frozen=True)
class _Nomination:
    """A nomination of ours: to which node, and for which claim's sake.

    ``observed``: it has come back through the watch. ``repeats``: how often it was given before.
    """

    claim: str
    node: str
    repeats: int = 0
    observed: bool = False


class DisabledNominator:
    """Nomination switched off: plain scheduling decides."""

    def set_planned_pods(self, planned_pods: Mapping[str, Sequence[Pod]]) -> None:
        """Does nothing: no pod is nominated."""

    def opening(self, claim_name: str, node_name: str) -> AbstractAsyncContextManager[None]:
        """A context that does nothing: no pod is nominated."""
        return nullcontext()

    async def nominate_planned_pods(self, claim_name: str, node_name: str) -> None:
        """Does nothing: no pod is nominated."""

    async def nominate_pod(self, pod: Pod, claim_name: str, node_name: str) -> None:
        """Does nothing: no pod is nominated."""

    async def withdraw_stale(self) -> None:
        """Nothing was written."""

    def pod_updated(self, pod: Pod) -> None:
        """Does nothing: no nomination was written."""

    async def run(self) -> None:
        """Nothing can be lost."""
        await asyncio.Event().wait()


class Nominator:
    """Writes and takes back nominations. What it wrote itself it may take back."""

    def __init__(self, kube: Kube, state: ClusterState) -> None:
        self._kube = kube
        self._state = state
        self._planned_pods: Mapping[str, Sequence[PodKey]] = {}
        #: By the pod's UID.
        self._own_nominations: dict[str, _Nomination] = {}
        #: Claims whose nodes have joined, and those of them whose nodes are open as far as we are concerned.
        self._joined_claims: set[str] = set()
        self._open_claims: set[str] = set()
        self._patch_slots = asyncio.Semaphore(_MAX_CONCURRENT_PATCHES)
        self._opening_slots = asyncio.Semaphore(_MAX_CONCURRENT_OPENINGS)
        self._openings = OpeningBatches(_OPENING_WINDOW, _LONGEST_PREPARATION_SECONDS)
        #: Names of the Nodes that will come, by claim.
        self._expected_nodes: dict[str, str] = {}
        #: By the pod's UID the expected claim whose nomination it has lost already.
        self._lost_early: dict[str, str] = {}
        #: Set when something has become of nominations for that claim.
        self._claim_changed: dict[str, asyncio.Event] = {}
        #: Pods that have yet to be given a nomination, again or as soon as the scheduler has tried them.
        self._due: asyncio.Queue[tuple[PodKey, _Nomination]] = asyncio.Queue()

    def set_planned_pods(self, planned_pods: Mapping[str, Sequence[Pod]]) -> None:
        """What the latest pass planned: pods by the key of their node (NodeClaim or Node name)."""
        self._planned_pods = {key: tuple(pod_key(pod) for pod in pods) for key, pods in planned_pods.items()}
        self._joined_claims &= planned_pods.keys()
        self._open_claims &= planned_pods.keys()
        self._expected_nodes = {claim: node for claim, node in self._expected_nodes.items() if claim in planned_pods}
        self._lost_early = {uid: claim for uid, claim in self._lost_early.items() if claim in self._expected_nodes}

    @asynccontextmanager
    async def opening(self, claim_name: str, node_name: str) -> AsyncIterator[None]:
        """Nominate the pods planned for a claim to its node, which is to be opened inside.

        Entering it takes as long as others are waited for. Failures cost the nomination, never the registration.
        """
        self._expected_nodes.pop(claim_name, None)
        self._joined_claims.add(claim_name)
        if self._planned_pods.get(claim_name):  # a node that no pod was planned for is not waited for
            await self._prepare(claim_name, node_name)
        async with self._opening_slots:
            await self._await_observed(claim_name, node_name)
            self._open_claims.add(claim_name)
            yield

    async def nominate_planned_pods(self, claim_name: str, node_name: str) -> None:
        """The same while the instance is still starting, where its Node's name is known already: pods the scheduler has tried.

        Schedulers pass over a nomination to a Node that does not exist, and one patch per pod takes its time: better while
        nothing else can be done than while a ready node waits. The others follow when they have been tried.
        """
        self._expected_nodes[claim_name] = node_name
        wanted = _Nomination(claim_name, node_name)
        tried = (pod for pod in self._pods_planned_for(claim_name) if pods.is_unschedulable(pod))
        await asyncio.gather(*(self._nominate(pod, wanted) for pod in tried))

    async def _prepare(self, claim_name: str, node_name: str) -> None:
        """Nominate all, and wait for the nodes that open together with this one."""
        with self._openings.joined() as batch:
            if not self._are_other_nodes_expected():
                self._openings.complete()
            await self._nominate_all(claim_name, node_name)
            await self._await_observed(claim_name, node_name)
        if claim_name not in self._open_claims and self._nominations_for(claim_name):
            await batch.opens()

    async def _nominate_all(self, claim_name: str, node_name: str) -> None:
        wanted = _Nomination(claim_name, node_name)
        await asyncio.gather(*(self._nominate(pod, wanted) for pod in self._pods_planned_for(claim_name)))

    def _pods_planned_for(self, claim_name: str) -> Iterator[Pod]:
        for key in self._planned_pods.get(claim_name, ()):
            pod = self._state.pod(key)
            if pod is not None:
                yield pod

    async def nominate_pod(self, pod: Pod, claim_name: str, node_name: str) -> None:
        """Nominate one pod to a node that is open. What the scheduler has done meanwhile stays as it is."""
        await self._nominate(pod, _Nomination(claim_name, node_name))

    # -- before a node opens ----------------------------------------------------------------------------------------------

    def _are_other_nodes_expected(self) -> bool:
        """Whether nodes that pods were planned for have yet to join."""
        closed = (name for name in self._planned_pods if name not in self._joined_claims)
        claims = map(self._state.claim, closed)
        return any(claim is not None and not claim.status.node_name for claim in claims)

    async def _await_observed(self, claim_name: str, node_name: str) -> None:
        """Wait until the watch has returned every nomination for the claim; nominations lost meanwhile are written again.

        Only the wait has a time limit, not the writes: whether an interrupted write was stored is unknown.
        """
        now = asyncio.get_running_loop().time
        until = now() + _OBSERVE_TIMEOUT_SECONDS
        news = self._claim_changed[claim_name] = asyncio.Event()
        try:
            while now() < until:
                news.clear()
                await self._nominate_all(claim_name, node_name)
                if all(ours.observed for ours in self._nominations_for(claim_name)):
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), until - now())
        finally:
            del self._claim_changed[claim_name]

    def _nominations_for(self, claim_name: str) -> list[_Nomination]:
        """Our nominations of pods that are planned for a claim and still wait."""
        waiting = (pod for pod in self._pods_planned_for(claim_name) if not pod.spec.node_name)
        ours = (self._own_nominations.get(pod.metadata.uid) for pod in waiting)
        return [nomination for nomination in ours if nomination is not None and nomination.claim == claim_name]

    # -- what becomes of nominations --------------------------------------------------------------------------------------

    def pod_updated(self, pod: Pod) -> None:
        """The watch delivered this version of a pod."""
        uid = pod.metadata.uid
        ours = self._own_nominations.get(uid)
        if ours is None:
            self._nominate_once_tried(pod)
            return
        if pod.spec.node_name:
            del self._own_nominations[uid]
        elif pod.status.nominated_node_name == ours.node:
            self._own_nominations[uid] = replace(ours, observed=True)
        elif ours.observed:
            del self._own_nominations[uid]
            if ours.claim in self._expected_nodes:
                self._lost_early[uid] = ours.claim
            elif ours.claim in self._open_claims and ours.repeats < _MAX_REPEATS:
                self._due.put_nowait((pod_key(pod), replace(ours, repeats=ours.repeats + 1)))
        news = self._claim_changed.get(ours.claim)
        if news is not None:
            news.set()

    def _nominate_once_tried(self, pod: Pod) -> None:
        """A pod whose node is still starting follows when the scheduler has tried it. What it loses again waits for the node."""
        if not self._expected_nodes or not pods.is_provisionable(pod) or pod.status.nominated_node_name:
            return
        claim_name = self._state.planned_nodes.get(pod.metadata.uid, "")
        node_name = self._expected_nodes.get(claim_name)
        if node_name is not None and self._lost_early.get(pod.metadata.uid) != claim_name:
            self._due.put_nowait((pod_key(pod), _Nomination(claim_name, node_name)))

    async def run(self) -> None:
        """Give nominations that are due, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_MAX_CONCURRENT_PATCHES):
                tasks.create_task(self._nominate_due())

    async def _nominate_due(self) -> None:
        while True:
            key, nomination = await self._due.get()
            pod = self._state.pod(key)
            if pod is not None and self._state.planned_nodes.get(pod.metadata.uid) == nomination.claim:
                await self._nominate(pod, replace(nomination, observed=False))

    async def withdraw_stale(self) -> None:
        """Take back nominations of ours that the latest pass no longer means."""
        meant = {key: name for name, keys in self._planned_pods.items() for key in keys}
        stale = []
        for pod in self._state.pending_pods():
            ours = self._own_nominations.get(pod.metadata.uid)
            if ours is None or ours.node != pod.status.nominated_node_name:
                continue
            if meant.get(pod_key(pod)) not in (ours.claim, ours.node):
                stale.append(pod)
        await asyncio.gather(*(self._withdraw(pod) for pod in stale))
        living = {pod.metadata.uid for pod in self._state.pending_pods()}
        self._own_nominations = {uid: ours for uid, ours in self._own_nominations.items() if uid in living}

    # -- writing ----------------------------------------------------------------------------------------------------------

    async def _nominate(self, pod: Pod, wanted: _Nomination) -> None:
        """Nominate against the checked version, so a nomination written by another client meanwhile is not overwritten."""
        uid = pod.metadata.uid
        current: Pod | None = pod
        for _ in range(_MAX_ATTEMPTS):
            if current is None or not self._may_nominate(current, wanted.node):
                return
            before = self._own_nominations.get(uid)
            self._own_nominations[uid] = wanted  # already now: the watch may be quicker than the answer
            try:
                if not await self._write(current, wanted.node):
                    self._restore(uid, before)
                return
            except Conflict:
                self._restore(uid, before)
            current = await self._read(pod)

    def _restore(self, uid: str, before: _Nomination | None) -> None:
        """What was to be written was not."""
        if before is None:
            self._own_nominations.pop(uid, None)
        else:
            self._own_nominations[uid] = before

    async def _read(self, pod: Pod) -> Pod | None:
        try:
            return await self._kube.get(POD, pod.metadata.name, pod.metadata.namespace)
        except KubeError:
            return None

    async def _withdraw(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        ours = self._own_nominations.pop(uid, None)  # beforehand: it is not lost but taken back
        try:
            if not await self._write(pod, None):
                self._restore(uid, ours)
        except Conflict:  # changed meanwhile: the next pass judges it anew
            self._restore(uid, ours)

    def _may_nominate(self, pod: Pod, node_name: str) -> bool:
        current = pod.status.nominated_node_name
        if pod.spec.node_name or pod.metadata.deletion_timestamp is not None or current == node_name:
            return False
        ours = self._own_nominations.get(pod.metadata.uid)
        if ours is not None and ours.node == node_name and not ours.observed:
            return False  # on its way
        return not current or (ours is not None and ours.node == current)

    async def _write(self, pod: Pod, node_name: str | None) -> bool:
        """Write a nomination or take it back (None); whether that was done. Raises ``Conflict`` when the pod has changed."""
        meta = pod.metadata
        patch = {"status": {"nominatedNodeName": node_name}}
        async with self._patch_slots:
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
