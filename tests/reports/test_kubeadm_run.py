"""The kubeadm evaluation with the controller process: its NodePool, class and user data, 10 pods, and no exposed secret.

The process works on the in-memory API server and the double of AWS. ``tests/cluster/test_kubeadm.py`` shows the same user data
join a real control plane.
"""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import Callable, Iterable

import pytest
import yaml

from controlplane.harness import Json
from controlplane.timeouts import scaled_timeout
from karpenter.api import kinds
from karpenter.api.core import Node
from karpenter.kube.protocol import JsonObject
from karpenter.model import conditions, quantity
from karpenter.simulation.apiserver import MemoryServer
from karpenter.simulation.apiserver.list_query import ObjectQuery
from support.aws.clients import client
from support.aws.double import Double
from support.aws.memory_cluster import MemoryCluster, memory_cluster
from support.aws.node_simulator import ClusterAddress, NodeSimulator
from support.aws.seeds import Seeds, seed
from support.kubeadm_join import join_arguments
from support.kubeadm_user_data import FIELD_REPORT, authority
from support.report_pools import MANIFESTS

_REGION = "ap-northeast-2"
_ENDPOINT = "https://10.0.0.10:6443"
_GROUP = "system:bootstrappers:kubeadm:default-node-token"
_SIGNING = "system:certificates.k8s.io:certificatesigningrequests"
_PODS, _POD_MILLI_CPU = 10, 500
_RESULT_SECONDS = 120.0
_TOKEN = re.compile(r"[a-z0-9]{6}\.(?P<secret>[a-z0-9]{16})")
#: Keys of requests that contain a token, by operation.
_TOKEN_KEYS = {"CreateLaunchTemplate": "UserData", "PutParameter": "Value"}


def _manifest(name: str) -> Json:
    return dict(yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text(encoding="utf-8")))


def _class(seeds: Seeds) -> Json:
    """The report's class with its script; images and profile are those of this account."""
    made = _manifest("a41-v1-ubuntu-class")
    terms = {"amiSelectorTerms": [{"id": seeds.image}], "instanceProfile": seeds.profile, "userData": FIELD_REPORT}
    return {**made, "spec": {**made["spec"], **terms}}


def _pool() -> Json:
    """The report's NodePool; empty nodes are removed at once and together, to make the run short."""
    made = _manifest("a40-v1-pool")
    disruption = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}
    return {**made, "spec": {**made["spec"], "disruption": disruption}}


def _prerequisites() -> Iterable[Json]:
    """Objects that `kubeadm init` creates."""
    api = "rbac.authorization.k8s.io"
    for name, role, group in (
        ("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", _GROUP),
        ("kubeadm:node-autoapprove-bootstrap", f"{_SIGNING}:nodeclient", _GROUP),
        ("kubeadm:node-autoapprove-certificate-rotation", f"{_SIGNING}:selfnodeclient", "system:nodes"),
    ):
        yield {
            "apiVersion": f"{api}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": api, "kind": "Group", "name": group}],
        }
    info = {"name": "cluster-info", "namespace": "kube-public"}
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": info, "data": {"kubeconfig": "{}"}}


def _pod(number: int) -> Json:
    container = {"name": "work", "image": "work", "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}}}
    toleration = {"key": "workload", "operator": "Equal", "value": "ai", "effect": "NoSchedule"}
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"work-{number}", "namespace": "default"},
        "spec": {"containers": [container], "nodeSelector": {"role": "worker"}, "tolerations": [toleration]},
        "status": {"phase": "Pending", "conditions": [waiting]},
    }


def secrets_in(places: Iterable[tuple[str, str]], secrets: Iterable[str]) -> tuple[str, ...]:
    """Names of the places whose text contains a secret, plain or in base64."""
    plain = tuple(secrets)
    wanted = (*plain, *(base64.b64encode(secret.encode()).decode() for secret in plain))
    return tuple(name for name, text in places if any(secret in text for secret in wanted))


class _Run:
    """Recorded objects and calls of one run."""

    def __init__(self, cluster: MemoryCluster, aws: Double) -> None:
        self._cluster = cluster
        self._aws = aws
        #: Every recorded version of every object, except Secrets.
        self.objects: dict[str, None] = {}

    def record(self) -> None:
        """Record all objects."""
        server: MemoryServer = self._cluster.server
        for resource in server.resources:
            if resource.kind.plural != "secrets":
                for entry in server.list(resource, ObjectQuery()).entries:
                    self.objects[entry.data.decode()] = None

    def secrets(self) -> set[str]:
        """The secret parts of the tokens that instances got, in their user data or in parameters that this names."""
        texts = (base64.b64decode(instance["user_data"]).decode() for instance in self._aws.control.instances())
        tokens = [_TOKEN.search(join_arguments(text).token) for text in texts]
        stored = [_TOKEN.search(repr(call["parameters"])) for call in self._aws.control.calls("PutParameter")]
        return {token["secret"] for token in (*tokens, *stored) if token is not None}

    def has_tokens_of(self, delivery: str) -> bool:
        """Whether instances have the tokens of this delivery mode: one each, or a shared one."""
        count = len(self._aws.control.instances())
        return len(self.secrets()) == (min(1, count) if delivery == "window" else count)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition, and record objects meanwhile."""
        end = time.monotonic() + scaled_timeout(_RESULT_SECONDS)
        while not condition():
            assert time.monotonic() < end, what
            self.record()
            await self._sign()
            await asyncio.sleep(0.1)

    async def _sign(self) -> None:
        """The control plane's token signer: an entry per token. Tests with a real control plane check the signature."""
        tokens = [
            secret.data for secret in (await self._cluster.kube.list(kinds.SECRET, namespace="kube-system")).items
        ]
        ids = [base64.b64decode(data["token-id"]).decode() for data in tokens if "token-id" in data]
        if ids:
            signed: JsonObject = {"data": {f"jws-kubeconfig-{name}": "signed" for name in ids}}
            await self._cluster.kube.patch(kinds.CONFIG_MAP, "cluster-info", signed, namespace="kube-public")

    def places(self, log: str, metrics: str) -> Iterable[tuple[str, str]]:
        """All output that others can read, by name: no Secrets, and calls without user data and stored tokens."""
        yield "log", log
        yield "metrics", metrics
        yield from (("object", text) for text in self.objects)
        for call in self._aws.control.calls():
            if call["operation"] in _TOKEN_KEYS:
                call["parameters"] = _without(_TOKEN_KEYS[call["operation"]], call["parameters"])
            yield call["operation"], repr(call)
        yield from (("tags", repr(instance["tags"])) for instance in self._aws.control.instances())


def _without(left_out: str, value: object) -> object:
    """The value without a key."""
    if isinstance(value, dict):
        return {key: _without(left_out, entry) for key, entry in value.items() if key != left_out}
    return [_without(left_out, entry) for entry in value] if isinstance(value, list) else value


def _ready(server: MemoryServer) -> list[Node]:
    resource = server.resource("", "v1", "nodes")
    nodes = [kinds.NODE.decode(entry.data) for entry in server.list(resource, ObjectQuery()).entries]
    return [
        node
        for node in nodes
        if node.metadata.labels.get("karpenter.sh/initialized") == "true"
        and conditions.is_true(node.status.conditions, "Ready")
    ]


async def _bind(cluster: MemoryCluster) -> int:
    """Bind pods to nodes by their CPU, as the scheduler does; return the number of bound pods."""
    places = [
        node.metadata.name
        for node in _ready(cluster.server)
        for _ in range(quantity.parse_milli(str(node.status.allocatable["cpu"])) // _POD_MILLI_CPU)
    ]
    for number, place in zip(range(_PODS), places, strict=False):
        await cluster.kube.bind(f"work-{number}", "default", place)
    return min(_PODS, len(places))


def _pods_that_fit(server: MemoryServer) -> int:
    return sum(quantity.parse_milli(str(node.status.allocatable["cpu"])) // _POD_MILLI_CPU for node in _ready(server))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("delivery", ["per-claim", "window", "parameter"])
async def test_ten_pods_get_nodes_that_join_and_are_removed_and_no_secret_is_exposed(delivery: str) -> None:
    """API-A40, API-A41, AWS-871, AWS-913, AWS-915 to AWS-917: from the first pod to the last node, for each delivery mode."""
    with Double(_REGION) as aws:
        seeds = seed(aws)
        tags = [{"Key": "karpenter.sh/discovery", "Value": "true"}]
        client(aws, "ec2").create_tags(Resources=[*seeds.subnets.values(), seeds.group], Tags=tags)
        aws.region.instance_types.keep_only(frozenset({"t3.medium", "t3.large", "t3.xlarge"}))
        async with memory_cluster(aws, *_prerequisites(), _class(seeds), _pool()) as cluster:
            await _evaluate(cluster, aws, delivery)


async def _evaluate(cluster: MemoryCluster, aws: Double, delivery: str) -> None:
    run = _Run(cluster, aws)
    bundle = base64.b64encode(authority("ca")).decode()
    variables = {"BOOTSTRAP_MODE": "kubeadm", "CLUSTER_ENDPOINT": _ENDPOINT, "CLUSTER_CA_BUNDLE": bundle}
    variables["BOOTSTRAP_TOKEN_DELIVERY"] = delivery
    flags = ("--bootstrap-default-custom", "true", "--eks-control-plane", "false", "--log-level", "debug")
    simulator = NodeSimulator(cluster.kube, aws.control, ClusterAddress("test", _ENDPOINT, bundle), region=_REGION)
    simulation = asyncio.create_task(simulator.run())
    async with cluster.controller(*flags, **variables) as running:
        cluster.load(*map(_pod, range(_PODS)))
        try:
            await run.until(
                lambda: _pods_that_fit(cluster.server) >= _PODS,
                f"too few nodes: {simulator.failures}\n{running.log[-4000:]}",
            )
            assert await _bind(cluster) == _PODS
            await run.until(lambda: run.has_tokens_of(delivery), f"tokens are not delivered {delivery}")
            for number in range(_PODS):
                await cluster.kube.delete(kinds.POD, f"work-{number}", "default", grace_period_seconds=0)

            def is_gone() -> bool:
                return all(instance["ended_at"] for instance in aws.control.instances()) and not _ready(cluster.server)

            await run.until(is_gone, "nodes stay")
            metrics = await asyncio.to_thread(running.exposition)
        finally:
            simulation.cancel()
        secrets = run.secrets()
        assert 1 <= len(secrets) <= _PODS
        assert len(run.objects) > _PODS
        assert secrets_in(run.places(running.log, metrics), secrets) == ()
        leak = running.log + min(secrets)
        assert secrets_in(run.places(leak, metrics), secrets) == ("log",), "the scan finds nothing"
        if delivery == "window":
            return
        kept = [
            secret.metadata.name for secret in (await cluster.kube.list(kinds.SECRET, namespace="kube-system")).items
        ]
        assert not [name for name in kept if name.startswith("bootstrap-token-")], "tokens outlive their use"


def test_a_secret_in_any_output_is_found() -> None:
    """AWS-913: the scan itself, with a leak planted in an event; a token id alone is no secret."""
    places = [("log", "token abc123 issued"), ("object", '{"message":"joined with abc123.0123456789abcdef"}')]
    assert secrets_in(places, {"0123456789abcdef"}) == ("object",)
    assert secrets_in(places[:1], {"0123456789abcdef"}) == ()
