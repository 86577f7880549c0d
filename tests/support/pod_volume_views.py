"""Pods with volumes, looked up in cluster state."""

from __future__ import annotations

import pytest

from karpenter.api.core import Pod
from karpenter.api.meta import Wire
from karpenter.api.storage import (
    PersistentVolumeSource,
)
from karpenter.model import labels
from karpenter.state import PodVolumes
from support.builders import snapshot
from support.volume_builders import pv, pvc, storage_class, user

SOURCE = PersistentVolumeSource()


def seen(one: Pod, *objects: Wire) -> PodVolumes:
    """What the pod's volumes mean in a cluster of the pod and these objects."""
    return snapshot(one, list(objects)).volumes.resolve(one)


def data(*objects: Wire) -> PodVolumes:
    """The same for a pod that uses the claim ``data``."""
    return seen(user("p", "data"), *objects)


def zones(pod_volumes: PodVolumes) -> list[list[str]]:
    """The zones of each alternative; none where it does not care."""
    return [sorted(one.requirement_for(labels.ZONE).values) for one in pod_volumes.node_alternatives]


BOUND = (pvc("data", "v"), pv("v"))
FAULTS = [
    pytest.param((), "getting persistent volume claim, ", id="missing"),
    pytest.param((pvc("data", "v", deleted=True), pv("v")), "persistentvolumeclaim is being deleted", id="deleting"),
    pytest.param(
        (pvc("data", "v", phase="Lost"), pv("v")),
        "persistentvolumeclaim bound to non-existent persistentvolume",
        id="lost",
    ),
    pytest.param((pvc("data", "v"),), "failed to validate pvc, ", id="volume-missing"),
    pytest.param((pvc("data", "v"), pv("v", deleted=True)), "failed to validate pvc, ", id="volume-deleting"),
    pytest.param(
        (pvc("data", "v", annotations={}), pv("v")),
        "pvc is considered unbound because it does not contain annotation",
        id="bind-annotation-missing",
    ),
    pytest.param((pvc("data"),), "unbound pvc must define a storage class", id="no-class"),
    pytest.param((pvc("data", storage_class=""),), "unbound pvc must define a storage class", id="empty-class"),
    pytest.param(
        (pvc("data", storage_class="standard"),),
        "failed to validate pvc, failed to get storage class, ",
        id="unknown-class",
    ),
    *(
        pytest.param(
            (pvc("data", storage_class="standard"), storage_class(mode=mode)),
            "failed to validate pvc, pvc with immediate volume binding mode must be bound",
            id=f"immediate-{mode or 'by-default'}",
        )
        for mode in ("Immediate", "")
    ),
]
