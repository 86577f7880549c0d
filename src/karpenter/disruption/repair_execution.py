"""Carrying out node repair: committing reboots, remembering them, and counting what is repaired (K15-236, K15-280, K15-452)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import structlog

from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import NODE_CLAIM
from karpenter.controller_context import ControllerContext
from karpenter.disruption.decide.command import Command, Repair
from karpenter.disruption.queued_command import QueuedCommand
from karpenter.disruption.repair_matches import match_fields
from karpenter.kube.errors import Conflict, KubeError, NotFound
from karpenter.model import conditions, durations, labels
from karpenter.model.feature_gates import FeatureGate
from karpenter.model.repair_policies import PolicyMatch, RepairPolicy
from karpenter.model.setting_kinds import Profile
from karpenter.providers.contract import CloudProvider
from karpenter.runtime import nodeclaim_deletion
from karpenter.runtime.nodeclaim_draft import NodeClaimDraft
from karpenter.runtime.process_settings import ProcessSettings

#: So many reboots within the period, and the next repair replaces the node (K15-236).
MAX_REBOOTS = 2
REBOOT_PERIOD = timedelta(hours=24)
_UNHEALTHY = "Unhealthy"
_log = structlog.get_logger()


def repair_policies_of(provider: CloudProvider, settings: ProcessSettings) -> tuple[RepairPolicy, ...] | None:
    """The repair policies of a provider; None where it defines none, and repair may be on by the default of the profile.

    In the profile karpenter the gate is on by choice only, and a provider without policies is refused (K15-051).
    """
    policies = provider.repair_policies()
    if policies or settings.profile is Profile.KARPENTER:
        return policies
    if FeatureGate.NODE_REPAIR in settings.gates:
        is_requested = FeatureGate.NODE_REPAIR in settings.feature_gates.requested
        log = _log.warning if is_requested else _log.info
        log("node repair is off: the cloud provider defines no repair policies", provider=provider.name)
    return None


class RebootHistory:
    """Which NodeClaims were rebooted lately. It lives in memory: a new process starts to count anew (K15-236)."""

    def __init__(self) -> None:
        self._reboots: dict[str, list[datetime]] = {}

    def record(self, uid: str, now: datetime) -> None:
        """A reboot of the NodeClaim with this uid was committed."""
        recent = {key: [at for at in moments if now - at < REBOOT_PERIOD] for key, moments in self._reboots.items()}
        self._reboots = {key: moments for key, moments in recent.items() if moments}
        self._reboots.setdefault(uid, []).append(now)

    def exhausted(self, claims: Iterable[NodeClaim], now: datetime) -> frozenset[str]:
        """Names of the claims that were rebooted so often that rebooting does not help."""
        counts = {
            uid: sum(now - at < REBOOT_PERIOD for at in moments) for uid, moments in self._reboots.items() if moments
        }
        return frozenset(claim.metadata.name for claim in claims if counts.get(claim.metadata.uid, 0) >= MAX_REBOOTS)


class RebootStarter:
    """Commits reboots: from then on the controller ``nodeclaim.reboot`` carries them out (K15-280, K15-281)."""

    def __init__(self, context: ControllerContext, history: RebootHistory) -> None:
        self._context = context
        self._history = history

    async def start(self, command: Command, repair: Repair) -> bool:
        """Commit the reboot of the command's node; False if it is rebooting or going already, or cannot be written."""
        (candidate,) = command.candidates
        try:
            claim = await self._context.kube.get(NODE_CLAIM, candidate.key)
            if _is_rebooting_or_gone(claim, candidate.state_node.claim):
                return False
            await self._commit(claim, repair)
        except (NotFound, Conflict):
            return False
        except KubeError as error:
            _log.error("committing node reboot failed", NodeClaim={"name": candidate.key}, error=str(error))
            return False
        self._history.record(claim.metadata.uid, self._context.clock.now())
        log_selected_policy(candidate.state_node.name, repair)
        _log.info("committed node reboot", Node={"name": candidate.state_node.name}, NodeClaim={"name": candidate.key})
        nodeclaim_deletion.count_disrupted(self._context, claim, "unhealthy")
        count_repaired(self._context, claim, repair)
        return True

    async def _commit(self, claim: NodeClaim, repair: Repair) -> None:
        draft = NodeClaimDraft(claim, self._context.clock.now())
        bound = claim.spec.termination_grace_period
        if repair.drain_bound is not None:
            bound = durations.duration_text(repair.drain_bound)
        if bound is None:
            draft.remove_annotations((labels.REBOOT_GRACE_PERIOD,))
        else:
            draft.merge_metadata({}, {labels.REBOOT_GRACE_PERIOD: bound})
        condition = repair.decision.condition
        draft.set_condition(conditions.DISRUPTION_REASON, conditions.TRUE, _UNHEALTHY, _UNHEALTHY)
        message = f"rebooting for {condition.type}/{condition.reason}"
        draft.set_condition(conditions.REBOOTING, conditions.TRUE, "RebootRequested", message)
        await draft.write(self._context.kube)


def _is_rebooting_or_gone(claim: NodeClaim, decided: NodeClaim | None) -> bool:
    is_other = decided is None or claim.metadata.uid != decided.metadata.uid
    is_rebooting = conditions.is_true(claim.status.conditions, conditions.REBOOTING)
    return is_other or is_rebooting or claim.metadata.deletion_timestamp is not None


def count_repaired(context: ControllerContext, claim: NodeClaim, repair: Repair) -> None:
    """Count a repair that is carried out now, with the bound that its drain has (K15-452)."""
    bound = repair.drain_bound
    mode = nodeclaim_deletion.termination_mode(claim)
    if bound is not None:
        mode = "eventual" if bound > timedelta(0) else "forceful"
    nodeclaim_deletion.count_unhealthy(context, claim, repair.decision.condition.type, mode)


def log_selected_policy(node: str, repair: Repair) -> None:
    """Say which policy repairs a node (K15-500)."""
    decision = repair.decision
    fields = match_fields(PolicyMatch(decision.condition, decision.policy, decision.eligible_at))
    if repair.has_escalated:
        fields["reboot-escalated"] = True
    if repair.drain_bound is not None:
        fields["termination-grace-period"] = durations.duration_text(repair.drain_bound)
        fields["termination-grace-period-condition"] = repair.decision.drain_bound_condition
    _log.info("selected repair policy", Node={"name": node}, **fields)


def log_replacements(queued: QueuedCommand) -> None:
    """Say which policies a command that replaces broken nodes follows."""
    repair = queued.command.repair
    for candidate in queued.command.candidates if repair is not None else ():
        assert repair is not None
        log_selected_policy(candidate.state_node.name, repair)
