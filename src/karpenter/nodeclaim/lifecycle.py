"""The life of a NodeClaim from creation to the removal of its finalizer (OPS §1).

One look takes every step that can be taken, in the order of ``Lifecycle._steps``; then what changed is written. A look never acts
on a picture older than its own last write: it waits until that write has come back through the watch, which is what the
reference's one-second sleep is for.

Expiration, hydration, drift and the consistency check are steps here and not controllers of their own: one writer per claim
means that no two of them meet, and that a claim is written once where several things changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import structlog

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.model import labels, runtime_validation
from karpenter.nodeclaim import consolidatable, expiration
from karpenter.nodeclaim.consistency import NodeClaimConsistency, OwnershipIssueReporter
from karpenter.nodeclaim.drift_detection import DaemonSetFitCheck, DriftDetection
from karpenter.nodeclaim.hydration import NodeClaimHydration
from karpenter.nodeclaim.initialization import NodeClaimInitialization
from karpenter.nodeclaim.liveness import DEFAULT_TIMEOUTS, LivenessTimeouts, NodeClaimLiveness
from karpenter.nodeclaim.nodeclaim_launch import NodeClaimLaunch
from karpenter.nodeclaim.registration import NodeClaimRegistration
from karpenter.providers.contract import ProviderError
from karpenter.provisioning.nomination import PodNominator
from karpenter.runtime.controller_context import ControllerContext
from karpenter.runtime.events import WARNING, ObjectEvent, involved_claim
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft
from karpenter.termination.nodeclaim_termination import NodeClaimTermination

#: How long a look waits to see its own last write before it trusts the watch again.
_OWN_WRITE_TIMEOUT_SECONDS = 5.0
#: How long a claim that was given up may go on looking as if it had not been.
_OWN_DELETION_TIMEOUT_SECONDS = 60.0
#: How soon to look again at something another writer changed in between.
_CONFLICT_REQUEUE_SECONDS = 0.2
_log = structlog.get_logger()

_Subreconciler = Callable[[NodeClaimDraft], Awaitable[None]]


class NodeClaimLifecycle:
    """Takes claims through their life, one look at a time."""

    def __init__(
        self, context: ControllerContext, nominator: PodNominator, timeouts: LivenessTimeouts = DEFAULT_TIMEOUTS
    ) -> None:
        self._context = context
        self._nominator = nominator
        self._termination = NodeClaimTermination(context)
        self._launch = NodeClaimLaunch(context)
        registrar, initialiser = NodeClaimRegistration(context, nominator), NodeClaimInitialization(context)
        hydrator, consistency, troubles = (
            NodeClaimHydration(context),
            NodeClaimConsistency(context),
            OwnershipIssueReporter(context),
        )
        self._drift = DriftDetection(context)
        self._subreconcilers: tuple[_Subreconciler, ...] = (
            partial(expiration.reconcile_expiration, context=context),
            hydrator.reconcile_claim,
            self._launch.reconcile,
            registrar.reconcile,
            initialiser.reconcile,
            NodeClaimLiveness(context, timeouts).reconcile,
            hydrator.reconcile_node,
            consistency.reconcile,
            troubles.reconcile,
            partial(consolidatable.reconcile_consolidatable, context=context),
            DaemonSetFitCheck(context).reconcile,
            self._drift.reconcile,
        )
        self._stateful_subreconcilers = (self._launch, registrar, initialiser, consistency, troubles, self._drift)
        self._unobserved_writes: dict[str, tuple[str, float]] = {}
        self._deleted_claims: dict[str, tuple[str, float]] = {}

    def observe(self, claim: NodeClaim) -> None:
        """The watch delivered this version of a claim."""
        version, _ = self._unobserved_writes.get(claim.metadata.name, ("", 0.0))
        if version == claim.metadata.resource_version:
            del self._unobserved_writes[claim.metadata.name]

    def node_class_changed(self) -> None:
        """A node class was edited, of whichever kind."""
        self._drift.node_class_changed()

    def forget(self, name: str) -> None:
        """The claim is gone."""
        self._unobserved_writes.pop(name, None)
        self._deleted_claims.pop(name, None)
        for memory in self._stateful_subreconcilers:
            memory.forget(name)

    async def reconcile(self, name: str) -> float | None:
        """Take the next steps of one claim; seconds until the next look, None to wait for events.

        Raises ``KubeError`` or ``ProviderError`` when a step failed and should be retried with back-off.
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
            self._expect_version(draft.name, await draft.write(self._context))
            if draft.expected_node_name:
                await self._nominator.nominate_planned_pods(draft.name, draft.expected_node_name)
        return _requeue_after(draft)

    async def _run_subreconcilers(self, draft: NodeClaimDraft) -> None:
        """One step's failure does not keep the later ones from being taken (OPS-004); the end of the claim does."""
        for step in self._subreconcilers:
            try:
                await step(draft)
            except (KubeError, ProviderError) as error:
                draft.errors.append(error)
            if draft.is_deleted:
                return

    def _was_deleted(self, claim: NodeClaim) -> bool:
        """Whether this claim is deleted although the watch does not say so yet: it must not be counted twice."""
        uid, until = self._deleted_claims.get(claim.metadata.name, ("", 0.0))
        return uid == claim.metadata.uid and asyncio.get_running_loop().time() < until

    async def _write_finalizers(self, claim: NodeClaim, finalizers: list[str]) -> None:
        """No instance before the finalizer is stored, or one could leak (OPS-003).

        Claims of ours are born with it, so whoever wrote this one by hand is told here what in it is probably not meant.
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
    """When to look again. A Node that changed or went meanwhile means soon; any other failed step is raised."""
    for error in draft.errors:
        if not isinstance(error, Conflict | NotFound):
            raise error
    if draft.errors:
        draft.requeue_after(_CONFLICT_REQUEUE_SECONDS)
    return draft.requeue_after_seconds


def _advice_events(claim: NodeClaim) -> Iterator[ObjectEvent]:
    for finding in runtime_validation.advise_object(claim):
        about, values = involved_claim(claim.metadata), (finding.path, finding.code)
        yield ObjectEvent(about, WARNING, "NodeClaimAdvice", str(finding), values)


def _log_context(claim: NodeClaim) -> dict[str, object]:
    """What log lines of this claim carry besides its name (OPS-007)."""
    found: dict[str, object] = {}
    if claim.status.provider_id:
        found["provider-id"] = claim.status.provider_id
    if claim.status.node_name:
        found["Node"] = {"name": claim.status.node_name}
    return found
