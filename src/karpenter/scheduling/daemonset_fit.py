"""DaemonSets whose pods have no room on a node they belong on: it was launched before them, or before they grew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from karpenter.model import pods
from karpenter.model import resources as res
from karpenter.model.requirements import compatible
from karpenter.model.resources import Resources
from karpenter.scheduling.offerings.nodepool_templates import daemon_node_terms, daemon_tolerates
from karpenter.state.snapshot import DaemonSetPod
from karpenter.state.state_node import StateNode

_STRICT: frozenset[str] = frozenset()


@dataclass(frozen=True)
class DaemonSetShortfall:
    """A DaemonSet (namespace and name) and how much of what its pod lacks on the node."""

    daemon_set: str
    missing: Resources


def daemonset_shortfalls(daemons: Iterable[DaemonSetPod], state_node: StateNode) -> Iterator[DaemonSetShortfall]:
    """DaemonSets that belong on an initialized node, have no pod there, and whose pod does not fit beside the others."""
    if not state_node.initialized:
        return
    there = set(_daemon_sets_on(state_node))
    free = res.subtract(state_node.allocatable, state_node.pod_requests)
    for daemon in daemons:
        if daemon.name not in there and _runs_on(daemon, state_node):
            short = {name: amount - free.get(name, 0) for name, amount in daemon.requests.items() if amount > 0}
            lacking = {name: amount for name, amount in short.items() if amount > 0}
            if lacking:
                yield DaemonSetShortfall(daemon.name, lacking)


def _runs_on(daemon: DaemonSetPod, state_node: StateNode) -> bool:
    return daemon_tolerates(daemon.spec, state_node.taints) and any(
        compatible(state_node.requirements, term, _STRICT) for term in daemon_node_terms(daemon.spec)
    )


def _daemon_sets_on(state_node: StateNode) -> Iterator[str]:
    for pod in state_node.pods:
        if pods.is_active(pod):
            yield from (
                f"{pod.metadata.namespace}/{owner.name}"
                for owner in pod.metadata.owner_references
                if owner.kind == "DaemonSet"
            )
