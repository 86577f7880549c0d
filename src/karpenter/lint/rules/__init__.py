"""All rules of ``karpenter lint``, by topic. An ID stays with its rule for good; those of dropped rules are not used again."""

from __future__ import annotations

from karpenter.lint.rule import Rule
from karpenter.lint.rules import (
    budgets,
    disruption,
    ec2_node_classes,
    evictions,
    monitoring,
    objects,
    placement,
    pod_requests,
    pool_overlaps,
    pools,
    schedules,
)

#: By ID.
RULES: tuple[Rule, ...] = (
    *objects.RULES,
    *budgets.RULES,
    *schedules.RULES,
    *disruption.RULES,
    *pools.RULES,
    *pool_overlaps.RULES,
    *ec2_node_classes.RULES,
    *pod_requests.RULES,
    *placement.RULES,
    *evictions.RULES,
    *monitoring.RULES,
)
