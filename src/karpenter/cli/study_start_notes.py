"""What standard error says of the nodes that a study begins with: those that it cannot have as they are, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from karpenter.api.core import Pod
from karpenter.cli.render_common import names_text
from karpenter.model.texts import count_text
from karpenter.simulator.starting_cluster import MENDS, AbsenceReason, StartingCluster, UnmanagedReason
from karpenter.state.pod_volumes import ClusterVolumes

_STAY = "they take pods, stay, and are not in the bill"
_ABSENT = {
    AbsenceReason.BEING_DELETED: (
        "node",
        "being deleted; the study begins without them, and their pods wait for a node",
    ),
    AbsenceReason.NO_NODE_YET: ("NodeClaim", "without a Node; the study begins without them"),
}


def start_notes(starting: StartingCluster) -> Iterator[str]:
    """One line for each kind of treatment."""
    by_reason: defaultdict[UnmanagedReason, list[str]] = defaultdict(list)
    for node in starting.unmanaged:
        by_reason[node.reason].append(node.text)
    for reason, mend in MENDS.items():
        if reason in by_reason:
            yield f"{_counted(by_reason[reason], 'node')}: {mend}; until then {_STAY}"
    yield from _absences(starting)
    if starting.not_ready:
        yield f"{_counted(starting.not_ready, 'node')}: not ready; the study begins with them as if they were"
    if starting.of_unknown_nodes:
        names = [f"{namespace}/{name}" for namespace, name in starting.of_unknown_nodes]
        yield (
            f"{_counted(names, 'pod')}: their nodes are not in the input; they wait for a node; "
            "add the nodes (kubectl get nodes -o yaml)"
        )
    if starting.lost_daemon_sets:
        names = [f"{namespace}/{name}" for namespace, name in starting.lost_daemon_sets]
        yield (
            f"{_counted(names, 'DaemonSet')}: not in the input, but pods of theirs; nodes that are launched have none; "
            "add them (kubectl get daemonsets -A -o yaml)"
        )


def age_note(taken_at: datetime) -> str:
    """As of when the ages in a file count."""
    return f"ages are as of {taken_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, the latest time in the input"


def volume_notes(pods: Iterable[Pod], volumes: ClusterVolumes) -> Iterator[str]:
    """A line about pods that wait for a volume in a cluster, and have a place in the study."""
    waiting = [
        f"{pod.metadata.namespace}/{pod.metadata.name}"
        for pod in pods
        if not pod.spec.node_name and volumes.resolve(pod).claim_errors
    ]
    if waiting:
        yield (
            f"{_counted(waiting, 'pod')}: their volumes are missing or cannot be used; in a cluster they wait for them, in the "
            "study they run; add the claims (kubectl get pvc,pv,storageclasses -A -o yaml)"
        )


def _absences(starting: StartingCluster) -> Iterator[str]:
    for reason, (noun, text) in _ABSENT.items():
        names = [absent.name for absent in starting.absent if absent.reason is reason]
        if names:
            yield f"{_counted(names, noun)}: {text}"


def _counted(names: Sequence[str], noun: str) -> str:
    return f"{count_text(len(names), noun)} ({names_text(names)})"
