"""Whether DaemonSets have room on a machine: the condition ``DaemonSetsFit``, there and False while one has none (DIS-482).

A machine is bought with room for the DaemonSets there are. One that comes later, or grows, may find none, and nobody would tell:
its pod waits for ever. Replacing such machines is for the pool's owner to ask for (``drift``).
"""

from __future__ import annotations

import asyncio

from karpenter.act.draft import Draft
from karpenter.act.events import WARNING, Happening, about_claim, about_node, shortened
from karpenter.act.world import World
from karpenter.cluster.snapshot import Daemon
from karpenter.decide.disrupt.daemons import misfits
from karpenter.decide.disrupt.drift import DAEMON_SETS, DAEMON_SETS_FIT
from karpenter.model import conditions

#: To list DaemonSets with what they ask for takes a look at all their pods; so long a list is good.
_LIST_SECONDS = 60.0
_HINT = "a higher priority class lets it displace other pods"


class DaemonRoom:
    """Looks at machines, with a list of DaemonSets that is a minute old at most."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._listed: tuple[Daemon, ...] = ()
        self._listed_at = -_LIST_SECONDS

    async def step(self, draft: Draft) -> None:
        """Set or clear the condition on an initialised machine."""
        view = self._world.state.view_of(draft.claim) if draft.is_true("Initialized") else None
        if view is None:
            return
        found = sorted(item.daemon_set for item in misfits(self._daemons(), view))
        known = draft.condition(DAEMON_SETS_FIT)
        if found:
            text = f"No room for the pods of DaemonSet(s) {shortened(found)}: {_HINT}"
            draft.set(DAEMON_SETS_FIT, conditions.FALSE, DAEMON_SETS, text)
            if known is None or known.message != text:
                draft.announce(lambda: self._tell(draft, text))
        elif known is not None:
            draft.clear(DAEMON_SETS_FIT)

    def _daemons(self) -> tuple[Daemon, ...]:
        now = asyncio.get_running_loop().time()
        if now - self._listed_at >= _LIST_SECONDS:
            self._listed, self._listed_at = self._world.state.daemons(), now
        return self._listed

    def _tell(self, draft: Draft, text: str) -> None:
        nodes = self._world.state.nodes_of(draft.claim.status.provider_id)
        for about in (about_claim(draft.claim.metadata), *(about_node(node.metadata) for node in nodes)):
            self._world.events.publish(Happening(about, WARNING, DAEMON_SETS, text, (text,)))
