"""The NodeClaim life cycle controller: from creation to the removal of the finalizer (OPS §1).

One pass runs all subreconcilers in order on one draft of the claim and writes the differences once. A pass never reads a claim
older than its own last write: it waits until the watch has delivered that write. Karpenter sleeps one second instead.

Expiration, hydration, drift and consistency are subreconcilers here, not controllers of their own as in Karpenter: a claim then
has one writer, which avoids conflicts, and several changes cost one write. A pass costs O(pods and claims of the node) and does
not depend on cluster size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import structlog

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.controller_context import ControllerContext
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.model import labels, runtime_validation
from karpenter.nodeclaim.consistency import NodeClaimConsistency, OwnershipIssueReporter
from karpenter.nodeclaim.consolidatable import NodeClaimConsolidatable
from karpenter.nodeclaim.drift_detection import DaemonSetFitCheck, DriftDetection
from karpenter.nodeclaim.expiration import NodeClaimExpiration
from karpenter.nodeclaim.hydration import NodeClaimHydration, NodeHydration
from karpenter.nodeclaim.initialization import NodeClaimInitialization
from karpenter.nodeclaim.liveness import DEFAULT_TIMEOUTS, LivenessTimeouts, NodeClaimLiveness
from karpenter.nodeclaim.nodeclaim_launch import NodeClaimLaunch
from karpenter.nodeclaim.registration import NodeClaimRegistration
from karpenter.nodeclaim.subreconciler import NodeClaimSubreconciler
from karpenter.providers.contract import ProviderError
from karpenter.provisioning.nomination import PodNominator
from karpenter.runtime.events import WARNING, ObjectEvent, involved_claim
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft
from karpenter.termination.instance_termination import InstanceTermination
from karpenter.termination.nodeclaim_termination import NodeClaimTermination

#: How long a pass waits for the watch to deliver the last write of its claim.
_OWN_WRITE_TIMEOUT_SECONDS = 5.0
#: How long the watch may take to deliver a deletion made here.
_OWN_DELETION_TIMEOUT_SECONDS = 60.0
#: Requeue delay after a write conflict.
_CONFLICT_REQUEUE_SECONDS = 0.2
_log = structlog.get_logger()


class NodeClaimLifecycle:
    """Reconciles NodeClaims by name."""

    def __init__(
        self,
        context: ControllerContext,
        nominator: PodNominator,
        instance_termination: InstanceTermination,
        timeouts: LivenessTimeouts = DEFAULT_TIMEOUTS,
        expiration_window: timedelta = timedelta(),
    ) -> None:
        self._context = context
        self._nominator = nominator
        self._termination = NodeClaimTermination(context, instance_termination)
        self._launch = NodeClaimLaunch(context)
        self._drift = DriftDetection(context, expiration_window)
        self._subreconcilers: tuple[NodeClaimSubreconciler, ...] = (
            NodeClaimExpiration(context),
            NodeClaimHydration(context),
            self._launch,
            NodeClaimRegistration(context, nominator),
            NodeClaimInitialization(context),
            NodeClaimLiveness(context, timeouts),
            NodeHydration(context),
            NodeClaimConsistency(context),
            OwnershipIssueReporter(context),
            NodeClaimConsolidatable(context),
            DaemonSetFitCheck(context),
            self._drift,
        )
        self._unobserved_writes: dict[str, tuple[str, float]] = {}
        self._deleted_claims: dict[str, tuple[str, float]] = {}

    def observe(self, claim: NodeClaim) -> None:
        """The watch delivered this version of a claim."""
        version, _ = self._unobserved_writes.get(claim.metadata.name, ("", 0.0))
        if version == claim.metadata.resource_version:
            del self._unobserved_writes[claim.metadata.name]

    def node_class_changed(self) -> None:
        """A node class of any kind changed."""
        self._drift.node_class_changed()

    def forget(self, name: str) -> None:
        """The claim is gone: drop everything cached for it."""
        self._unobserved_writes.pop(name, None)
        self._deleted_claims.pop(name, None)
        for subreconciler in self._subreconcilers:
            subreconciler.forget(name)

    async def reconcile(self, name: str) -> float | None:
        """Reconcile one claim; returns seconds until the next pass, None to wait for events.

        Raises ``KubeError`` or ``ProviderError`` when a subreconciler failed; the queue retries with backoff.
        """
        claim = self._context.state.claim(name)
        if claim is None or not self._context.is_managed(claim):
            return None
        if self._awaits_own_write(name):
            return _OWN_WRITE_TIMEOUT_SECONDS
        with structlog.contextvars.bound_contextvars(NodeClaim={"name": name}, **_log_context(claim)):
            try:
                return await self._reconcile(claim)
            except NotFound:
                return None
            except Conflict:
                return _CONFLICT_REQUEUE_SECONDS

    def _awaits_own_write(self, name: str) -> bool:
        _, until = self._unobserved_writes.get(name, ("", 0.0))
        if until and until <= asyncio.get_running_loop().time():
            del self._unobserved_writes[name]
        return name in self._unobserved_writes

    async def _reconcile(self, claim: NodeClaim) -> float | None:
        if claim.metadata.deletion_timestamp is not None:
            return await self._termination.reconcile(claim, self._launch.launched_provider_id(claim))
        if self._was_deleted(claim):
            return _OWN_DELETION_TIMEOUT_SECONDS
        if labels.TERMINATION_FINALIZER not in claim.metadata.finalizers:
            finalizers = [*claim.metadata.finalizers, labels.TERMINATION_FINALIZER]
            await self._write_finalizers(claim, finalizers)
            return None
        draft = NodeClaimDraft(claim, self._context.clock.now())
        draft.observe_generation()
        await self._run_subreconcilers(draft)
        if draft.was_deleted_here:
            until = asyncio.get_running_loop().time() + _OWN_DELETION_TIMEOUT_SECONDS
            self._deleted_claims[draft.name] = draft.claim.metadata.uid, until
            return None
        if not draft.is_deleted:
            self._expect_version(draft.name, await draft.write(self._context.kube))
            if draft.expected_node_name:
                await self._nominator.nominate_planned_pods(draft.name, draft.expected_node_name)
        return _requeue_after(draft)

    async def _run_subreconcilers(self, draft: NodeClaimDraft) -> None:
        """Run all subreconcilers, also after one failed (OPS-004); stop once the claim is deleted."""
        for subreconciler in self._subreconcilers:
            try:
                await subreconciler.reconcile(draft)
            except (KubeError, ProviderError) as error:
                draft.errors.append(error)
            if draft.is_deleted:
                return

    def _was_deleted(self, claim: NodeClaim) -> bool:
        """Whether this claim was deleted here and the watch has not delivered that yet: it must not be counted twice."""
        uid, until = self._deleted_claims.get(claim.metadata.name, ("", 0.0))
        return uid == claim.metadata.uid and asyncio.get_running_loop().time() < until

    async def _write_finalizers(self, claim: NodeClaim, finalizers: list[str]) -> None:
        """Store the finalizer before the launch, otherwise an instance could leak (OPS-003).

        The provisioner creates claims with the finalizer, so this one was written by hand: publish the advice on its spec, too.
        """
        self._context.events.publish(*_advice_events(claim))
        stored = await self._context.kube.patch(
            NODE_CLAIM,
            claim.metadata.name,
            {"metadata": {"finalizers": finalizers}},
            resource_version=claim.metadata.resource_version,
        )
        self._expect_version(claim.metadata.name, stored.metadata.resource_version)

    def _expect_version(self, name: str, version: str) -> None:
        current = self._context.state.claim(name)
        if version and (current is None or current.metadata.resource_version != version):
            self._unobserved_writes[name] = (version, asyncio.get_running_loop().time() + _OWN_WRITE_TIMEOUT_SECONDS)


def _requeue_after(draft: NodeClaimDraft) -> float | None:
    """The draft's requeue delay. Conflict and NotFound requeue soon; other errors of subreconcilers are raised.

    Several with different texts are one error with all texts: a ``ProviderError`` where one of them is the provider's.
    """
    serious = [error for error in draft.errors if not isinstance(error, Conflict | NotFound)]
    texts = "; ".join(dict.fromkeys(map(str, serious)))
    if serious and texts == str(serious[0]):
        raise serious[0]
    if any(isinstance(error, ProviderError) for error in serious):
        raise ProviderError(texts) from serious[0]
    if serious:
        raise KubeError(texts) from serious[0]
    if draft.errors:
        draft.requeue_after(_CONFLICT_REQUEUE_SECONDS)
    return draft.requeue_after_seconds


def _advice_events(claim: NodeClaim) -> Iterator[ObjectEvent]:
    for finding in runtime_validation.advise_object(claim):
        involved, values = involved_claim(claim.metadata), (finding.path, finding.code)
        yield ObjectEvent(involved, WARNING, "NodeClaimAdvice", str(finding), values)


def _log_context(claim: NodeClaim) -> dict[str, object]:
    """Log fields of this claim besides its name (OPS-007)."""
    fields: dict[str, object] = {}
    if claim.status.provider_id:
        fields["provider-id"] = claim.status.provider_id
    if claim.status.node_name:
        fields["Node"] = {"name": claim.status.node_name}
    return fields
