"""Conditions and events of a NodePool about disruption: unparseable settings and active freezes."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from karpenter.api.karpenter import NodePool
from karpenter.api.meta import Condition
from karpenter.model import conditions, disruption_rules, nodepool_budgets
from karpenter.model.conditions import ConditionedObject, Conditions
from karpenter.model.freezes import CLUSTER_SOURCE, Freeze
from karpenter.runtime.events import NORMAL, WARNING, ObjectEvent, involved_pool

#: False on a pool with disruption settings that cannot be parsed. The pool stays in use (API-088 Beyond).
DISRUPTION_SETTINGS_VALID = "DisruptionSettingsValid"
#: True on a frozen pool.
DISRUPTION_FROZEN = "DisruptionFrozen"
_SETTINGS_INVALID_REASON = "DisruptionSettingsInvalid"
_FREEZE_UNREADABLE_REASON = "FreezeUnreadable"
_log = structlog.get_logger()


def with_disruption_conditions(
    current: Conditions, pool: NodePool, freeze: Freeze | None, owner: ConditionedObject
) -> Conditions:
    """The conditions of a pool with those about disruption, which exist only while they apply."""
    desired = {DISRUPTION_SETTINGS_VALID: _settings_condition(pool), DISRUPTION_FROZEN: _frozen_condition(freeze)}
    for type_, condition in desired.items():
        if condition is not None:
            current = conditions.set_condition(current, condition, owner)
        elif conditions.find_condition(current, type_) is not None:
            current = conditions.clear(current, type_, owner)
    return current


def _settings_condition(pool: NodePool) -> Condition | None:
    findings = disruption_rules.unparseable_settings(pool)
    if not findings:
        return None
    text = "; ".join(str(finding) for finding in findings)
    return Condition(
        type=DISRUPTION_SETTINGS_VALID, status=conditions.FALSE, reason=_SETTINGS_INVALID_REASON, message=text
    )


def _frozen_condition(freeze: Freeze | None) -> Condition | None:
    if freeze is None:
        return None
    reason = "ClusterFrozen" if freeze.source == CLUSTER_SOURCE else "NodePoolFrozen"
    if freeze.findings:
        reason = _FREEZE_UNREADABLE_REASON
    return Condition(type=DISRUPTION_FROZEN, status=conditions.TRUE, reason=reason, message=str(freeze))


def freeze_events(pool: NodePool, after: Conditions) -> tuple[ObjectEvent, ...]:
    """Events for a freeze that begins, changes or ends between a pool's conditions as they are and ``after``."""
    before, frozen = (
        conditions.find_condition(pool_conditions, DISRUPTION_FROZEN)
        for pool_conditions in (pool.status.conditions, after)
    )
    involved = involved_pool(pool.metadata)
    if frozen is not None and (before is None or before.message != frozen.message):
        event_type = WARNING if frozen.reason == _FREEZE_UNREADABLE_REASON else NORMAL
        return (
            ObjectEvent(
                involved, event_type, DISRUPTION_FROZEN, f"No node is disrupted: {frozen.message}", (frozen.message,)
            ),
        )
    if frozen is None and before is not None:
        since = str(before.last_transition_time)
        return (ObjectEvent(involved, NORMAL, "DisruptionThawed", "Nodes may be disrupted again", (since,)),)
    return ()


class BudgetErrorLog:
    """Logs which pools have budgets that cannot be evaluated, again after each change (DIS-052)."""

    def __init__(self) -> None:
        self._logged_errors = ""

    def log_changes(self, pools: Iterable[NodePool]) -> None:
        """Log the errors if they changed. Called periodically with all managed pools."""
        errors = "; ".join(
            f"NodePool {pool.metadata.name}: {finding}"
            for pool in pools
            for finding in nodepool_budgets.nodepool_budgets(pool).findings
        )
        if errors and errors != self._logged_errors:
            _log.error("detected disruption budget errors", error=errors)
        self._logged_errors = errors
