"""Objects of a cluster that stand for the processes beside it: the suites find these by their pods and by the leader's lease.

No scheduler binds the pods, since pods of a node that does not exist are collected.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from controlplane.harness import Json

NAMESPACE = "kube-system"
CONTROLLER_POD = "karpenter-0"
LEASE: Json = {
    "apiVersion": "coordination.k8s.io/v1",
    "kind": "Lease",
    "metadata": {"name": "karpenter-leader-election", "namespace": NAMESPACE},
    "spec": {"holderIdentity": f"{CONTROLLER_POD}_0"},
}


def pod(name: str, command: str = "karpenter run", labels: Mapping[str, str] = MappingProxyType({})) -> Json:
    """A pod whose container would run a command."""
    container = {"name": "process", "image": "karpenter", "command": command.split()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": dict(labels)},
        "spec": {"schedulerName": "none", "containers": [container]},
    }
