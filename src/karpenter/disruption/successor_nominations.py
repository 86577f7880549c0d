"""Nominates the successors of pods that a command moves to the nodes the command planned for them.

A command is decided so that its pods fit exactly where it places them. But pods are not moved: their owners create new ones, and
a scheduler that spreads may place those elsewhere, until the last of them fit nowhere and another node is launched. So a new pod
whose owner has open places is nominated to one at once, as pods are for new nodes (``provisioning.nomination``). Pods of one
owner are interchangeable, so any of them may take any place. A scheduler that ignores nominations loses nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from karpenter.api.core import Pod
from karpenter.disruption.command_backoff import owner_backoff_keys
from karpenter.disruption.decide.command import Command
from karpenter.model import pods
from karpenter.provisioning.nomination import PodNominator
from karpenter.state import ClusterState

#: How long after its node was given up a pod's successor is expected: drains may be slow.
_NOMINATION_SECONDS = 1800.0
_MAX_CONCURRENT = 32


class SuccessorNominations:
    """Open places by owner. ``now`` returns monotonic seconds."""

    def __init__(self, state: ClusterState, nominator: PodNominator, now: Callable[[], float]) -> None:
        self._state = state
        self._nominator = nominator
        self._now = now
        self._nominations_by_owner: dict[str, deque[tuple[str, float]]] = {}
        self._pending_nominations: asyncio.Queue[tuple[Pod, str]] = asyncio.Queue()

    def add_command(self, command: Command) -> None:
        """The command's candidates are deleted now; record the places of their pods for their successors."""
        until = self._now() + _NOMINATION_SECONDS
        self._nominations_by_owner = {
            name: left for name, left in self._nominations_by_owner.items() if left and left[-1][1] > self._now()
        }
        for key, pod in _target_nodes(command):
            for name in owner_backoff_keys((pod,)):
                self._nominations_by_owner.setdefault(name, deque()).append((key, until))

    def pod_added(self, pod: Pod) -> None:
        """A new pod that is not scheduled yet: nominate it if its owner has an open place."""
        if not self._nominations_by_owner or pod.spec.node_name or pods.is_finished(pod):
            return
        key = next((key for name in owner_backoff_keys((pod,)) if (key := self._take_nomination(name))), "")
        if key:
            self._state.planned_nodes[pod.metadata.uid] = key
            self._pending_nominations.put_nowait((pod, key))

    def _take_nomination(self, owner: str) -> str:
        """The next open place of an owner whose node still exists; empty if there is none."""
        owed = self._nominations_by_owner.get(owner, deque())
        while owed:
            key, until = owed.popleft()
            if until > self._now() and self._node_name_of(key):
                return key
        self._nominations_by_owner.pop(owner, None)
        return ""

    def _node_name_of(self, key: str) -> str:
        """Name of the Node behind a node's key; empty when it is gone or going."""
        claim = self._state.claim(key)
        if claim is not None:
            return claim.status.node_name if claim.metadata.deletion_timestamp is None else ""
        node = self._state.node(key)
        return key if node is not None and node.metadata.deletion_timestamp is None else ""

    async def run(self) -> None:
        """Write pending nominations, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_MAX_CONCURRENT):
                tasks.create_task(self._nominate_pending())

    async def _nominate_pending(self) -> None:
        while True:
            pod, key = await self._pending_nominations.get()
            node = self._node_name_of(key)
            if node:
                await self._nominator.nominate_pod(pod, key, node)


def _target_nodes(command: Command) -> Iterator[tuple[str, Pod]]:
    for planned in command.replacements:
        yield from ((planned.name, pod) for pod in planned.pods)
    for placed in command.placed_on_existing:
        yield from ((placed.node_key, pod) for pod in placed.pods)
