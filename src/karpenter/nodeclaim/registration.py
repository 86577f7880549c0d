"""Registration: the machine joined; make its Node ours, then let pods in (OPS §1.3).

One write does it all: finalizer, owner, labels, taints, and the unregistered taint off. Before it, pods planned for the node are
nominated, because once that taint is gone the scheduler decides.

What is decided here is decided anew when the world changes: a duplicate that goes lets its claim register, and a kubelet that
lost its Node and made another, closed as at the first time, gets it registered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import structlog

from karpenter.api.core import Node
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE
from karpenter.kube.protocol import Kube
from karpenter.model import conditions, labels, taints
from karpenter.nodeclaim.node_ownership import is_replacement_node, node_class_label, other_owner, owner_references_with
from karpenter.providers.contract import HookPending, HookSatisfied, ProviderError, RegistrationHook
from karpenter.provisioning.nomination import PodNominator
from karpenter.runtime.backoff_schedules import NodeClaimBackoff
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.events import WARNING, ObjectEvent, involved_claim
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft
from karpenter.runtime.patching import merge_patch

_log = structlog.get_logger()


class NodeClaimRegistration:
    """Registers Nodes. ``nominator`` tells pods of a Node before it opens."""

    def __init__(self, context: ControllerContext, nominator: PodNominator) -> None:
        self._context = context
        self._nominator = nominator
        self._hooks = RegistrationHooks(context)

    def forget(self, name: str) -> None:
        """The claim is gone."""
        self._hooks.forget(name)

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Register the claim's Node unless that is done. Raises ``KubeError``."""
        nodes = self._context.state.nodes_by_provider_id(draft.claim.status.provider_id)
        if draft.is_true("Registered") and not (len(nodes) == 1 and is_replacement_node(nodes[0], draft.claim)):
            return
        obstacle = self._blocking_condition(draft.claim, nodes)
        if obstacle is not None:
            draft.set_condition("Registered", *obstacle)
            return
        if draft.is_true("Registered"):
            draft.reset_condition("Initialized")
        await self._register(draft, nodes[0])

    def _blocking_condition(self, claim: NodeClaim, nodes: tuple[Node, ...]) -> tuple[str, str, str] | None:
        """Status, reason and message of a claim that cannot register, None when it has one Node of its own."""
        if not nodes:
            return conditions.UNKNOWN, "NodeNotFound", "Node not registered with cluster"
        if len(nodes) > 1:
            return conditions.FALSE, "MultipleNodesFound", "Invariant violated, matched multiple nodes"
        other = other_owner(claim, nodes[0], self._context.state)
        if other is not None:
            text = f"Node {nodes[0].metadata.name} belongs to NodeClaim {other.metadata.name}"
            return conditions.UNKNOWN, "MultipleNodeClaimsFound", text
        return None

    async def _register(self, draft: NodeClaimDraft, node: Node) -> None:
        name = node.metadata.name
        self._check_unregistered_taint(draft, node)
        waiting = await self._hooks.run(draft)
        if waiting:
            draft.set_condition("Registered", conditions.UNKNOWN, "RegistrationHookPending", ", ".join(waiting))
            await _patch_node(self._context.kube, node, synced_node(node, draft.claim))
            return
        async with self._nominator.opening(draft.name, name):
            await self._open_node(self._context.state.node(name) or node, draft.claim)
        draft.set_status(msgspec.structs.replace(draft.claim.status, node_name=name))
        draft.set_condition("Registered", conditions.TRUE)
        draft.after_write(lambda: self._record_registered(draft.claim, name))

    async def _open_node(self, node: Node, claim: NodeClaim) -> None:
        """Let pods in, promptly: the longer that takes after the nominations, the more of them are lost again."""
        await _patch_node(self._context.priority_kube, node, registered_node(node, claim))

    def _record_registered(self, claim: NodeClaim, node_name: str) -> None:
        _log.info("registered nodeclaim", Node={"name": node_name})
        own = claim.metadata.labels
        pool = own.get(labels.NODE_POOL, "")
        self._context.nodepool_health.record_success(claim, self._context.state.pool(pool))
        self._context.metrics.nodes_created_total.labels(nodepool=pool, zone=own.get(labels.ZONE, "")).inc()

    def _check_unregistered_taint(self, draft: NodeClaimDraft, node: Node) -> None:
        """A node that came without the taint may have taken pods too early (OPS-023): say so and go on."""
        has_taint = any(taints.is_same_taint(taint, labels.UNREGISTERED_TAINT) for taint in node.spec.taints)
        if has_taint or labels.REGISTERED in node.metadata.labels:
            return
        key = labels.UNREGISTERED_TAINT.key
        _log.error("node claim registration error", taint=key)
        text = f"Missing {key} taint which prevents registration race conditions on Karpenter-managed nodes"
        about = involved_claim(draft.claim.metadata)
        self._context.events.publish(ObjectEvent(about, WARNING, "UnregisteredTaintMissing", text))


async def _patch_node(kube: Kube, node: Node, desired: Node) -> None:
    patch = merge_patch(node, desired)
    if patch:
        version = node.metadata.resource_version
        await kube.patch(NODE, node.metadata.name, patch, resource_version=version)


def synced_node(node: Node, claim: NodeClaim) -> Node:
    """The Node with everything its claim asks for, and still closed (OPS-024, OPS-025)."""
    meta = node.metadata
    found = node.spec.taints
    if meta.labels.get(labels.DO_NOT_SYNC_TAINTS) != "true":
        wanted = [taint.as_taint() for taint in (*claim.spec.taints, *claim.spec.startup_taints)]
        found = taints.merge_taints(found, wanted)
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(
            meta,
            labels={**meta.labels, **node_class_label(claim), **claim.metadata.labels},
            annotations={**meta.annotations, **claim.metadata.annotations},
            finalizers=tuple(dict.fromkeys((*meta.finalizers, labels.TERMINATION_FINALIZER))),
            owner_references=owner_references_with(claim, node),
        ),
        spec=msgspec.structs.replace(node.spec, taints=found),
    )


def registered_node(node: Node, claim: NodeClaim) -> Node:
    """The Node as registration leaves it: claimed and open (OPS-026)."""
    mine = synced_node(node, claim)
    kept = tuple(taint for taint in mine.spec.taints if not taints.is_same_taint(taint, labels.UNREGISTERED_TAINT))
    marked = {**mine.metadata.labels, labels.REGISTERED: "true"}
    return msgspec.structs.replace(
        mine,
        metadata=msgspec.structs.replace(mine.metadata, labels=marked),
        spec=msgspec.structs.replace(mine.spec, taints=kept),
    )


_HookResult = HookSatisfied | HookPending | ProviderError


@dataclass(frozen=True)
class _HookResults:
    """What all hooks said: those not satisfied, by name and in their order, and what the others learned."""

    pending: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    requeue_after_seconds: tuple[float | None, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class RegistrationHooks:
    """Asks the provider's hooks, all at once and in every pass."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._backoff = NodeClaimBackoff()

    def forget(self, name: str) -> None:
        """The claim is registered or gone."""
        self._backoff.forget(name)

    async def run(self, draft: NodeClaimDraft) -> tuple[str, ...]:
        """Put what the hooks learned onto the draft; the names of those that hold registration up, in their order (OPS-031).

        The draft is looked at again when the first of them wants to be asked; a hook that failed is among the draft's errors.
        """
        hooks = self._context.provider.registration_hooks()
        answers = await asyncio.gather(*(_run_hook(hook, draft.claim) for hook in hooks))
        heard = _collect_results(hooks, answers)
        draft.merge_metadata(heard.labels, heard.annotations)
        if not heard.pending:
            self._backoff.forget(draft.name)
            return ()
        _log.debug("awaiting registration hooks", hooks=list(heard.pending))
        if heard.failures:
            draft.errors.append(ProviderError("; ".join(heard.failures)))
        if heard.requeue_after_seconds:
            growing = self._backoff_seconds(draft.claim) if None in heard.requeue_after_seconds else 0.0
            draft.requeue_after(min(growing if seconds is None else seconds for seconds in heard.requeue_after_seconds))
        return heard.pending

    def _backoff_seconds(self, claim: NodeClaim) -> float:
        """Seconds until hooks that name no time are asked again; looks for other reasons do not make it longer."""
        return self._backoff.remaining_seconds(claim) or self._backoff.next_delay(claim)


async def _run_hook(hook: RegistrationHook, claim: NodeClaim) -> _HookResult:
    try:
        return await hook.check(claim)
    except ProviderError as error:
        return error


def _collect_results(hooks: tuple[RegistrationHook, ...], results: list[_HookResult]) -> _HookResults:
    waiting, failures, again = [], [], []
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for hook, answer in zip(hooks, results, strict=True):
        match answer:
            case HookSatisfied():
                labels |= answer.labels
                annotations |= answer.annotations
                continue
            case HookPending():
                again.append(answer.retry_after.total_seconds() if answer.retry_after is not None else None)
            case ProviderError():
                failures.append(f'registration hook "{hook.name}" failed, {answer}')
        waiting.append(hook.name)
    return _HookResults(tuple(waiting), tuple(failures), tuple(again), labels, annotations)
