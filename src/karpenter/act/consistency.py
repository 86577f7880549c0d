"""Whether a node is what was bought: a machine that shows much less than its type promises is reported (OPS §1.10).

The first comparison is made when the node is initialised, the next ones every ten minutes. Nothing else follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import structlog

from karpenter.act.draft import Draft
from karpenter.act.events import WARNING, Happening, about_claim
from karpenter.act.world import World
from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.model import conditions, quantity
from karpenter.model.quantity import QuantityError

#: How long a comparison holds (OPS-085).
SCAN_EVERY = timedelta(minutes=10)
#: The least part of a promised resource a node must show, in percent (OPS-086).
_LEAST_PERCENT = 90
_TYPE = "ConsistentStateFound"
_log = structlog.get_logger()


class Consistency:
    """Compares nodes with what was bought, and remembers when each is due again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._due: dict[str, tuple[str, datetime]] = {}

    def forget(self, name: str) -> None:
        """The claim is gone."""
        self._due.pop(name, None)

    async def step(self, draft: Draft) -> None:
        """Compare an initialised node with its claim, if it is time to."""
        nodes = self._world.state.nodes_of(draft.claim.status.provider_id)
        if not draft.is_true("Initialized") or len(nodes) != 1:
            return
        uid = draft.claim.metadata.uid
        known, due = self._due.get(draft.name, ("", draft.now))
        last = draft.condition(_TYPE)
        if last is None or known != uid or not draft.now < due <= draft.now + SCAN_EVERY:
            self._scan(draft, nodes[0])
            due = draft.now + SCAN_EVERY
            self._due[draft.name] = uid, due
        else:
            draft.set(_TYPE, last.status, last.reason, last.message)  # seen at this generation, too (OPS-101)
        draft.look_again((due - draft.now).total_seconds())

    def _scan(self, draft: Draft, node: Node) -> None:
        found = tuple(issues(node, draft.claim))
        for issue in found:
            _log.info("failed consistency check", issue=issue)
            about = about_claim(draft.claim.metadata)
            self._world.events.publish(Happening(about, WARNING, "FailedConsistencyCheck", issue, (issue,)))
        if found:
            draft.set(_TYPE, conditions.FALSE, "ConsistencyCheckFailed", "Consistency Check Failed")
        else:
            draft.set(_TYPE, conditions.TRUE)


def issues(node: Node, claim: NodeClaim) -> Iterator[str]:
    """What the node shows less of than it should, for each resource that was asked for (OPS-086, OPS-088)."""
    for name, requested in claim.spec.resources.requests.items():
        promised = claim.status.capacity.get(name, 0)
        shown = node.status.capacity.get(name, 0)
        try:
            wanted, expected, found = (quantity.milli(value) for value in (requested, promised, shown))
        except QuantityError as error:
            yield f"resource {name} cannot be compared: {error}"
            continue
        if wanted and expected and 100 * found < _LEAST_PERCENT * expected:
            percent = f"{100 * found / expected:.1f}"
            yield f"expected {promised} of resource {name}, but found {shown} ({percent}% of expected)"
