"""Initialisation: the node is fully usable once nothing that was planned for it is still missing (OPS §1.5).

What is missing stands in the condition. Where it lasts it is said in an event and in the log as well: nobody reads the conditions
of a node that seems to run.
"""

from __future__ import annotations

import structlog

from karpenter.act.draft import Draft
from karpenter.act.events import WARNING, Happening, about_claim
from karpenter.act.stuck import Told
from karpenter.act.world import World
from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE
from karpenter.model import conditions, labels, taints
from karpenter.model import resources as res
from karpenter.model.clock import rfc3339
from karpenter.model.quantity import QuantityError

_log = structlog.get_logger()


class Initialiser:
    """Initialises registered Nodes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._told: dict[str, Told] = {}

    def forget(self, name: str) -> None:
        """The claim is gone."""
        self._told.pop(name, None)

    async def step(self, draft: Draft) -> None:
        """Set Initialized, or the first thing still missing as its reason (OPS-040). Raises ``KubeError``."""
        if draft.is_true("Initialized") or not draft.is_true("Registered"):
            self.forget(draft.name)
            return
        nodes = self._world.state.nodes_of(draft.claim.status.provider_id)
        missing = obstacle(nodes, draft.claim)
        if missing is not None:
            draft.set("Initialized", conditions.UNKNOWN, *missing)
            self._tell(draft, *missing)
            return
        node = nodes[0]
        if node.metadata.labels.get(labels.INITIALIZED) != "true":
            patch = {"metadata": {"labels": {labels.INITIALIZED: "true"}}}
            await self._world.kube.patch(NODE, node.metadata.name, patch)
        draft.set("Initialized", conditions.TRUE)
        draft.announce(lambda: _log.info("initialized nodeclaim", allocatable=dict(node.status.allocatable)))

    def _tell(self, draft: Draft, reason: str, message: str) -> None:
        registered = draft.condition("Registered")
        since = (registered.last_transition_time if registered is not None else None) or draft.now
        told = self._told.get(draft.name) or Told.first(since)
        if draft.now >= told.due:
            _log.error("initialization is held up", since=rfc3339(since), reason=reason, error=message)
            text = f"Node is registered since {rfc3339(since)} and not initialized: {message}"
            about = about_claim(draft.claim.metadata)
            self._world.events.publish(Happening(about, WARNING, "FailedInitialization", text, (text,)))
            told = told.then(draft.now)
        self._told[draft.name] = told
        draft.look_again((told.due - draft.now).total_seconds())


def obstacle(nodes: tuple[Node, ...], claim: NodeClaim) -> tuple[str, str] | None:
    """Reason and message of what a claim with these Nodes still lacks, None when nothing is missing."""
    if len(nodes) != 1:
        return "NodeNotFound", "Node not registered with cluster"
    node = nodes[0]
    if not conditions.is_true(node.status.conditions, "Ready"):
        return "NodeNotReady", "Node status is NotReady"
    for expected in claim.spec.startup_taints:
        if any(taints.same(taint, expected.as_taint()) for taint in node.spec.taints):
            return "StartupTaintsExist", f'StartupTaint "{taints.text(expected.as_taint())}" still exists'
    for taint in node.spec.taints:
        if taints.is_ephemeral(taint):
            return "KnownEphemeralTaintsExist", f'KnownEphemeralTaint "{taints.text(taint)}" still exists'
    return _unregistered(node, claim)


def _unregistered(node: Node, claim: NodeClaim) -> tuple[str, str] | None:
    try:
        allocatable = res.parse(node.status.allocatable)
        wanted = res.parse(claim.spec.resources.requests)
    except QuantityError as error:
        return "ResourceNotRegistered", f"Resources cannot be compared: {error}"
    for name, amount in wanted.items():
        if amount and not allocatable.get(name):
            return "ResourceNotRegistered", f'Resource "{name}" was requested but not registered'
    return None
