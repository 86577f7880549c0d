"""Nodes of a cluster as kubectl prints them: with their NodeClaims, and with pods on them."""

from __future__ import annotations

from support.manifest_builders import Json

TAKEN_AT = "2026-03-04T10:00:00Z"
_PLACE = {"topology.kubernetes.io/zone": "zone-a", "karpenter.sh/capacity-type": "on-demand"}
_OS = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
_AMOUNTS = {"a.small": ("2", "4Gi", "1930m", "3Gi"), "a.large": ("8", "16Gi", "7910m", "14Gi")}


def node(name: str, kind: str = "a.large", owner: str = "default", created: str = "2026-03-04T08:00:00Z") -> Json:
    """A ready Node, of a NodePool if ``owner`` names one."""
    cpu, memory, allocatable_cpu, allocatable_memory = _AMOUNTS.get(kind, _AMOUNTS["a.large"])
    own = {"node.kubernetes.io/instance-type": kind, "kubernetes.io/hostname": name, **_PLACE, **_OS}
    if owner:
        own |= {"karpenter.sh/nodepool": owner, "karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"node-{name}", "labels": own, "creationTimestamp": created},
        "spec": {"providerID": f"aws:///zone-a/{name}"},
        "status": {
            "capacity": {"cpu": cpu, "memory": memory, "pods": "110"},
            "allocatable": {"cpu": allocatable_cpu, "memory": allocatable_memory, "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": created}],
        },
    }


def claim(of: Json, **spec: object) -> Json:
    """The initialized NodeClaim of a Node."""
    meta = of["metadata"]
    since = meta["creationTimestamp"]
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    done = [
        {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": since}
        for kind in ("Launched", "Registered", "Initialized")
    ]
    own = {key: value for key, value in meta["labels"].items() if key != "kubernetes.io/hostname"}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": f"claim-{meta['name']}", "uid": "c", "labels": own, "creationTimestamp": since},
        "spec": {"requirements": [], "nodeClassRef": reference, "expireAfter": "Never", **spec},
        "status": {
            "nodeName": meta["name"],
            "providerID": of["spec"]["providerID"],
            "lastPodEventTime": since,
            "conditions": done,
        },
    }


def running(name: str, on: str, cpu: str = "1500m", owner: str = "web", kind: str = "ReplicaSet") -> Json:
    """A pod on a node, or pending without ``on``."""
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": owner, "controller": True}
    container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": cpu, "memory": "512Mi"}}}
    status: Json = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]} if on else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "prod",
            "labels": {"app": owner},
            "ownerReferences": [reference],
            "creationTimestamp": TAKEN_AT,
        },
        "spec": {"containers": [container], **({"nodeName": on} if on else {})},
        "status": status,
    }


def managed(*names: str, kind: str = "a.large") -> list[Json]:
    """Nodes of the NodePool with their NodeClaims."""
    nodes = [node(name, kind) for name in names]
    return [*nodes, *map(claim, nodes)]
