"""Registration: the machine joined; make its Node ours, then let pods in (OPS §1.3).

One write does it all: finalizer, owner, labels, taints, and the unregistered taint off. Before it, pods planned for the node are
nominated, because once that taint is gone the scheduler decides.

What is decided here is decided anew when the world changes: a duplicate that goes lets its claim register, and a kubelet that
lost its Node and made another, closed as at the first time, gets it registered again.
"""

from __future__ import annotations

import msgspec
import structlog

from karpenter.act.draft import Draft
from karpenter.act.events import WARNING, Happening, about_claim
from karpenter.act.hooks import Hooks
from karpenter.act.nominate import Nominating
from karpenter.act.ownership import class_label, is_new_to, other_owner, owners_with
from karpenter.act.patching import difference
from karpenter.act.world import World
from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE
from karpenter.kube.protocol import Kube
from karpenter.model import conditions, labels, taints

_log = structlog.get_logger()


class Registrar:
    """Registers Nodes. ``nominator`` tells pods of a Node before it opens."""

    def __init__(self, world: World, nominator: Nominating) -> None:
        self._world = world
        self._nominator = nominator
        self._hooks = Hooks(world)

    def forget(self, name: str) -> None:
        """The claim is gone."""
        self._hooks.forget(name)

    async def step(self, draft: Draft) -> None:
        """Register the claim's Node unless that is done. Raises ``KubeError``."""
        nodes = self._world.state.nodes_of(draft.claim.status.provider_id)
        if draft.is_true("Registered") and not (len(nodes) == 1 and is_new_to(nodes[0], draft.claim)):
            return
        obstacle = self._obstacle(draft.claim, nodes)
        if obstacle is not None:
            draft.set("Registered", *obstacle)
            return
        if draft.is_true("Registered"):
            draft.decide_anew("Initialized")
        await self._register(draft, nodes[0])

    def _obstacle(self, claim: NodeClaim, nodes: tuple[Node, ...]) -> tuple[str, str, str] | None:
        """Status, reason and message of a claim that cannot register, None when it has one Node of its own."""
        if not nodes:
            return conditions.UNKNOWN, "NodeNotFound", "Node not registered with cluster"
        if len(nodes) > 1:
            return conditions.FALSE, "MultipleNodesFound", "Invariant violated, matched multiple nodes"
        other = other_owner(claim, nodes[0], self._world.state)
        if other is not None:
            text = f"Node {nodes[0].metadata.name} belongs to NodeClaim {other.metadata.name}"
            return conditions.UNKNOWN, "MultipleNodeClaimsFound", text
        return None

    async def _register(self, draft: Draft, node: Node) -> None:
        name = node.metadata.name
        self._expect_taint(draft, node)
        waiting = await self._hooks.ask(draft)
        if waiting:
            draft.set("Registered", conditions.UNKNOWN, "RegistrationHookPending", ", ".join(waiting))
            await _change(self._world.kube, node, claimed(node, draft.claim))
            return
        async with self._nominator.opening(draft.name, name):
            await self._open(self._world.state.node(name) or node, draft.claim)
        draft.status(msgspec.structs.replace(draft.claim.status, node_name=name))
        draft.set("Registered", conditions.TRUE)
        draft.announce(lambda: self._say_registered(draft.claim, name))

    async def _open(self, node: Node, claim: NodeClaim) -> None:
        """Let pods in, promptly: the longer that takes after the nominations, the more of them are lost again."""
        await _change(self._world.prompt, node, registered(node, claim))

    def _say_registered(self, claim: NodeClaim, node_name: str) -> None:
        _log.info("registered nodeclaim", Node={"name": node_name})
        own = claim.metadata.labels
        pool = own.get(labels.NODE_POOL, "")
        self._world.registrations.succeeded(claim, self._world.state.pool(pool))
        self._world.metrics.nodes_created_total.labels(nodepool=pool, zone=own.get(labels.ZONE, "")).inc()

    def _expect_taint(self, draft: Draft, node: Node) -> None:
        """A node that came without the taint may have taken pods too early (OPS-023): say so and go on."""
        has_taint = any(taints.same(taint, labels.UNREGISTERED_TAINT) for taint in node.spec.taints)
        if has_taint or labels.REGISTERED in node.metadata.labels:
            return
        key = labels.UNREGISTERED_TAINT.key
        _log.error("node claim registration error", taint=key)
        text = f"Missing {key} taint which prevents registration race conditions on Karpenter-managed nodes"
        about = about_claim(draft.claim.metadata)
        self._world.events.publish(Happening(about, WARNING, "UnregisteredTaintMissing", text))


async def _change(kube: Kube, node: Node, wanted: Node) -> None:
    patch = difference(node, wanted)
    if patch:
        version = node.metadata.resource_version
        await kube.patch(NODE, node.metadata.name, patch, resource_version=version)


def claimed(node: Node, claim: NodeClaim) -> Node:
    """The Node with everything its claim asks for, and still closed (OPS-024, OPS-025)."""
    meta = node.metadata
    found = node.spec.taints
    if meta.labels.get(labels.DO_NOT_SYNC_TAINTS) != "true":
        wanted = [taint.as_taint() for taint in (*claim.spec.taints, *claim.spec.startup_taints)]
        found = taints.merge(found, wanted)
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(
            meta,
            labels={**meta.labels, **class_label(claim), **claim.metadata.labels},
            annotations={**meta.annotations, **claim.metadata.annotations},
            finalizers=tuple(dict.fromkeys((*meta.finalizers, labels.TERMINATION_FINALIZER))),
            owner_references=owners_with(claim, node),
        ),
        spec=msgspec.structs.replace(node.spec, taints=found),
    )


def registered(node: Node, claim: NodeClaim) -> Node:
    """The Node as registration leaves it: claimed and open (OPS-026)."""
    mine = claimed(node, claim)
    kept = tuple(taint for taint in mine.spec.taints if not taints.same(taint, labels.UNREGISTERED_TAINT))
    marked = {**mine.metadata.labels, labels.REGISTERED: "true"}
    return msgspec.structs.replace(
        mine,
        metadata=msgspec.structs.replace(mine.metadata, labels=marked),
        spec=msgspec.structs.replace(mine.spec, taints=kept),
    )
