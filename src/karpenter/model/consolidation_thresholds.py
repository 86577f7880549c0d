"""Consolidation thresholds: the least saving and the least node age before pods are moved for money (DIS-487).

NodePools state them in annotations, which other tools ignore. The settings of the process give the values for NodePools without
annotations; the defaults named here are those of the profile lean.

* ``karpenter.sh/minimum-saving-ratio``, such as ``0.3``: the least score of a move (DIS-253), that is the share of the pool's
  cost it saves over the share of the pool's disruption it causes. 1 means that a move has to save as much as a node of average
  price for restarting an average node's pods; 0 accepts any saving. The default is 0.5 with the policy ``Balanced`` (DIS-254),
  else 0.3: a move saves three tenths of what its pods cost on average. Simulations chose it: with 0.1 services on demand had
  2.7 times the restarts at a higher price (docs/design/defaults.md). Prices of neighbouring types and zones differ by
  little, so without a ratio pods move for ever. A node that is half empty reaches 1 when one of half its size replaces it.
* ``karpenter.sh/minimum-node-age``, such as ``30m``: younger nodes are not consolidated. The default is five minutes: pods that
  just started are not restarted at once, and a wave of pods that comes in batches has settled by then. The default ends early
  for a node whose pods left: below three quarters of the CPU and of the memory its NodeClaim was launched for. Empty nodes are
  not concerned; ``consolidateAfter`` controls them.

An unparseable annotation blocks all moves of the pool: no score reaches it, no node is old enough. Emptiness and drift continue.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta

from karpenter.api.karpenter import NodePool
from karpenter.model import durations, labels, structural_schema
from karpenter.model.structural_schema import Finding
from karpenter.model.texts import shorten

#: Least score of a move with the policy Balanced (DIS-045, DIS-254), and with the others.
BALANCED_RATIO = 0.5
DEFAULT_RATIO = 0.3
DEFAULT_NODE_AGE = timedelta(minutes=5)
DEFAULT_STABILIZATION_WINDOW = timedelta(seconds=15)

_RATIO_PATH = structural_schema.child_path("metadata.annotations", labels.MINIMUM_SAVING_RATIO)
_AGE_PATH = structural_schema.child_path("metadata.annotations", labels.MINIMUM_NODE_AGE)
_RATIO = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?", re.ASCII)
_LONGEST_SHOWN = 40
_CONSEQUENCE = "until that is corrected, no node of the pool is consolidated"


@dataclass(frozen=True, slots=True)
class ConsolidationDefaults:
    """The thresholds of NodePools without annotations. ``wait_for_rollouts``: nodes of a workload in a rollout stay.

    ``stabilization_window``: nodes whose ``consolidateAfter`` ends within so long of each other wait for each other; 0 if none
    waits.
    """

    minimum_saving_ratio: float = DEFAULT_RATIO
    minimum_node_age: timedelta = DEFAULT_NODE_AGE
    wait_for_rollouts: bool = True
    stabilization_window: timedelta = DEFAULT_STABILIZATION_WINDOW


#: The defaults of the profile lean.
LEAN_CONSOLIDATION = ConsolidationDefaults()


@dataclass(frozen=True, slots=True)
class ConsolidationThresholds:
    """The thresholds of a NodePool.

    ``minimum_saving_ratio`` is compared with DIS-253's score: enough at equality. ``minimum_node_age`` counts from the creation
    of the NodeClaim; where it is the default (``is_default_age``) it ends early for nodes whose pods left. ``findings`` are
    unparseable annotations; no move reaches the threshold they set.
    """

    minimum_saving_ratio: float = DEFAULT_RATIO
    minimum_node_age: timedelta = DEFAULT_NODE_AGE
    findings: tuple[Finding, ...] = ()
    is_default_age: bool = True


def consolidation_thresholds(
    pool: NodePool, defaults: ConsolidationDefaults = LEAN_CONSOLIDATION
) -> ConsolidationThresholds:
    """The thresholds of a pool: its annotations, and the defaults."""
    findings: list[Finding] = []
    return ConsolidationThresholds(
        _minimum_saving_ratio(pool, defaults, findings),
        _minimum_node_age(pool, defaults, findings),
        tuple(findings),
        labels.MINIMUM_NODE_AGE not in pool.metadata.annotations,
    )


def _minimum_saving_ratio(pool: NodePool, defaults: ConsolidationDefaults, findings: list[Finding]) -> float:
    text = pool.metadata.annotations.get(labels.MINIMUM_SAVING_RATIO)
    if text is None:
        balanced = pool.spec.disruption.consolidation_policy == "Balanced"
        return BALANCED_RATIO if balanced else defaults.minimum_saving_ratio
    if _RATIO.fullmatch(text) is None:
        findings.append(_unparseable(_RATIO_PATH, text, "a ratio such as 0.5, or 0 for any saving"))
        return math.inf
    return float(text)


def _minimum_node_age(pool: NodePool, defaults: ConsolidationDefaults, findings: list[Finding]) -> timedelta:
    text = pool.metadata.annotations.get(labels.MINIMUM_NODE_AGE)
    if text is None:
        return defaults.minimum_node_age
    try:
        age = durations.parse_duration(text)
    except durations.DurationError:
        age = timedelta(-1)
    if age < timedelta(0):
        findings.append(_unparseable(_AGE_PATH, text, "a duration such as 30m, or 0s for any age"))
        return timedelta.max
    return age


def _unparseable(path: str, text: str, expected: str) -> Finding:
    shown = shorten(text, _LONGEST_SHOWN)
    return Finding(path, "value", f"{shown!r} is not {expected}; {_CONSEQUENCE}")
