"""Troubles of a claim nobody but its owner can end, said on the claim and in the log: at first, and again as long as they last.

Several Nodes or several claims of one provider ID: which of them is right cannot be told from here, and deleting the wrong one
would end a machine that is used. And a registered claim whose Node is gone although its machine is not: nothing can run there,
and it costs all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import structlog

from karpenter.act.draft import Draft
from karpenter.act.events import WARNING, Happening, about_claim
from karpenter.act.stuck import Told
from karpenter.act.world import World

#: A Node may be away for a moment, and a machine that went with it is collected sooner than this (OPS-090).
_AWAY = timedelta(minutes=5)
_log = structlog.get_logger()


@dataclass(frozen=True)
class Trouble:
    """What is wrong, and how long it may be before it is said."""

    reason: str
    text: str
    patience: timedelta = timedelta()


class Troubles:
    """Remembers what was said about which claim."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._told: dict[str, dict[str, Told]] = {}

    def forget(self, name: str) -> None:
        """The claim is gone."""
        self._told.pop(name, None)

    async def step(self, draft: Draft) -> None:
        """Say what is wrong, if it is time to."""
        found = {trouble.reason: trouble for trouble in self._of(draft)}
        before = self._told.pop(draft.name, {})
        if found:
            self._told[draft.name] = {
                reason: self._tell(draft, trouble, before.get(reason)) for reason, trouble in found.items()
            }

    def _tell(self, draft: Draft, trouble: Trouble, told: Told | None) -> Told:
        told = told or Told(draft.now + trouble.patience, Told.first(draft.now).pause)
        if draft.now >= told.due:
            _log.error("nodeclaim needs attention", reason=trouble.reason, error=trouble.text)
            about = about_claim(draft.claim.metadata)
            self._world.events.publish(Happening(about, WARNING, trouble.reason, trouble.text, (trouble.text,)))
            told = told.then(draft.now)
        draft.look_again((told.due - draft.now).total_seconds())
        return told

    def _of(self, draft: Draft) -> Iterator[Trouble]:
        provider_id = draft.claim.status.provider_id
        nodes = [node.metadata.name for node in self._world.state.nodes_of(provider_id)]
        claims = [claim.metadata.name for claim in self._world.state.claims_of(provider_id)]
        if len(nodes) > 1:
            text = f"Nodes {', '.join(nodes)} have the same provider ID {provider_id}; delete all but the one that runs"
            yield Trouble("MultipleNodesFound", text)
        if len(claims) > 1:
            text = (
                f"NodeClaims {', '.join(claims)} have the same provider ID {provider_id}; only one of them can be right"
            )
            yield Trouble("MultipleNodeClaimsFound", text)
        if not nodes and draft.is_true("Registered"):
            text = f"Node {draft.claim.status.node_name} is gone, and the machine {provider_id} is not; delete the NodeClaim"
            yield Trouble("NodeNotFound", text, _AWAY)
