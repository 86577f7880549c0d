"""What would be done if budgets and freezes forbade nothing: for people who want to know what waits behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from msgspec.structs import replace as changed

from karpenter.api.karpenter import NodePool
from karpenter.catalog.index import TypeIndex
from karpenter.cluster.snapshot import Snapshot
from karpenter.decide.disrupt.candidates import Circumstances
from karpenter.decide.disrupt.decision import DisruptionOptions, Disruptions, decide_disruption
from karpenter.model import labels

_LIMITING = frozenset({labels.BUDGET_WINDOWS, labels.FREEZE, labels.FREEZE_UNTIL})


def preview(
    snapshot: Snapshot,
    indexes: Mapping[str, TypeIndex],
    circumstances: Circumstances,
    options: DisruptionOptions,
) -> Disruptions:
    """The whole way from the cluster as it is to one in which nothing is left to do, as commands."""
    free = replace(snapshot, pools=tuple(_unlimited(pool) for pool in snapshot.pools), freeze=None)
    return decide_disruption(free, indexes, circumstances, options)


def _unlimited(pool: NodePool) -> NodePool:
    notes = {key: value for key, value in pool.metadata.annotations.items() if key not in _LIMITING}
    disruption = changed(pool.spec.disruption, budgets=())
    return changed(
        pool, metadata=changed(pool.metadata, annotations=notes), spec=changed(pool.spec, disruption=disruption)
    )
