"""What standard error says of the nodes that a study begins with: those that it cannot have as they are, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from karpenter.cli.render_common import names_text
from karpenter.model import labels
from karpenter.model.texts import count_text
from karpenter.simulator.starting_cluster import AbsenceReason, StartingCluster, UnmanagedReason

_STAY = "they take pods, stay, and are not in the bill"
#: How to mend what keeps a node from being an instance of the study; nothing is wrong with nodes of other owners.
_MENDS = {
    UnmanagedReason.NO_NODE_POOL: "their NodePool is not in the input; add it",
    UnmanagedReason.NO_NODE_CLAIM: "they have no NodeClaim in the input; add it (kubectl get nodeclaims -o yaml)",
    UnmanagedReason.UNKNOWN_TYPE: "the study does not know their instance types; give --instance-types",
    UnmanagedReason.NOT_SOLD: "the study does not sell their instance types in their zones and capacity types; give --region or "
    "--instance-types",
}
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
        by_reason[node.reason].append(_node_text(node.node.metadata.name, node.node.metadata.labels, node.reason))
    for reason, mend in _MENDS.items():
        if reason in by_reason:
            yield f"{_counted(by_reason[reason], 'node')}: {mend}; until then {_STAY}"
    yield from _absences(starting)
    if starting.not_ready:
        yield f"{_counted(starting.not_ready, 'node')}: not ready; the study begins with them as if they were"
    if starting.lost_daemon_sets:
        names = [f"{namespace}/{name}" for namespace, name in starting.lost_daemon_sets]
        yield (
            f"{_counted(names, 'DaemonSet')}: not in the input, but pods of theirs; nodes that are launched have none; "
            "add them (kubectl get daemonsets -A -o yaml)"
        )


def _absences(starting: StartingCluster) -> Iterator[str]:
    for reason, (noun, text) in _ABSENT.items():
        names = [absent.name for absent in starting.absent if absent.reason is reason]
        if names:
            yield f"{_counted(names, noun)}: {text}"


def _node_text(name: str, node_labels: Mapping[str, str], reason: UnmanagedReason) -> str:
    """The name of a node, and what of its labels is in the way."""
    kind = node_labels.get(labels.INSTANCE_TYPE, "no instance type")
    match reason:
        case UnmanagedReason.UNKNOWN_TYPE:
            return f"{name} ({kind})"
        case UnmanagedReason.NOT_SOLD:
            place = node_labels.get(labels.CAPACITY_TYPE, ""), node_labels.get(labels.ZONE, "")
            return f"{name} ({' '.join((kind, *place))})"
        case _:
            return name


def _counted(names: Sequence[str], noun: str) -> str:
    return f"{count_text(len(names), noun)} ({names_text(names)})"
