"""A cluster of any size behind the in-memory API server, in a process of its own: ``python -m bench.scale_server NODES PODS``.

Nodes and their NodePool carry all that a controller would write, so that it has nothing to do at rest.
Prints its URL once everything is loaded. A line ``churn RATE SECONDS`` on standard input lets pods change, come and go at
that many events a second; it answers ``done COUNT``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import cast

import msgspec

from bench.mainjob import NODE_CLASS, node_pool
from karpenter.api.kinds import NODE_POOL
from karpenter.kube.protocol import JsonObject
from karpenter.model import labels, nodepool_hash
from karpenter.model import resources as res
from karpenter.model.clock import SystemClock
from karpenter.simulation.apiserver.http_front import serving
from karpenter.simulation.apiserver.memory_server import MemoryServer

_WORKLOADS = 400
_CLASS_LABEL = "karpenter.kwok.sh/kwoknodeclass"
_OWN = {
    "karpenter.sh/nodepool": "default",
    "node.kubernetes.io/instance-type": "m5.4xlarge",
    "topology.kubernetes.io/zone": "us-east-1a",
    "topology.kubernetes.io/region": "us-east-1",
    "karpenter.sh/capacity-type": "on-demand",
    "kubernetes.io/arch": "amd64",
    "kubernetes.io/os": "linux",
    "karpenter.k8s.aws/instance-category": "m",
    "karpenter.k8s.aws/instance-generation": "5",
    _CLASS_LABEL: "default",
}
_AMOUNTS = {"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi"}
#: One in so many events is a pod that ends and another that takes its place.
_TURNOVER = 20
#: Most events in one go, so that requests are answered in between.
_MOST_AT_ONCE = 50


def _since() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _conditions(*types: str) -> list[JsonObject]:
    return [
        {
            "type": each,
            "status": "True",
            "reason": each,
            "message": "",
            "lastTransitionTime": _since(),
            "observedGeneration": 1,
        }
        for each in types
    ]


def _pool(nodes: int) -> JsonObject:
    """The NodePool of all nodes, as a controller leaves it."""
    pool = cast(JsonObject, node_pool("Never"))
    held = {name: amount * nodes for name, amount in res.parse_resources(_AMOUNTS).items()}
    found = _conditions("ValidationSucceeded", "NodeClassReady", "NodeRegistrationHealthy", "Ready")
    unsure = {"status": "Unknown", "reason": "AwaitingReconciliation", "message": "object is awaiting reconciliation"}
    return {
        **pool,
        "metadata": {"name": "default", "generation": 1, "annotations": _hashes(pool)},
        "status": {
            "conditions": [*found[:2], {**found[2], **unsure}, found[3]],
            "resources": res.resources_to_wire({**held, res.NODES: nodes * res.ONE_UNIT}),
            "nodes": nodes,
        },
    }


def _hashes(pool: JsonObject) -> dict[str, str]:
    """The hash annotations of nodes that match the template of their NodePool."""
    decoded = NODE_POOL.decode(msgspec.json.encode(pool))
    return {
        labels.NODE_POOL_HASH: nodepool_hash.node_pool_hash(decoded),
        labels.NODE_POOL_HASH_VERSION: nodepool_hash.NODE_POOL_HASH_VERSION,
    }


def _node(number: int, hashes: JsonObject) -> Iterator[JsonObject]:
    """A NodeClaim and its Node, both in good order."""
    claim, node = f"default-{number:05d}", f"node-{number:05d}"
    provider_id = f"still:///{claim}"
    finalizers = ["karpenter.sh/termination"]
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    yield {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {
            "name": claim,
            "uid": f"claim-{number}",
            "generation": 1,
            "labels": _OWN,
            "annotations": hashes,
            "finalizers": finalizers,
        },
        "spec": {
            "nodeClassRef": reference,
            "requirements": [
                {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
                {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m5.4xlarge", "m6i.4xlarge"]},
            ],
            "resources": {"requests": {"cpu": "10", "memory": "40Gi", "pods": "10"}},
            "expireAfter": "720h",
        },
        "status": {
            "nodeName": node,
            "providerID": provider_id,
            "capacity": _AMOUNTS,
            "allocatable": _AMOUNTS,
            "lastPodEventTime": _since(),
            "conditions": _conditions("Launched", "Registered", "Initialized", "ConsistentStateFound", "Ready"),
        },
    }
    owner = {"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "name": claim, "uid": f"claim-{number}"}
    marks = {"karpenter.sh/registered": "true", "karpenter.sh/initialized": "true", "kubernetes.io/hostname": node}
    yield {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node,
            "labels": {**_OWN, **marks},
            "finalizers": finalizers,
            "ownerReferences": [{**owner, "blockOwnerDeletion": True}],
        },
        "spec": {"providerID": provider_id},
        "status": {"capacity": _AMOUNTS, "allocatable": _AMOUNTS, "conditions": _conditions("Ready")},
    }


def _pod(name: str, number: int, nodes: int) -> JsonObject:
    """A running pod of some ReplicaSet, with the ballast real ones carry."""
    workload = number % _WORKLOADS
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"web-{workload}", "uid": f"rs-{workload}"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"app": f"web-{workload}", "pod-template-hash": f"{workload:08x}"},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": {
            "nodeName": f"node-{number % nodes:05d}",
            "terminationGracePeriodSeconds": 30,
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
            ],
            "containers": [
                {
                    "name": "app",
                    "image": f"web:{workload}",
                    "env": [{"name": f"SETTING_{each}", "value": f"value {each}"} for each in range(20)],
                    "resources": {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
                    "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10},
                }
            ],
        },
        "status": {"phase": "Running", "startTime": _since(), "conditions": _conditions("PodScheduled", "Ready")},
    }


def _everything(nodes: int, pods: int) -> Iterator[JsonObject]:
    yield {**cast(JsonObject, NODE_CLASS), "status": {"conditions": _conditions("Ready")}}
    yield _pool(nodes)
    hashes = _hashes(cast(JsonObject, node_pool("Never")))
    for number in range(nodes):
        yield from _node(number, hashes)
    for number in range(pods):
        yield _pod(f"pod-{number:06d}", number, nodes)


class _Churn:
    """Pods that change, and now and then one that ends and another that takes its place."""

    def __init__(self, server: MemoryServer, nodes: int, pods: int) -> None:
        self._server, self._nodes = server, nodes
        self._resource = server.resource("", "v1", "pods")
        self._names = [f"pod-{number:06d}" for number in range(pods)]
        self._made = pods

    async def run(self, rate: int, seconds: int) -> int:
        """So many events a second, evenly; how many there were.

        What is behind is not made up for in one go: requests, such as those that renew a lease, would have to wait for it.
        """
        loop = asyncio.get_running_loop()
        start, done = loop.time(), 0
        while loop.time() - start < seconds:
            for _ in range(min(int((loop.time() - start) * rate) - done, _MOST_AT_ONCE)):
                done += self._event(done)
            await asyncio.sleep(0.005)
        return done

    def _event(self, count: int) -> int:
        place = (count * 7919) % len(self._names)
        name = self._names[place]
        if count % _TURNOVER == 0:
            self._server.update_any(
                self._resource, "default", name, lambda body: {**body, "status": {"phase": "Succeeded"}}
            )
            self._names[place] = f"pod-{self._made:06d}"
            self._server.load_objects([_pod(self._names[place], place, self._nodes)])
            self._made += 1
            return 2
        self._server.update_status(self._resource, "default", name, lambda body: _touched(body, count))
        return 1


def _touched(body: JsonObject, count: int) -> dict[str, object]:
    return {**body, "status": {**body["status"], "message": f"probe {count}"}}  # type: ignore[dict-item]


async def _main(nodes: int, pods: int) -> None:
    server = MemoryServer(SystemClock(), history=100_000)
    server.load_objects(_everything(nodes, pods))
    churn = _Churn(server, nodes, pods)
    async with serving(server) as url:
        print(url, flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            _, rate, seconds = line.split()
            print("done", await churn.run(int(rate), int(seconds)), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
