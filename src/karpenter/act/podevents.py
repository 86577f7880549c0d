"""``status.lastPodEventTime``: when pods last came to or left a node (DIS-330, OPS §1.13)."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

from karpenter.act.world import World
from karpenter.api.core import Pod
from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import NotFound
from karpenter.model import pods
from karpenter.model.clock import rfc3339

#: At most one write per claim in this time (DIS-032).
QUIET = timedelta(seconds=10)


def is_event(old: Pod | None, new: Pod | None) -> bool:
    """Whether the change means a pod came to its node or left it (DIS-330).

    The caller leaves out the first listing after a start: everything is new then and nothing has happened (DIS §13 Beyond).
    """
    if new is None or not new.spec.node_name or pods.is_daemon(new):
        return False
    if old is None:
        return not pods.is_finished(new)
    bound = not old.spec.node_name
    finished = pods.is_finished(new) and not pods.is_finished(old)
    leaving = new.metadata.deletion_timestamp is not None and old.metadata.deletion_timestamp is None
    return bound or finished or leaving


class PodEvents:
    """Collects pod events per claim and writes them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._latest: dict[str, datetime] = {}

    def notice(self, pod: Pod) -> str:
        """A pod came to or left its node; the name of the claim to look at, empty when there is none."""
        node = self._world.state.node(pod.spec.node_name)
        claim = self._world.state.claim_of(node.spec.provider_id) if node is not None else None
        if claim is None or not self._world.manages(claim):
            return ""
        self._latest[claim.metadata.name] = self._world.clock.now()
        return claim.metadata.name

    async def look(self, name: str) -> float | None:
        """Write the latest event of one claim, unless the stored one is young enough."""
        at = self._latest.get(name)
        claim = self._world.state.claim(name)
        stored = claim.status.last_pod_event_time if claim is not None else None
        # Also when the stored time lies ahead: nothing of ours wrote that, and it would hold consolidation up until then.
        if at is not None and claim is not None and (stored is None or abs(at - stored) >= QUIET):
            patch = {"status": {"lastPodEventTime": rfc3339(at)}}
            with suppress(NotFound):
                await self._world.kube.patch(NODE_CLAIM, name, patch, subresource="status")
        # Only now: a write that failed is tried again with what is remembered here. Later news has a look of its own.
        if self._latest.get(name) == at:
            self._latest.pop(name, None)
        return None
