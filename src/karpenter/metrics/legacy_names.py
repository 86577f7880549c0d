"""Older names of series beside the present ones, for dashboards and alerts made for Karpenter before 1.0 (OPS §5.9, OPS-498).

The names are added to the text of an answer, line by line, so nothing is counted twice in the process. An answer grows by the
lines that have an older name; the largest families (single nodes and pods) have none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Older name -> present name, both without the prefix ``karpenter_``.
LEGACY_NAMES: Mapping[str, str] = {
    "nodes_created": "nodes_created_total",
    "nodes_terminated": "nodes_terminated_total",
    "nodes_termination_time_seconds": "nodes_termination_duration_seconds",
    "pods_startup_time_seconds": "pods_startup_duration_seconds",
    "pods_pods_drained_total": "pods_drained_total",
    "nodeclaims_created": "nodeclaims_created_total",
    "nodeclaims_launched": "nodeclaims_launched_total",
    "nodeclaims_terminated": "nodeclaims_terminated_total",
    "nodeclaims_disrupted": "nodeclaims_disrupted_total",
    "disruption_actions_performed_total": "voluntary_disruption_decisions_by_nodepool_total",
    "disruption_eligible_nodes": "voluntary_disruption_eligible_nodes",
    "disruption_evaluation_duration_seconds": "voluntary_disruption_decision_evaluation_duration_seconds",
    "disruption_consolidation_timeouts_total": "voluntary_disruption_consolidation_timeouts_total",
    "disruption_replacement_nodeclaim_failures_total": "voluntary_disruption_queue_failures_total",
    "disruption_budgets_allowed_disruptions": "nodepools_allowed_disruptions",
    "disruption_pods_disrupted_total": "pods_disruption_initiated_total",
    "provisioner_scheduling_simulation_duration_seconds": "scheduler_scheduling_duration_seconds",
    "provisioner_scheduling_duration_seconds": "scheduler_scheduling_duration_seconds",
    "nodepool_usage": "nodepools_usage",
    "nodepool_limit": "nodepools_limit",
    "ignored_pod_count": "scheduler_ignored_pods_count",
}
#: Older name -> its own names of labels, by the present ones.
_LEGACY_LABELS: Mapping[str, Mapping[str, str]] = {"disruption_actions_performed_total": {"decision": "action"}}
_PREFIX = "karpenter_"
_COMMENTS = ("# HELP ", "# TYPE ")
_SAMPLE_NAME = re.compile(r"karpenter_\w+")
_SAMPLE_SUFFIXES = ("", "_bucket", "_sum", "_count")


class LegacySeries:
    """Families that have an older name, collected from the pieces of an answer."""

    def __init__(self) -> None:
        self._lines_by_name: dict[str, list[str]] = {}

    def collect(self, piece: str) -> None:
        """Keep the lines that have an older name, under that name. A piece is whole lines."""
        for line in piece.splitlines(keepends=True):
            name = _SAMPLE_NAME.match(_without_comment(line))
            for older, suffix in _OLDER.get(name.group(), ()) if name is not None else ():
                renamed = _renamed(line, name.group() if name else "", older, suffix)
                self._lines_by_name.setdefault(older, []).append(renamed)

    def text(self) -> str:
        """The families, each in one piece."""
        return "".join(line for lines in self._lines_by_name.values() for line in lines)


def _without_comment(line: str) -> str:
    return line.removeprefix(_COMMENTS[0]).removeprefix(_COMMENTS[1])


def _renamed(line: str, present: str, older: str, suffix: str) -> str:
    renamed = line.replace(present, f"{_PREFIX}{older}{suffix}", 1)
    for label, older_label in _LEGACY_LABELS.get(older, {}).items():
        renamed = re.sub(rf'([{{,]){label}="', rf'\1{older_label}="', renamed, count=1)
    return renamed


def _older_by_sample() -> Mapping[str, list[tuple[str, str]]]:
    """Older names, with their suffix, by the name of a present sample."""
    older_by_sample: dict[str, list[tuple[str, str]]] = {}
    for older, present in LEGACY_NAMES.items():
        for suffix in _SAMPLE_SUFFIXES:
            older_by_sample.setdefault(f"{_PREFIX}{present}{suffix}", []).append((older, suffix))
    return older_by_sample


_OLDER = _older_by_sample()
