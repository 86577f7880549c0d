"""Every kind that the product uses is served with its subresources."""

from __future__ import annotations

from typing import Any

import pytest

from karpenter.api import kinds
from karpenter.api.kinds import Kind
from support.contract_builders import MERGE, Web

_CONTAINER = {"name": "main", "image": "none"}
_LABELS = {"app": "web"}
_TEMPLATE = {"metadata": {"labels": _LABELS}, "spec": {"containers": [_CONTAINER], "schedulerName": "nobody"}}
_WORKLOAD = {"replicas": 0, "selector": {"matchLabels": _LABELS}, "template": _TEMPLATE}
_JOB = {"parallelism": 0, "template": {**_TEMPLATE, "spec": {**_TEMPLATE["spec"], "restartPolicy": "Never"}}}
_CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
_OS = {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}
_MACHINE = {"nodeClassRef": _CLASS, "requirements": [_OS]}
_GIBIBYTE = {"storage": "1Gi"}
_CLAIMED_DEVICES = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
_SPECS: dict[str, dict[str, Any]] = {
    "Pod": {"spec": {"schedulerName": "nobody", "containers": [_CONTAINER]}},
    "Node": {"spec": {"providerID": "test://node"}},
    "Namespace": {},
    "EC2NodeClass": {
        "spec": {
            "amiSelectorTerms": [{"alias": "al2023@latest"}],
            "role": "nodes",
            "subnetSelectorTerms": [{"id": "subnet-1"}],
            "securityGroupSelectorTerms": [{"id": "sg-1"}],
        }
    },
    "ConfigMap": {"data": {"a": "1"}},
    "Event": {"involvedObject": {"kind": "Pod", "name": "x"}, "reason": "Test", "type": "Normal"},
    "DaemonSet": {"spec": {"selector": {"matchLabels": _LABELS}, "template": _TEMPLATE}},
    "Deployment": {"spec": _WORKLOAD},
    "ReplicaSet": {"spec": _WORKLOAD},
    "PodDisruptionBudget": {"spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"no": "pod"}}}},
    "Lease": {"spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2024-05-06T07:08:09.000000Z"}},
    "PersistentVolume": {
        "spec": {"capacity": _GIBIBYTE, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/none"}}
    },
    "PersistentVolumeClaim": {
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": _GIBIBYTE}, "storageClassName": ""}
    },
    "VolumeAttachment": {
        "spec": {"attacher": "test", "nodeName": "node-1", "source": {"persistentVolumeName": "volume"}}
    },
    "StorageClass": {"provisioner": "tests.example"},
    "CSINode": {"spec": {"drivers": [{"name": "tests.example", "nodeID": "node-1", "allocatable": {"count": 3}}]}},
    "NodePool": {"spec": {"template": {"spec": _MACHINE}}},
    "NodeClaim": {"spec": _MACHINE},
    "NodeOverlay": {"spec": {"requirements": []}},
    "CapacityBuffer": {"spec": {"replicas": 1}},
    "CapacitySchedule": {"spec": {"nodePools": {"names": ["dev"]}}},
    "StatefulSet": {"spec": {**_WORKLOAD, "serviceName": "web"}},
    "Service": {"spec": {"selector": _LABELS, "ports": [{"port": 80}]}},
    "ReplicationController": {"spec": {"replicas": 0, "selector": _LABELS, "template": _TEMPLATE}},
    "PodTemplate": {"template": _TEMPLATE},
    "KWOKNodeClass": {},
    "MachineNodeClass": {"spec": {"power": "ipmi", "hosts": [{"name": "a", "capacity": {"cpu": "4"}}]}},
    "Job": {"spec": _JOB},
    "CronJob": {"spec": {"schedule": "0 7 * * *", "suspend": True, "jobTemplate": {"spec": _JOB}}},
    "HorizontalPodAutoscaler": {
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "none"}, "maxReplicas": 2}
    },
    "PriorityClass": {"value": 10},
    "DeviceClass": {"spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}},
    "ResourceClaim": {"spec": _CLAIMED_DEVICES},
    "ResourceClaimTemplate": {"spec": {"spec": _CLAIMED_DEVICES}},
    "ResourceSlice": {
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": "none",
            "pool": {"name": "none", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
        }
    },
    "LimitRange": {"spec": {"limits": [{"type": "Pod", "max": {"cpu": "100"}}]}},
}
_COUNTED = {
    "Pod",
    "DaemonSet",
    "Deployment",
    "ReplicaSet",
    "PodDisruptionBudget",
    "NodePool",
    "NodeClaim",
    "NodeOverlay",
    "CapacityBuffer",
    "CapacitySchedule",
    "StatefulSet",
    "ReplicationController",
    "PodTemplate",
    "KWOKNodeClass",
    "MachineNodeClass",
    "EC2NodeClass",
    "Job",
    "CronJob",
    "PriorityClass",
    "DeviceClass",
    "ResourceSlice",
}
#: A patch of the status of each kind that has such a subresource.
_STATUS: dict[str, dict[str, Any]] = {
    "Pod": {"phase": "Running"},
    "Node": {"capacity": {"cpu": "4"}},
    "DaemonSet": {"currentNumberScheduled": 1, "numberMisscheduled": 0, "desiredNumberScheduled": 1, "numberReady": 1},
    "Deployment": {"replicas": 1},
    "ReplicaSet": {"replicas": 1},
    "PodDisruptionBudget": {"expectedPods": 0, "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0},
    "PersistentVolume": {"phase": "Available"},
    "PersistentVolumeClaim": {"phase": "Pending"},
    "VolumeAttachment": {"attached": True},
    "NodePool": {"nodes": 1},
    "NodeClaim": {"nodeName": "node-1"},
    "NodeOverlay": {"conditions": []},
    "CapacityBuffer": {"replicas": 1},
    "CapacitySchedule": {"state": "Asleep"},
    "StatefulSet": {"replicas": 1},
    "Service": {"loadBalancer": {}},
    "ReplicationController": {"replicas": 1},
    "KWOKNodeClass": {"conditions": []},
    "MachineNodeClass": {"inUse": [{"host": "a", "claimName": "c", "since": "2026-01-01T00:00:00Z"}]},
    "EC2NodeClass": {"instanceProfile": "nodes"},
    "Namespace": {"phase": "Active"},
    "ResourceClaim": {},
    "Job": {"active": 0},
    "CronJob": {"active": []},
    "HorizontalPodAutoscaler": {"currentReplicas": 1, "desiredReplicas": 1},
}
#: What differs between the releases of Kubernetes in the soak, and the product does not depend on: since 1.37 the former has a
#: generation, the latter a status.
_GENERATION_BY_RELEASE, _STATUS_BY_RELEASE = {"HorizontalPodAutoscaler"}, {"CSINode"}
_SERVED = [kind for kind in kinds.KINDS.values() if kind.name != "CustomResourceDefinition"]


def _body(kind: Kind[Any], name: str, namespace: str) -> dict[str, Any]:
    body = {"metadata": {"name": name}, **_SPECS[kind.name]}
    if kind.name == "Event":
        body = {**body, "involvedObject": {**body["involvedObject"], "namespace": namespace}}
    return body


@pytest.fixture(params=_SERVED, ids=lambda kind: kind.plural)
def kind(request: pytest.FixtureRequest) -> Kind[Any]:
    param: Kind[Any] = request.param
    return param


async def _remove(web: Web, kind: Kind[Any], namespace: str, name: str) -> None:
    """Delete an object; remove finalizers of volumes, whose controllers do not run here."""
    path = kind.path(namespace, name)
    await web.ask("DELETE", path)
    await web.ask("PATCH", path, {"metadata": {"finalizers": None}}, MERGE)


async def test_a_kind_is_created_read_labelled_and_deleted(
    web: Web, web_namespace: str, unique: str, kind: Kind[Any]
) -> None:
    namespace = web_namespace if kind.namespaced else ""
    name = f"{unique}-x"
    made = await web.made(kind, _body(kind, name, namespace), namespace)
    try:
        metadata = made["metadata"]
        assert (made["apiVersion"], made["kind"], metadata["name"]) == (kind.api_version, kind.name, name)
        assert metadata.get("namespace", "") == namespace
        assert metadata["uid"]
        assert metadata["creationTimestamp"]
        if kind.name not in _GENERATION_BY_RELEASE:
            assert metadata.get("generation") == (1 if kind.name in _COUNTED else None)
        path = kind.path(namespace, name)
        patched = (await web.ask("PATCH", path, {"metadata": {"labels": {"found": unique}}}, MERGE)).body
        assert patched["metadata"].get("generation") == metadata.get("generation")
        listed = await web.ask("GET", kind.path(namespace), labelSelector=f"found={unique}")
        assert (listed.body["kind"], listed.names) == (f"{kind.name}List", [name])
        assert kind.decode((await web.http.get(path)).content).metadata.labels["found"] == unique
    finally:
        await _remove(web, kind, namespace, name)
    if kind.name != "Namespace":
        assert (await web.ask("GET", kind.path(namespace, name))).status == 404


async def test_a_status_subresource_is_written_separately(
    web: Web, web_namespace: str, unique: str, kind: Kind[Any]
) -> None:
    namespace = web_namespace if kind.namespaced else ""
    name = f"{unique}-y"
    await web.made(kind, _body(kind, name, namespace), namespace)
    try:
        path = kind.path(namespace, name, "status")
        patch = {"status": _STATUS.get(kind.name, {})}
        status = (await web.ask("PATCH", path, patch, MERGE)).status
        assert status == (200 if kind.name in _STATUS else 404) or kind.name in _STATUS_BY_RELEASE
    finally:
        await _remove(web, kind, namespace, name)


async def test_the_status_of_a_new_object_comes_from_the_server(web: Web, web_namespace: str) -> None:
    """A status sent with a new object is ignored for kinds with a status subresource."""
    body = {**_body(kinds.POD, "one", web_namespace), "status": {"phase": "Running"}}
    assert (await web.made(kinds.POD, body, web_namespace))["status"]["phase"] == "Pending"
    body = {**_body(kinds.DEPLOYMENT, "one", web_namespace), "status": {"replicas": 7}}
    assert "replicas" not in (await web.made(kinds.DEPLOYMENT, body, web_namespace))["status"]


async def test_a_new_node_can_have_a_status(web: Web, unique: str) -> None:
    body = {"metadata": {"name": unique}, "status": {"capacity": {"cpu": "4"}}}
    try:
        assert (await web.made(kinds.NODE, body))["status"]["capacity"] == {"cpu": "4"}
    finally:
        await web.ask("DELETE", kinds.NODE.path("", unique))
