"""How much a move has to be worth before pods are moved for money: settings of a NodePool for consolidation (DIS-487).

They stand in annotations of the NodePool, which other tools ignore:

* ``karpenter.sh/minimum-saving-ratio``, such as ``0.3``: the least score of a move (DIS-253), that is the share of the pool's
  cost it saves over the share of the pool's disruption it causes. 1 means that a move has to save as much as a node of average
  price gives back for restarting an average node's pods; 0 takes any saving. Without it: what the consolidation policy stands
  for, 0.5 with ``Balanced`` (DIS-254), else 0.1. That is, on a node of average load, a tenth of its price: replacing nodes
  for less is how clusters come to move pods for ever, since prices of neighbouring types and zones differ by a few per cent,
  while a real step down in size saves a quarter or more.
* ``karpenter.sh/minimum-node-age``, such as ``30m``: nodes younger than that are not consolidated. Without it five minutes: pods
  that were just started are not restarted at once, and a wave of pods that comes in batches has settled by then. Empty nodes are
  not concerned; how soon they go is for ``consolidateAfter`` to say.

A setting that cannot be read holds all moves back: no score reaches it, no node is old enough. Emptiness and drift go on.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta

from karpenter.api.karpenter import NodePool
from karpenter.model import durations, labels, structural_schema
from karpenter.model.structural_schema import Finding

#: Least score of a move with the policy Balanced (DIS-045, DIS-254), and with the others.
BALANCED_RATIO = 0.5
DEFAULT_RATIO = 0.1
DEFAULT_NODE_AGE = timedelta(minutes=5)

_RATIO_PATH = structural_schema.child_path("metadata.annotations", labels.MINIMUM_SAVING_RATIO)
_AGE_PATH = structural_schema.child_path("metadata.annotations", labels.MINIMUM_NODE_AGE)
_RATIO = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?", re.ASCII)
_LONGEST_SHOWN = 40
_CONSEQUENCE = "until that is mended, no node of the pool is consolidated"


@dataclass(frozen=True, slots=True)
class ConsolidationThresholds:
    """What consolidation of a pool's nodes has to respect.

    ``minimum_saving_ratio`` is compared with DIS-253's score: enough at equality. ``minimum_node_age`` counts from the creation
    of the NodeClaim. ``findings`` are settings that could not be read; what they are about is then out of reach.
    """

    minimum_saving_ratio: float = DEFAULT_RATIO
    minimum_node_age: timedelta = DEFAULT_NODE_AGE
    findings: tuple[Finding, ...] = ()


def consolidation_thresholds(pool: NodePool) -> ConsolidationThresholds:
    """The settings of a pool."""
    findings: list[Finding] = []
    return ConsolidationThresholds(
        _minimum_saving_ratio(pool, findings), _minimum_node_age(pool, findings), tuple(findings)
    )


def _minimum_saving_ratio(pool: NodePool, findings: list[Finding]) -> float:
    text = pool.metadata.annotations.get(labels.MINIMUM_SAVING_RATIO)
    if text is None:
        return BALANCED_RATIO if pool.spec.disruption.consolidation_policy == "Balanced" else DEFAULT_RATIO
    if _RATIO.fullmatch(text) is None:
        findings.append(_unparseable(_RATIO_PATH, text, "a ratio such as 0.5, or 0 for any saving"))
        return math.inf
    return float(text)


def _minimum_node_age(pool: NodePool, findings: list[Finding]) -> timedelta:
    text = pool.metadata.annotations.get(labels.MINIMUM_NODE_AGE)
    if text is None:
        return DEFAULT_NODE_AGE
    try:
        age = durations.parse_duration(text)
    except durations.DurationError:
        age = timedelta(-1)
    if age < timedelta(0):
        findings.append(_unparseable(_AGE_PATH, text, "a duration such as 30m, or 0s for any age"))
        return timedelta.max
    return age


def _unparseable(path: str, text: str, expected: str) -> Finding:
    shown = text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
    return Finding(path, "calm", f"{shown!r} is not {expected}; {_CONSEQUENCE}")
