"""What a NodePool tells of its rules about disruption: settings nobody can read, and freezes that are on."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from karpenter.api.karpenter import NodePool
from karpenter.api.meta import Condition
from karpenter.model import conditions, disruption_rules, nodepool_budgets
from karpenter.model.conditions import ConditionedObject, Conditions
from karpenter.model.freezes import CLUSTER_SOURCE, Freeze
from karpenter.runtime.events import NORMAL, WARNING, ObjectEvent, involved_pool

#: On a pool with settings about disruption that cannot be read: False. It is used all the same (API-088 Beyond).
DISRUPTION_SETTINGS_VALID = "DisruptionSettingsValid"
#: On a pool that is frozen: True.
DISRUPTION_FROZEN = "DisruptionFrozen"
_SETTINGS_INVALID_REASON = "DisruptionSettingsInvalid"
_FREEZE_UNREADABLE_REASON = "FreezeUnreadable"
_log = structlog.get_logger()


def with_disruption_conditions(
    current: Conditions, pool: NodePool, freeze: Freeze | None, owner: ConditionedObject
) -> Conditions:
    """The conditions of a pool with those about disruption: there while there is something to say, and only then."""
    wishes = {DISRUPTION_SETTINGS_VALID: _settings_condition(pool), DISRUPTION_FROZEN: _frozen_condition(freeze)}
    for type_, wish in wishes.items():
        if wish is not None:
            current = conditions.set_condition(current, wish, owner)
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
    was, now = (conditions.find_condition(found, DISRUPTION_FROZEN) for found in (pool.status.conditions, after))
    about = involved_pool(pool.metadata)
    if now is not None and (was is None or was.message != now.message):
        sort = WARNING if now.reason == _FREEZE_UNREADABLE_REASON else NORMAL
        return (ObjectEvent(about, sort, DISRUPTION_FROZEN, f"No node is disrupted: {now.message}", (now.message,)),)
    if now is None and was is not None:
        since = str(was.last_transition_time)
        return (ObjectEvent(about, NORMAL, "DisruptionThawed", "Nodes may be disrupted again", (since,)),)
    return ()


class BudgetErrorLog:
    """Says in the log which pools have budgets that cannot be evaluated (DIS-052): again when that changes."""

    def __init__(self) -> None:
        self._logged_errors = ""

    def log_changes(self, pools: Iterable[NodePool]) -> None:
        """To be called now and then, with the pools that are ours to act on."""
        errors = "; ".join(
            f"NodePool {pool.metadata.name}: {finding}"
            for pool in pools
            for finding in nodepool_budgets.nodepool_budgets(pool).findings
        )
        if errors and errors != self._logged_errors:
            _log.error("detected disruption budget errors", error=errors)
        self._logged_errors = errors
