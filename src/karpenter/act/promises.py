"""Places promised to the successors of pods that are being moved.

A command is decided so that its pods fit, exactly, where it wants them. But pods are not moved: their owners make new ones, and a
scheduler that spreads puts those where it likes, until the last of them find no room and a machine is bought for nothing. So a
new pod whose owner is owed a place is told at once where that is, the way pods are told for which of them a new node was bought
(`act.nominate`). Pods of one owner are alike, so it does not matter which of them takes which place. Schedulers that do not
listen, or were quicker, lose nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from karpenter.act.nominate import Nominating
from karpenter.act.undone import owner_names
from karpenter.api.core import Pod
from karpenter.cluster import ClusterState
from karpenter.decide.disrupt.command import Command
from karpenter.model import pods

#: How long after its machine was given up a pod's successor is expected: drains may be slow.
_OWED_SECONDS = 1800.0
_AT_ONCE = 32


class Promises:
    """Owners who are owed places. ``now`` gives seconds that never go back."""

    def __init__(self, state: ClusterState, nominator: Nominating, now: Callable[[], float]) -> None:
        self._state = state
        self._nominator = nominator
        self._now = now
        self._owed: dict[str, deque[tuple[str, float]]] = {}
        self._told: asyncio.Queue[tuple[Pod, str]] = asyncio.Queue()

    def make(self, command: Command) -> None:
        """The command's machines go now; the successors of their pods are owed the places it found."""
        until = self._now() + _OWED_SECONDS
        self._owed = {name: left for name, left in self._owed.items() if left and left[-1][1] > self._now()}
        for key, pod in _places(command):
            for name in owner_names((pod,)):
                self._owed.setdefault(name, deque()).append((key, until))

    def appeared(self, pod: Pod) -> None:
        """A pod is new, and nobody has found a place for it yet."""
        if not self._owed or pod.spec.node_name or pods.is_finished(pod):
            return
        key = next((key for name in owner_names((pod,)) if (key := self._redeemed(name))), "")
        if key:
            self._state.planned[pod.metadata.uid] = key
            self._told.put_nowait((pod, key))

    def _redeemed(self, name: str) -> str:
        """The next place owed to an owner that is there still; empty when there is none."""
        owed = self._owed.get(name, deque())
        while owed:
            key, until = owed.popleft()
            if until > self._now() and self._node_of(key):
                return key
        self._owed.pop(name, None)
        return ""

    def _node_of(self, key: str) -> str:
        """Name of the Node behind a machine's key; empty when it is gone or going."""
        claim = self._state.claim(key)
        if claim is not None:
            return claim.status.node_name if claim.metadata.deletion_timestamp is None else ""
        node = self._state.node(key)
        return key if node is not None and node.metadata.deletion_timestamp is None else ""

    async def run(self) -> None:
        """Tell pods their places, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_AT_ONCE):
                tasks.create_task(self._tell())

    async def _tell(self) -> None:
        while True:
            pod, key = await self._told.get()
            node = self._node_of(key)
            if node:
                await self._nominator.nominate_to(pod, key, node)


def _places(command: Command) -> Iterator[tuple[str, Pod]]:
    for planned in command.replacements:
        yield from ((planned.name, pod) for pod in planned.pods)
    for placed in command.placed:
        yield from ((placed.key, pod) for pod in placed.pods)
