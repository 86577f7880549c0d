"""Decoding a large pod list into slim structs: time and memory (design target: 20 000 pods of a 167 MB list)."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Iterator

import msgspec

from bench.figures import Figure

PODS = 20_000
_BYTES_PER_POD = 8_350


def figures() -> Iterator[Figure]:
    """Seconds to decode the list and MB the objects keep."""
    body = _list()
    gc.collect()
    started = time.perf_counter()
    decoded = _decode(body)
    seconds = time.perf_counter() - started
    yield Figure("decode 20 000 pods", seconds, "s", 1.0, f"list of {len(body) / 1e6:.0f} MB, {len(decoded)} pods")
    del decoded
    tracemalloc.start()
    kept = _decode(body)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    yield Figure("memory of the decoded pods", size / 1e6, "MB", 150.0, f"{size / len(kept):.0f} bytes a pod")


def _decode(body: bytes) -> list[object]:
    from karpenter.api.kinds import POD

    class Page(msgspec.Struct):
        items: tuple[msgspec.Raw, ...]

    return [POD.decode(item) for item in msgspec.json.decode(body, type=Page).items]


def _list() -> bytes:
    return (
        b'{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"1"},"items":['
        + b",".join(_pod(number) for number in range(PODS))
        + b"]}"
    )


def _pod(number: int) -> bytes:
    """A pod as a busy cluster serves it: most of its bytes are fields no decision reads."""
    name = f"service-{number % 400}-7c9d8f6b5-{number:05x}"
    managed = [
        {"manager": "kubelet", "operation": "Update", "fieldsV1": {f"f:{i}-{number}": {"f:x": {}} for i in range(90)}}
    ]
    labels = {
        "app": f"service-{number % 400}",
        "pod-template-hash": "7c9d8f6b5",
        "tier": "web",
        "team": f"t{number % 20}",
    }
    probe = {
        "httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
        "periodSeconds": 10,
        "failureThreshold": 3,
    }
    env = [{"name": f"SETTING_{i}", "value": f"value-{i}-{number}"} for i in range(50)]
    container = {
        "name": "app",
        "image": f"registry.example/service-{number % 400}:v1",
        "resources": {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
        "env": env,
        "readinessProbe": probe,
        "livenessProbe": probe,
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets", "readOnly": True}],
    }
    pod = {
        "metadata": {
            "name": name,
            "namespace": f"team-{number % 20}",
            "uid": f"00000000-0000-4000-8000-{number:012x}",
            "resourceVersion": str(number),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": labels,
            "annotations": {"checksum/config": f"{number:064x}"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": name[:-6],
                    "uid": f"{number % 400}",
                    "controller": True,
                }
            ],
            "managedFields": managed,
        },
        "spec": {
            "nodeName": f"node-{number % 700}",
            "containers": [container],
            "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        },
        "status": {
            "phase": "Running",
            "startTime": "2026-01-01T00:00:05Z",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z"}],
            "containerStatuses": [
                {"name": "app", "ready": True, "state": {"running": {"startedAt": "2026-01-01T00:00:08Z"}}}
            ],
        },
    }
    body = msgspec.json.encode(pod)
    padding = max(0, _BYTES_PER_POD - len(body) - 40)
    return body[:-1] + b',"ignored":"' + b"x" * padding + b'"}'
