"""The end of a Node: cordon, drain, wait for volumes, let the instance go, then let the Node go (DIS §17.2).

One look at a deleting Node goes through the steps until one of them has to wait; what holds it is named (``culprits``), in the
claim's conditions at once, as events and in the log when it lasts (``stuck``). A look never waits for evictions: it says which
pods are wanted away, and the ``Evictor`` asks for them at its own pace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec
import structlog

from karpenter.api.core import Node, Pod
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE, NODE_CLAIM, POD
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.kube.protocol import JsonObject
from karpenter.model import conditions, labels, pod_disruption, pods, taints
from karpenter.model.clock import rfc3339
from karpenter.providers.contract import ProviderError
from karpenter.runtime.backoff_schedules import MessageThrottle
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.events import NORMAL, WARNING, ObjectEvent, involved_node, shortened
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft
from karpenter.runtime.patching import merge_patch
from karpenter.termination import blockers, pod_eviction, volume_detachment
from karpenter.termination.blockers import BlockerReporter
from karpenter.termination.instance_termination import InstanceTermination
from karpenter.termination.pod_eviction import EvictionQueue, PodForceDeletion, first_eviction_tier, must_delete_pod

#: How often a draining node is looked at (DIS-038), and the shortest drain: pods may still be arriving (DIS-524).
DRAIN_POLL_SECONDS = 1.0
MIN_DRAIN_DURATION = timedelta(seconds=5)
_DRAINED, _VOLUMES_DETACHED = "Drained", "VolumesDetached"
_GRACE_PERIOD_ELAPSED = "TerminationGracePeriodElapsed"
_log = structlog.get_logger()


def cordoned_node(node: Node) -> Node:
    """The Node closed to pods and load balancers (DIS-514)."""
    others = tuple(taint for taint in node.spec.taints if taint.key != labels.DISRUPTED_TAINT.key)
    marked = {**node.metadata.labels, labels.EXCLUDE_FROM_LOAD_BALANCERS: "karpenter"}
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(node.metadata, labels=marked),
        spec=msgspec.structs.replace(node.spec, taints=(*others, labels.DISRUPTED_TAINT)),
    )


def tainted_node(node: Node) -> Node:
    """The Node with the disruption taint, unless it has one already."""
    if any(taints.is_same_taint(taint, labels.DISRUPTED_TAINT) for taint in node.spec.taints):
        return node
    return msgspec.structs.replace(
        node, spec=msgspec.structs.replace(node.spec, taints=(*node.spec.taints, labels.DISRUPTED_TAINT))
    )


async def pods_on_node(context: ControllerContext, node_name: str) -> tuple[Pod, ...]:
    """Pods bound to a node as the API server says it, not as a watch that may be behind.

    Raises ``KubeError``, also when one of them cannot be read: what cannot be read may not be taken for absent.
    """
    listing = await context.kube.list(POD, field_selector=f"spec.nodeName={node_name}")
    if listing.undecodable:
        raise KubeError(f"a pod on node {node_name} cannot be read: {listing.undecodable[0].error}")
    return listing.items


@dataclass(frozen=True)
class _StepBlocked:
    """A step that has to wait: until when, for what, and after which fault."""

    requeue_after_seconds: float
    blockers: Sequence[str]
    error: ProviderError | None = None


@dataclass
class _TerminatingNode:
    """One look at a Node's ending. Without a claim there are no conditions, no deadline, no instance to end (DIS-511)."""

    node: Node
    claim: NodeClaim | None
    now: datetime
    deadline: datetime | None = None
    #: A deadline that cannot be read, as it is written.
    invalid_deadline: str = ""
    draft: NodeClaimDraft | None = field(init=False)

    def __post_init__(self) -> None:
        self.draft = NodeClaimDraft(self.claim, self.now) if self.claim is not None else None
        text = self.claim.metadata.annotations.get(labels.TERMINATION_TIMESTAMP, "") if self.claim is not None else ""
        self.deadline = _parse_time(text)
        self.invalid_deadline = text if self.deadline is None else ""

    @property
    def name(self) -> str:
        return self.node.metadata.name

    def is_past_deadline(self) -> bool:
        return self.deadline is not None and self.now > self.deadline

    def is_true(self, condition_type: str) -> bool:
        return self.draft is not None and self.draft.is_true(condition_type)

    def set_condition(self, condition_type: str, status: str, reason: str = "", message: str = "") -> None:
        if self.draft is not None:
            self.draft.set_condition(condition_type, status, reason, message)


class NodeTermination:
    """Takes deleting Nodes apart."""

    def __init__(self, context: ControllerContext, eviction_queue: EvictionQueue) -> None:
        self._context = context
        self._eviction_queue = eviction_queue
        self._pod_deletion = PodForceDeletion(context)
        self._instance_termination = InstanceTermination(context)
        self._blocker_reporter = BlockerReporter(context)
        self._message_throttle = MessageThrottle()
        self._deleted_nodes: dict[str, Node] = {}

    def node_deleted(self, node: Node) -> None:
        """The watch says that the Node is gone; the next look at its name follows that up."""
        self._deleted_nodes[node.metadata.name] = node

    async def reconcile(self, name: str) -> float | None:
        """One step of a Node's ending; seconds until the next look, None to wait for events.

        Raises ``KubeError`` or ``ProviderError`` when a step failed and should be retried with back-off.
        """
        if name in self._deleted_nodes:
            await self._handle_deleted_node(self._deleted_nodes[name])
            self._deleted_nodes.pop(name, None)
        node = self._context.state.node(name)
        if node is None or node.metadata.deletion_timestamp is None:
            self._eviction_queue.remove_node(name)
            return None
        claim = self._claim_of(node.spec.provider_id)
        if not self._is_ours(node, claim):
            return None
        context = {"NodeClaim": {"name": claim.metadata.name}} if claim else {}
        with structlog.contextvars.bound_contextvars(Node={"name": name}, **context):
            if labels.TERMINATION_FINALIZER not in node.metadata.finalizers:
                return self._report_foreign_finalizers(node, claim)
            try:
                return await self._reconcile(_TerminatingNode(node, claim, self._context.clock.now()))
            except (NotFound, Conflict):
                return DRAIN_POLL_SECONDS

    def _claim_of(self, provider_id: str) -> NodeClaim | None:
        """The Node's claim; with several of one provider ID nobody can say which, so there is none (DIS-511)."""
        found = self._context.state.claims_by_provider_id(provider_id)
        return found[0] if len(found) == 1 else None

    def _is_ours(self, node: Node, claim: NodeClaim | None) -> bool:
        """Only nodes of a class the provider serves (DIS-510), as their label or their claim says."""
        if claim is not None and self._context.is_managed(claim):
            return True
        served = {f"{kind.group}/{kind.name.lower()}" for kind in self._context.provider.node_class_kinds}
        return not served.isdisjoint(node.metadata.labels)

    async def _handle_deleted_node(self, node: Node) -> None:
        """A Node went: so does its claim, also when somebody took the finalizer off and so the drain away (DIS-S294)."""
        self._blocker_reporter.forget(node.metadata.uid)
        for kind in (_DRAINED, _VOLUMES_DETACHED):
            self._message_throttle.forget(f"{node.metadata.uid}/{kind}")
        claim = self._claim_of(node.spec.provider_id)
        if claim is None or not self._context.is_managed(claim) or claim.metadata.deletion_timestamp is not None:
            return
        registered = conditions.is_true(claim.status.conditions, "Registered")
        if registered and not self._context.state.nodes_by_provider_id(node.spec.provider_id):
            _log.info("deleting nodeclaim whose node is gone", NodeClaim={"name": claim.metadata.name})
            await self._delete_claim(claim)

    async def _delete_claim(self, claim: NodeClaim) -> None:
        try:
            await self._context.kube.delete(NODE_CLAIM, claim.metadata.name, uid=claim.metadata.uid)
        except (NotFound, Conflict):
            return

    def _report_foreign_finalizers(self, node: Node, claim: NodeClaim | None) -> float | None:
        """Our part is done, or was taken from us; what still keeps the Node is somebody else's."""
        self._eviction_queue.remove_node(node.metadata.name)
        if not node.metadata.finalizers:
            return None
        return self._blocker_reporter.report(node, claim, [blockers.finalizer_blocker("Node", node.metadata)])

    async def _reconcile(self, terminating: _TerminatingNode) -> float | None:
        claim, node = terminating.claim, terminating.node
        is_new = claim is not None and claim.metadata.deletion_timestamp is None
        if claim is not None and is_new:
            await self._delete_claim(claim)
        if await self._is_instance_gone(node):
            await self._remove_finalizer(node)
            return None
        await self._cordon(node)
        if is_new:
            # The claim has changed: what is known of it now could not be written any more.
            return DRAIN_POLL_SECONDS
        held = (
            await self._drain(terminating)
            or self._await_volume_detachment(terminating)
            or await self._terminate_instance(terminating)
        )
        await self._write_conditions(terminating)
        if held is None:
            await self._remove_finalizer(node)
            return None
        self._blocker_reporter.report(node, claim, held.blockers)
        if held.error is not None:
            raise held.error
        return held.requeue_after_seconds

    async def _is_instance_gone(self, node: Node) -> bool:
        """Whether nothing runs there any more: the kubelet is silent and the cloud knows no machine (DIS-512)."""
        if conditions.is_true(node.status.conditions, "Ready"):
            return False
        return await self._instance_termination.is_missing(node.spec.provider_id)

    async def _cordon(self, node: Node) -> None:
        patch = merge_patch(node, cordoned_node(node))
        if patch:
            await self._context.kube.patch(
                NODE, node.metadata.name, patch, resource_version=node.metadata.resource_version
            )
            taint = labels.DISRUPTED_TAINT
            _log.info(
                "tainted node",
                **{"taint.Key": taint.key, "taint.Value": taint.value, "taint.Effect": taint.effect},
            )

    async def _write_conditions(self, terminating: _TerminatingNode) -> None:
        """Write the claim's conditions; a drain that ended is counted when that is stored (DIS-408)."""
        if terminating.draft is None or terminating.claim is None:
            return
        was_drained = conditions.is_true(terminating.claim.status.conditions, _DRAINED)
        await terminating.draft.write(self._context)
        if terminating.is_true(_DRAINED) and not was_drained:
            pool = terminating.node.metadata.labels.get(labels.NODE_POOL, "")
            self._context.metrics.nodes_drained_total.labels(nodepool=pool).inc()

    def _set_waiting(
        self, terminating: _TerminatingNode, condition_type: str, reason: str, blockers_found: Sequence[str]
    ) -> None:
        """Keep a condition Unknown, with what holds its step as the message where there is something to name."""
        if terminating.draft is None:
            return
        known, key = terminating.draft.condition(condition_type), f"{terminating.node.metadata.uid}/{condition_type}"
        wished = blockers.join_blockers(blockers_found) or reason
        stored = known.message if known is not None and known.status == conditions.UNKNOWN else ""
        terminating.set_condition(
            condition_type,
            conditions.UNKNOWN,
            reason,
            self._message_throttle.text_to_write(key, stored, wished, terminating.now),
        )

    # -- draining -------------------------------------------------------------------------------------------------------

    async def _drain(self, terminating: _TerminatingNode) -> _StepBlocked | None:
        """Ask the next pods to go, and wait while any is left (DIS-520 to DIS-525)."""
        self._publish_deadline(terminating)
        waiting = await self._pods_to_drain(terminating)
        forced, rest = _split_forced(waiting, terminating)
        self._eviction_queue.set_pods(terminating.node, self._evictable(first_eviction_tier(rest), terminating.now))
        if forced and terminating.deadline is not None:
            await self._pod_deletion.delete(forced, terminating.node, terminating.deadline)
        if not waiting:
            return self._finish_drain(terminating)
        text = f"{len(waiting)} pods are waiting to be evicted"
        found = self._drain_blockers(terminating, waiting)
        self._publish_failed_draining(
            terminating.node, f"Failed to drain node, {blockers.join_blockers((text, *found))}"
        )
        if not terminating.is_true(_DRAINED):
            self._set_waiting(terminating, _DRAINED, "Draining", found)
        return _StepBlocked(DRAIN_POLL_SECONDS, found or (text,))

    async def _pods_to_drain(self, terminating: _TerminatingNode) -> list[Pod]:
        """The pods that must go. That there is none is believed to the API server only."""
        now = self._context.clock.now()
        bound: Iterable[Pod] = self._context.state.pods_on(terminating.name)
        waiting = [pod for pod in bound if pod_disruption.needs_draining(pod, now)]
        if waiting or terminating.is_true(_DRAINED) or not _may_finish(terminating):
            return waiting
        return [
            pod
            for pod in await pods_on_node(self._context, terminating.name)
            if pod_disruption.needs_draining(pod, now)
        ]

    def _evictable(self, tier: Iterable[Pod], now: datetime) -> list[Pod]:
        """Those of a tier that may be asked to go now, the least costly first."""
        for pod in tier:
            pod_eviction.publish_pod_protection(self._context, pod)
        found = [pod for pod in tier if pods.is_active(pod) and not pod_disruption.is_protected(pod, now)]
        return sorted(
            found, key=lambda pod: (pod_disruption.eviction_cost(pod), pod.metadata.namespace, pod.metadata.name)
        )

    def _finish_drain(self, terminating: _TerminatingNode) -> _StepBlocked | None:
        """No pod is left; whether the drain may end now, or pods may still be on their way (DIS-524)."""
        if terminating.draft is None or terminating.is_true(_DRAINED):
            return None
        if _may_finish(terminating):
            terminating.set_condition(_DRAINED, conditions.TRUE)
            return None
        self._set_waiting(terminating, _DRAINED, "Draining", ())
        return _StepBlocked(DRAIN_POLL_SECONDS, ("pods may still be arriving",))

    def _drain_blockers(self, terminating: _TerminatingNode, waiting: Sequence[Pod]) -> tuple[str, ...]:
        """What keeps pods on the node, and what else is wrong while it lasts."""
        refusals = self._eviction_queue.eviction_errors(terminating.name)
        budgets = self._context.state.pdbs() if refusals else ()
        picture = blockers.DrainState(waiting, budgets, refusals, terminating.now)
        found = blockers.pod_blockers(picture)
        if terminating.invalid_deadline:
            found = (blockers.deadline_blocker(terminating.invalid_deadline), *found)
        provider_id = terminating.node.spec.provider_id
        fault = self._instance_termination.last_error(provider_id)
        return found if fault is None else (*found, blockers.instance_blocker(provider_id, fault))

    def _publish_deadline(self, terminating: _TerminatingNode) -> None:
        """DIS-513"""
        if terminating.invalid_deadline:
            self._publish_failed_draining(
                terminating.node,
                f"Failed to drain node, {blockers.deadline_blocker(terminating.invalid_deadline)}",
                "deadline",
            )
        if terminating.deadline is not None:
            text = f"All pods will be deleted by {rfc3339(terminating.deadline)}"
            about = involved_node(terminating.node.metadata)
            self._context.events.publish(ObjectEvent(about, WARNING, "TerminationGracePeriodExpiring", text))

    def _publish_failed_draining(self, node: Node, text: str, *values: str) -> None:
        self._context.events.publish(ObjectEvent(involved_node(node.metadata), WARNING, "FailedDraining", text, values))

    # -- volumes --------------------------------------------------------------------------------------------------------

    def _await_volume_detachment(self, terminating: _TerminatingNode) -> _StepBlocked | None:
        """Wait until volumes are detached, or the time is up (DIS-540 to DIS-542)."""
        attached = volume_detachment.awaited_attachments(self._context.state, terminating.name, terminating.now)
        if not attached:
            terminating.set_condition(_VOLUMES_DETACHED, conditions.TRUE)
            return None
        if terminating.is_past_deadline():
            terminating.set_condition(_VOLUMES_DETACHED, conditions.FALSE, _GRACE_PERIOD_ELAPSED, _GRACE_PERIOD_ELAPSED)
            return None
        names = [item.metadata.name for item in attached]
        text = f"Awaiting volume detachment, {shortened(names)}"
        self._context.events.publish(
            ObjectEvent(involved_node(terminating.node.metadata), NORMAL, "AwaitingVolumeDetachment", text)
        )
        found = [
            blockers.volume_blocker(item, volume_detachment.volume_claim_of(self._context.state, item))
            for item in attached
        ]
        self._set_waiting(terminating, _VOLUMES_DETACHED, "AwaitingVolumeDetachment", found)
        return _StepBlocked(DRAIN_POLL_SECONDS, found)

    # -- the machine ----------------------------------------------------------------------------------------------------

    async def _terminate_instance(self, terminating: _TerminatingNode) -> _StepBlocked | None:
        """Have the instance ended, and wait until it is gone (DIS-545)."""
        if terminating.draft is None:
            return None
        provider_id = terminating.node.spec.provider_id
        try:
            left = await self._instance_termination.terminate(terminating.draft, provider_id)
        except ProviderError as fault:
            return _StepBlocked(0.0, (blockers.instance_blocker(provider_id, fault),), fault)
        return _StepBlocked(left, (blockers.instance_blocker(provider_id, None),)) if left > 0 else None

    async def _remove_finalizer(self, node: Node) -> None:
        """Let the Node go, and count it (OPS-418, OPS-419)."""
        meta = node.metadata
        self._eviction_queue.remove_node(meta.name)
        left = [name for name in meta.finalizers if name != labels.TERMINATION_FINALIZER]
        patch: JsonObject = {"metadata": {"finalizers": left}}
        await self._context.kube.patch(NODE, meta.name, patch, resource_version=meta.resource_version)
        _log.info("deleted node")
        self._instance_termination.forget(node.spec.provider_id)
        now, pool = self._context.clock.now(), meta.labels.get(labels.NODE_POOL, "")
        metrics = self._context.metrics
        metrics.nodes_terminated_total.labels(nodepool=pool, zone=meta.labels.get(labels.ZONE, "")).inc()
        metrics.nodes_termination_duration_seconds.labels(nodepool=pool).observe(
            (now - (meta.deletion_timestamp or now)).total_seconds()
        )


def _split_forced(waiting: Iterable[Pod], terminating: _TerminatingNode) -> tuple[list[Pod], list[Pod]]:
    """The pods that must be deleted for the deadline's sake, and the others."""
    forced: list[Pod] = []
    rest: list[Pod] = []
    for pod in waiting:
        (forced if must_delete_pod(pod, terminating.deadline, terminating.now) else rest).append(pod)
    return forced, rest


def _may_finish(terminating: _TerminatingNode) -> bool:
    """Whether the drain may end now (DIS-524), so that it is worth asking the API server itself who is still there."""
    if terminating.draft is None:
        return True
    drained = terminating.draft.condition(_DRAINED)
    since = drained.last_transition_time if drained is not None else None
    return since is not None and terminating.now - since >= MIN_DRAIN_DURATION


def _parse_time(text: str) -> datetime | None:
    """The time an annotation spells; None for anything that is not RFC 3339."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
