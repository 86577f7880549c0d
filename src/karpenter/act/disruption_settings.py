"""What a NodePool tells of its rules about disruption: settings nobody can read, and freezes that are on."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from karpenter.act.events import NORMAL, WARNING, Happening, about_pool
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import Condition
from karpenter.model import budgets, conditions, pool_rules
from karpenter.model.conditions import Conditions, Owner
from karpenter.model.freezes import CLUSTER_SOURCE, Freeze

#: On a pool with settings about disruption that cannot be read: False. It is used all the same (API-088 Beyond).
SETTINGS_VALID = "DisruptionSettingsValid"
#: On a pool that is frozen: True.
FROZEN = "DisruptionFrozen"
_INVALID = "DisruptionSettingsInvalid"
_UNREADABLE = "FreezeUnreadable"
_log = structlog.get_logger()


def judged(found: Conditions, pool: NodePool, freeze: Freeze | None, owner: Owner) -> Conditions:
    """The conditions of a pool with those about disruption: there while there is something to say, and only then."""
    wishes = {SETTINGS_VALID: _settings(pool), FROZEN: _frozen(freeze)}
    for type_, wish in wishes.items():
        if wish is not None:
            found = conditions.put(found, wish, owner)
        elif conditions.find(found, type_) is not None:
            found = conditions.clear(found, type_, owner)
    return found


def _settings(pool: NodePool) -> Condition | None:
    findings = pool_rules.unreadable(pool)
    if not findings:
        return None
    text = "; ".join(str(finding) for finding in findings)
    return Condition(type=SETTINGS_VALID, status=conditions.FALSE, reason=_INVALID, message=text)


def _frozen(freeze: Freeze | None) -> Condition | None:
    if freeze is None:
        return None
    reason = "ClusterFrozen" if freeze.source == CLUSTER_SOURCE else "NodePoolFrozen"
    if freeze.findings:
        reason = _UNREADABLE
    return Condition(type=FROZEN, status=conditions.TRUE, reason=reason, message=str(freeze))


def turned(pool: NodePool, after: Conditions) -> tuple[Happening, ...]:
    """Events for a freeze that begins, changes or ends between a pool's conditions as they are and ``after``."""
    was, now = (conditions.find(found, FROZEN) for found in (pool.status.conditions, after))
    about = about_pool(pool.metadata)
    if now is not None and (was is None or was.message != now.message):
        sort = WARNING if now.reason == _UNREADABLE else NORMAL
        return (Happening(about, sort, FROZEN, f"No node is disrupted: {now.message}", (now.message,)),)
    if now is None and was is not None:
        since = str(was.last_transition_time)
        return (Happening(about, NORMAL, "DisruptionThawed", "Nodes may be disrupted again", (since,)),)
    return ()


class BudgetErrors:
    """Says in the log which pools have budgets that cannot be evaluated (DIS-052): again when that changes."""

    def __init__(self) -> None:
        self._said = ""

    def tell(self, pools: Iterable[NodePool]) -> None:
        """To be called now and then, with the pools that are ours to act on."""
        errors = "; ".join(
            f"NodePool {pool.metadata.name}: {finding}" for pool in pools for finding in budgets.of_pool(pool).findings
        )
        if errors and errors != self._said:
            _log.error("detected disruption budget errors", error=errors)
        self._said = errors
