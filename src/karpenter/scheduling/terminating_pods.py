"""Room that terminating pods will free: no node is launched for pods that soon fit there.

A roll-out deletes old pods while it creates new ones, and an autoscaler shrinks one workload while another grows. kube-scheduler
counts a pod that is being deleted until it is gone, so the new pods are unschedulable for some seconds. A decision that counts
the same way launches nodes that no pod needs once they are ready. Such a node takes longer to become ready than most pods take to
end.

A pod counts as gone if it is to end within a window from now: its deletion timestamp is when its grace period ends. A pod that
exceeds its grace period, because its kubelet does not respond or its clock differs, counts again a few seconds later. Then the
nodes are launched. The provisioner bounds how long a pod waits for such room in total (``provisioning/awaited_room.py``). Nodes
with such room are tried after those that have room now (`existing_nodes.staying_nodes`).

Not counted as room: nodes on which the scheduler preempts pods, because that room is reserved for the preemptor, and DaemonSet
pods, because they are created again. Disruption counts all pods: what it moves should find its room at once.

The alternative was a longer pause before each decision. Three seconds save as much where pods end at once, cost every pod three
seconds, and save nothing where pods take longer to end. A decision costs one more check of each node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from karpenter.api.core import Pod
from karpenter.model import pods
from karpenter.model import resources as res
from karpenter.model.quantity import QuantityError
from karpenter.model.resources import Resources
from karpenter.scheduling.pod_eligibility import awaits_preemption
from karpenter.state.host_ports import host_ports_of
from karpenter.state.snapshot import ClusterSnapshot
from karpenter.state.state_node import StateNode

#: How long a pod may outstay its grace period: the kubelet still has to kill it and to say so, and clocks differ.
_SETTLING = timedelta(seconds=5)


def without_terminating_pods(
    snapshot: ClusterSnapshot, now: datetime, window: timedelta
) -> tuple[ClusterSnapshot, Mapping[str, Resources]]:
    """The snapshot after the pods have gone that are to end within ``window``, and what they request, by key of their node.

    Without such pods it is the same object.
    """
    if not window:
        return snapshot, {}
    ending = {view.key: gone for view in snapshot.nodes if (gone := _ending_pods(view, now, window))}
    for name in _preempted_nodes(snapshot) if ending else ():
        ending.pop(name, None)
    if not ending:
        return snapshot, {}
    awaited = {key: res.add(*map(_requests_of, gone)) for key, gone in ending.items()}
    nodes = (
        _without(view, ending[view.key], awaited[view.key]) if view.key in ending else view for view in snapshot.nodes
    )
    return replace(snapshot, nodes=tuple(nodes)), awaited


def fit_beside(coming: Iterable[Pod], free: Resources) -> bool:
    """Whether pods fit into what is free while others are still there; False where host ports or volumes might keep them out."""
    wanted: dict[str, int] = {}
    for pod in coming:
        if host_ports_of(pod.spec) or pods.volume_claim_names(pod):
            return False
        wanted = res.add(wanted, pods.pod_requests(pod))
    return res.fits(wanted, free)


def _ending_pods(view: StateNode, now: datetime, window: timedelta) -> tuple[Pod, ...]:
    return tuple(
        pod
        for pod in view.terminating_pods
        if not pods.is_daemonset_pod(pod)
        and not pods.is_mirror_pod(pod)
        and pod.metadata.deletion_timestamp is not None
        and now - _SETTLING <= pod.metadata.deletion_timestamp <= now + window
    )


def _requests_of(pod: Pod) -> Resources:
    """What the pod counts for on its node: as one pod where more cannot be read, as in the state."""
    try:
        return pods.pod_requests(pod)
    except QuantityError:
        return {res.PODS: res.ONE_UNIT}


def _preempted_nodes(snapshot: ClusterSnapshot) -> set[str]:
    """Keys of the nodes on which the scheduler is making room for a pod (SCH-040c)."""
    by_name = {view.node.metadata.name: view for view in snapshot.nodes if view.node is not None}
    waiting = (pod for group in snapshot.pod_groups for pod in group.pods if pod.status.nominated_node_name)
    return {by_name[pod.status.nominated_node_name].key for pod in waiting if awaits_preemption(pod, by_name)}


def _without(view: StateNode, ending: Iterable[Pod], requests: Resources) -> StateNode:
    gone = set(map(id, ending))
    left = res.subtract(view.pod_requests, requests)
    return replace(view, pods=tuple(pod for pod in view.pods if id(pod) not in gone), pod_requests=left)
