"""Registration: takes over the Node of a launched instance and removes its unregistered taint (OPS §1.3).

One patch adds finalizer, owner reference, labels and taints, and removes the unregistered taint. Pods planned for the node are
nominated before it: once the taint is gone, kube-scheduler may place any pod there.

Registration is level-triggered: a claim registers once a duplicate Node is gone, and registers again if its kubelet lost the Node
and created a new one.
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
from karpenter.controller_context import ControllerContext
from karpenter.kube.protocol import Kube
from karpenter.model import conditions, labels, taints
from karpenter.nodeclaim.node_ownership import is_replacement_node, node_class_label, other_owner, owner_references_with
from karpenter.nodeclaim.subreconciler import NodeClaimSubreconciler
from karpenter.providers.contract import HookPending, HookSatisfied, ProviderError, RegistrationHook
from karpenter.provisioning.nomination import PodNominator
from karpenter.runtime.backoff_schedules import NodeClaimBackoff
from karpenter.runtime.events import WARNING, ObjectEvent, involved_claim
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft
from karpenter.runtime.patching import merge_patch

_log = structlog.get_logger()


class NodeClaimRegistration(NodeClaimSubreconciler):
    """Registers Nodes. ``nominator`` nominates the planned pods before a Node's unregistered taint is removed."""

    def __init__(self, context: ControllerContext, nominator: PodNominator) -> None:
        self._context = context
        self._nominator = nominator
        self._hooks = RegistrationHooks(context)

    def forget(self, name: str) -> None:
        """Drop the backoff of the claim's registration hooks."""
        self._hooks.forget(name)

    async def reconcile(self, draft: NodeClaimDraft) -> None:
        """Register the claim's Node unless it is registered. Raises ``KubeError``."""
        nodes = self._context.state.nodes_by_provider_id(draft.claim.status.provider_id)
        if draft.is_true(conditions.REGISTERED) and not (
            len(nodes) == 1 and is_replacement_node(nodes[0], draft.claim)
        ):
            return
        blocking_condition = self._blocking_condition(draft.claim, nodes)
        if blocking_condition is not None:
            draft.set_condition(conditions.REGISTERED, *blocking_condition)
            return
        if draft.is_true(conditions.REGISTERED):
            draft.reset_condition(conditions.INITIALIZED)
        await self._register(draft, nodes[0])

    def _blocking_condition(self, claim: NodeClaim, nodes: tuple[Node, ...]) -> tuple[str, str, str] | None:
        """Status, reason and message of Registered if the claim cannot register, None when it has one Node of its own."""
        if not nodes:
            return conditions.UNKNOWN, "NodeNotFound", "Node not registered with cluster"
        if len(nodes) > 1:
            return conditions.FALSE, "MultipleNodesFound", "Invariant violated, matched multiple nodes"
        owner = other_owner(claim, nodes[0], self._context.state)
        if owner is not None:
            text = f"Node {nodes[0].metadata.name} belongs to NodeClaim {owner.metadata.name}"
            return conditions.UNKNOWN, "MultipleNodeClaimsFound", text
        return None

    async def _register(self, draft: NodeClaimDraft, node: Node) -> None:
        name = node.metadata.name
        self._check_unregistered_taint(draft, node)
        pending_hooks = await self._hooks.run(draft)
        if pending_hooks:
            hooks = ", ".join(pending_hooks)
            draft.set_condition(conditions.REGISTERED, conditions.UNKNOWN, "RegistrationHookPending", hooks)
            await _patch_node(self._context.kube, node, synced_node(node, draft.claim))
            return
        async with self._nominator.opening(draft.name, name):
            await self._open_node(self._context.state.node(name) or node, draft.claim)
        draft.set_status(msgspec.structs.replace(draft.claim.status, node_name=name))
        draft.set_condition(conditions.REGISTERED, conditions.TRUE)
        draft.after_write(lambda: self._record_registered(draft.claim, name))

    async def _open_node(self, node: Node, claim: NodeClaim) -> None:
        """Remove the unregistered taint through the priority client: nominations expire while the write is delayed."""
        await _patch_node(self._context.priority_kube, node, registered_node(node, claim))

    def _record_registered(self, claim: NodeClaim, node_name: str) -> None:
        _log.info("registered nodeclaim", Node={"name": node_name})
        claim_labels = claim.metadata.labels
        pool = claim_labels.get(labels.NODE_POOL, "")
        self._context.nodepool_health.record_success(claim, self._context.state.pool(pool))
        self._context.metrics.nodes_created_total.labels(nodepool=pool, zone=claim_labels.get(labels.ZONE, "")).inc()

    def _check_unregistered_taint(self, draft: NodeClaimDraft, node: Node) -> None:
        """Report a node that joined without the taint: pods may have been bound too early (OPS-023). Registration goes on."""
        has_taint = any(taints.is_same_taint(taint, labels.UNREGISTERED_TAINT) for taint in node.spec.taints)
        if has_taint or labels.REGISTERED in node.metadata.labels:
            return
        key = labels.UNREGISTERED_TAINT.key
        _log.error("node claim registration error", taint=key)
        text = f"Missing {key} taint which prevents registration race conditions on Karpenter-managed nodes"
        involved = involved_claim(draft.claim.metadata)
        self._context.events.publish(ObjectEvent(involved, WARNING, "UnregisteredTaintMissing", text))


async def _patch_node(kube: Kube, node: Node, desired: Node) -> None:
    patch = merge_patch(node, desired)
    if patch:
        version = node.metadata.resource_version
        await kube.patch(NODE, node.metadata.name, patch, resource_version=version)


def synced_node(node: Node, claim: NodeClaim) -> Node:
    """The Node with all metadata and taints of its claim, and still with the unregistered taint (OPS-024, OPS-025)."""
    meta = node.metadata
    node_taints = node.spec.taints
    if meta.labels.get(labels.DO_NOT_SYNC_TAINTS) != "true":
        claim_taints = [taint.as_taint() for taint in (*claim.spec.taints, *claim.spec.startup_taints)]
        node_taints = taints.merge_taints(node_taints, claim_taints)
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(
            meta,
            labels={**meta.labels, **node_class_label(claim), **claim.metadata.labels},
            annotations={**meta.annotations, **claim.metadata.annotations},
            finalizers=tuple(dict.fromkeys((*meta.finalizers, labels.TERMINATION_FINALIZER))),
            owner_references=owner_references_with(claim, node),
        ),
        spec=msgspec.structs.replace(node.spec, taints=node_taints),
    )


def registered_node(node: Node, claim: NodeClaim) -> Node:
    """The Node as registration leaves it: synced, labelled and without the unregistered taint (OPS-026)."""
    synced = synced_node(node, claim)
    other_taints = tuple(
        taint for taint in synced.spec.taints if not taints.is_same_taint(taint, labels.UNREGISTERED_TAINT)
    )
    node_labels = {**synced.metadata.labels, labels.REGISTERED: "true"}
    return msgspec.structs.replace(
        synced,
        metadata=msgspec.structs.replace(synced.metadata, labels=node_labels),
        spec=msgspec.structs.replace(synced.spec, taints=other_taints),
    )


_HookResult = HookSatisfied | HookPending | ProviderError


@dataclass(frozen=True)
class _HookResults:
    """Results of all hooks: names of the unsatisfied ones in hook order, failures, and metadata from the satisfied ones."""

    pending: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    requeue_after_seconds: tuple[float | None, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class RegistrationHooks:
    """Runs the provider's registration hooks, concurrently and in every pass."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._backoff = NodeClaimBackoff()

    def forget(self, name: str) -> None:
        """Drop the claim's backoff: it is registered or gone."""
        self._backoff.forget(name)

    async def run(self, draft: NodeClaimDraft) -> tuple[str, ...]:
        """Merge the hooks' metadata into the draft; returns the names of the hooks that block registration, in order (OPS-031).

        The draft is requeued for the earliest retry time of the pending hooks; failures are added to the draft's errors.
        """
        hooks = self._context.provider.registration_hooks()
        hook_results = await asyncio.gather(*(_run_hook(hook, draft.claim) for hook in hooks))
        results = _collect_results(hooks, hook_results)
        draft.merge_metadata(results.labels, results.annotations)
        if not results.pending:
            self._backoff.forget(draft.name)
            return ()
        _log.debug("awaiting registration hooks", hooks=list(results.pending))
        if results.failures:
            draft.errors.append(ProviderError("; ".join(results.failures)))
        if results.requeue_after_seconds:
            backoff_seconds = self._backoff_seconds(draft.claim) if None in results.requeue_after_seconds else 0.0
            draft.requeue_after(
                min(backoff_seconds if seconds is None else seconds for seconds in results.requeue_after_seconds)
            )
        return results.pending

    def _backoff_seconds(self, claim: NodeClaim) -> float:
        """Delay for hooks that give no retry time; passes caused by other events do not lengthen it."""
        return self._backoff.remaining_seconds(claim) or self._backoff.next_delay(claim)


async def _run_hook(hook: RegistrationHook, claim: NodeClaim) -> _HookResult:
    try:
        return await hook.check(claim)
    except ProviderError as error:
        return error


def _collect_results(hooks: tuple[RegistrationHook, ...], results: list[_HookResult]) -> _HookResults:
    pending, failures, requeue_after_seconds = [], [], []
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for hook, result in zip(hooks, results, strict=True):
        match result:
            case HookSatisfied():
                labels |= result.labels
                annotations |= result.annotations
                continue
            case HookPending():
                requeue_after_seconds.append(
                    result.retry_after.total_seconds() if result.retry_after is not None else None
                )
            case ProviderError():
                failures.append(f'registration hook "{hook.name}" failed, {result}')
        pending.append(hook.name)
    return _HookResults(tuple(pending), tuple(failures), tuple(requeue_after_seconds), labels, annotations)
