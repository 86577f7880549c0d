"""Objects as files hold them, for tests of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typer.testing import Result

Json = dict[str, Any]
Plan = Callable[..., Result]


def type_of(name: str, cpu: int, gib: int, price: float) -> Json:
    """An instance type of the simplest kind, sold on demand in one zone."""
    where = [
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-a"]},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
    ]
    return {
        "name": name,
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {"cpu": str(cpu), "memory": f"{gib}Gi", "pods": "110"},
        "labels": {"example.com/family": name[0]},
        "offerings": [{"price": price, "requirements": where}],
    }


def pool(name: str = "default", **spec: object) -> Json:
    """A NodePool that takes every type."""
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    template: Json = {"spec": {"requirements": [], "nodeClassRef": reference}}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {"template": template, **spec},
    }


def pod(name: str = "web", cpu: object = "500m", **spec: object) -> Json:
    """A pod manifest as people write it: no namespace, no status."""
    containers = [{"name": "app", "image": "app", "resources": {"requests": {"cpu": cpu, "memory": "256Mi"}}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": containers, **spec},
    }


def node(name: str, cpu: str) -> Json:
    """A Node that is ready and belongs to no NodePool."""
    amounts = {"cpu": cpu, "memory": "16Gi", "pods": "110"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {"kubernetes.io/hostname": name}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def listed(*objects: Json) -> Json:
    """The objects as one List."""
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}
