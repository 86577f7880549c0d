"""Draining on a real control plane: what holds a node is honoured, named in its claim's conditions, and let go of when it opens.

The eviction arithmetic, budgets' status, finalizers and grace periods are Kubernetes' own; the controller is a process with the
rights of `deploy/`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from controlplane import deployed
from controlplane.harness import ApiError, ControlPlane, Json
from controlplane.objects import CLASS_REFERENCE, simulated_class
from controlplane.process import Controller, controller

pytestmark = pytest.mark.cluster

_MERGE = "application/merge-patch+json"
_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
_PODS = "/api/v1/namespaces/default/pods"
_BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
_EVENTS = "/api/v1/namespaces/default/events"
_ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"


@pytest.fixture(scope="module")
def plane(plane: ControlPlane) -> ControlPlane:
    plane.apply(simulated_class())
    return plane


@pytest.fixture(scope="module")
def running(plane: ControlPlane) -> Iterator[Controller]:
    with deployed.installed(plane) as account, controller(account.kubeconfig) as process:
        process.await_leading()
        yield process


@dataclass(frozen=True)
class ClaimWithNode:
    """One claim and its Node, with what tests do to them and read of them."""

    plane: ControlPlane
    claim: str
    node: str

    def delete(self) -> None:
        self.plane.request("DELETE", f"{_CLAIMS}/{self.claim}")

    def pod(self, name: str, **fields: object) -> str:
        """A pod that runs on the node; ``metadata`` and ``spec`` are added to what it needs. Its path."""
        metadata = {"name": name, "labels": {"app": name}, **fields.pop("metadata", {})}
        container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": "10m"}}}
        spec = {
            "nodeName": self.node,
            "containers": [container],
            "terminationGracePeriodSeconds": 1,
            **fields.pop("spec", {}),
        }
        self.plane.request("POST", _PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        path = f"{_PODS}/{name}"
        self.plane.until(lambda: found(self.plane, path, "status", "phase") == "Running", f"pod {name} to run")
        return path

    def condition(self, kind: str) -> tuple[str, str, str]:
        """Status, reason and message of a condition of the claim."""
        for element in found(self.plane, f"{_CLAIMS}/{self.claim}", "status", "conditions") or []:  # type: ignore[attr-defined]
            if element["type"] == kind:
                return element["status"], element["reason"], element.get("message", "")
        return "", "", ""

    def until_held(self, kind: str, *parts: str) -> None:
        """Wait until the condition names all of these."""
        self.plane.until(
            lambda: self.condition(kind)[0] == "Unknown" and all(part in self.condition(kind)[2] for part in parts),
            f"{kind} of {self.claim} to name {parts}",
        )

    def is_gone(self) -> bool:
        return all(not exists(self.plane, path) for path in (f"{_CLAIMS}/{self.claim}", f"/api/v1/nodes/{self.node}"))

    def until_gone(self) -> None:
        self.plane.until(self.is_gone, f"claim {self.claim} and its node to go")

    def until_event(self, reason: str, part: str) -> None:
        """Wait until an event of a reason about the node names something: events are written beside the work."""
        self.plane.until(lambda: any(part in text for text in self._messages(reason)), f"event {reason} to name {part}")

    def _messages(self, reason: str) -> list[str]:
        query = f"fieldSelector=reason={reason},involvedObject.name={self.node}"
        objects: list[Json] = self.plane.request("GET", f"{_EVENTS}?{query}")["items"]
        return [str(obj["message"]) for obj in objects]


def found(plane: ControlPlane, path: str, *keys: str) -> object:
    """A field of an object; None where either is missing."""
    try:
        value: object = plane.request("GET", path)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def exists(plane: ControlPlane, path: str) -> bool:
    return found(plane, path) is not None


@pytest.fixture
def claim_with_node(plane: ControlPlane, running: Controller, request: pytest.FixtureRequest) -> ClaimWithNode:
    """A claim of the test's own with its initialized Node; ``request.param`` are further fields of its spec."""
    name = request.node.name.partition("[")[0].removeprefix("test_").replace("_", "-")[:40].rstrip("-")
    spec = {"nodeClassRef": CLASS_REFERENCE, "requirements": [], **getattr(request, "param", {})}
    plane.apply({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": name}, "spec": spec})
    path = f"{_CLAIMS}/{name}"

    def is_initialised() -> bool:
        conditions: list[Json] = found(plane, path, "status", "conditions") or []
        return any(condition["type"] == "Initialized" and condition["status"] == "True" for condition in conditions)

    plane.until(is_initialised, f"{name} to be initialized")
    return ClaimWithNode(plane, name, str(found(plane, path, "status", "nodeName")))


def budget(plane: ControlPlane, name: str, app: str) -> Callable[[], None]:
    """A budget that lets no pod of the app go, in force; returns what opens it."""
    metadata = {"name": name, "namespace": "default"}
    spec: Json = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
    plane.apply({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec})
    path = f"{_BUDGETS}/{name}"
    plane.until(lambda: found(plane, path, "status", "currentHealthy") == 1, f"budget {name} to count its pod")

    def opens() -> None:
        plane.request("PATCH", path, {"spec": {"minAvailable": 0}}, _MERGE)

    return opens


def test_a_budget_holds_the_drain_by_name_until_it_opens(claim_with_node: ClaimWithNode, plane: ControlPlane) -> None:
    """DIS-S300"""
    pod = claim_with_node.pod("guarded")
    opens = budget(plane, "guard", "guarded")
    claim_with_node.delete()
    claim_with_node.until_held(
        "Drained", "PodDisruptionBudget default/guard allows no eviction now: pod default/guarded"
    )
    assert exists(plane, pod)
    claim_with_node.until_event("FailedDraining", "default/guarded")
    opens()
    claim_with_node.until_gone()
    assert not exists(plane, pod)


@pytest.mark.soak
def test_two_budgets_over_one_pod_are_both_named(claim_with_node: ClaimWithNode, plane: ControlPlane) -> None:
    """DIS-533: the server answers such an eviction with an error of its own."""
    claim_with_node.pod("twice")
    opens = [budget(plane, name, "twice") for name in ("first", "second")]
    for open_ in opens:
        open_()
    claim_with_node.delete()
    claim_with_node.until_held(
        "Drained", "more than one PodDisruptionBudget (default/first, default/second)", "default/twice"
    )
    plane.request("DELETE", f"{_BUDGETS}/second")
    claim_with_node.until_gone()


@pytest.mark.parametrize("claim_with_node", [{"terminationGracePeriod": "40s"}], indirect=True, ids=["40s"])
def test_a_protected_pod_stays_until_the_nodes_time_is_short(
    claim_with_node: ClaimWithNode, plane: ControlPlane
) -> None:
    """DIS-S306, DIS-535: deleted so that its own grace period fits in, with the grace left to it."""
    annotations = {"karpenter.sh/do-not-disrupt": "true"}
    pod = claim_with_node.pod("dear", metadata={"annotations": annotations}, spec={"terminationGracePeriodSeconds": 28})
    claim_with_node.delete()
    claim_with_node.until_held("Drained", "protected by the annotation karpenter.sh/do-not-disrupt: pod default/dear")
    assert found(plane, pod, "metadata", "deletionTimestamp") is None
    claim_with_node.until_gone()
    disrupted: list[str] = []

    def is_told() -> bool:
        disrupted[:] = [json.dumps(plane.request("GET", f"{_EVENTS}?fieldSelector=reason=Disrupted"))]
        return "dear" in disrupted[0]

    plane.until(is_told, "the event about the pod")
    granted = [line for line in disrupted[0].split(". ") if "was granted" in line]
    assert any(f"granted {seconds} seconds" in line for line in granted for seconds in (26, 27, 28))


def test_a_volume_holds_the_instance_until_it_is_detached(claim_with_node: ClaimWithNode, plane: ControlPlane) -> None:
    """DIS-S311; OPS-526: the event `AwaitingVolumeDetachment` names the attachments."""
    owner = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "data"}
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "csi.example.com", "volumeHandle": "vol-1"},
        "claimRef": owner,
    }
    plane.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv-1"}, "spec": volume})
    spec = {"attacher": "csi.example.com", "nodeName": claim_with_node.node, "source": {"persistentVolumeName": "pv-1"}}
    attachment = {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "csi-1"}}
    plane.apply({**attachment, "spec": spec})
    claim_with_node.delete()
    claim_with_node.until_held("VolumesDetached", "volume pv-1 (PersistentVolumeClaim default/data)", "csi-1")
    assert claim_with_node.condition("Drained")[0] == "True"
    assert claim_with_node.condition("InstanceTerminating")[0] == ""
    claim_with_node.until_event("AwaitingVolumeDetachment", "csi-1")
    plane.request("DELETE", f"{_ATTACHMENTS}/csi-1")
    claim_with_node.until_gone()


def test_a_pod_held_by_a_finalizer_is_named_with_it(claim_with_node: ClaimWithNode, plane: ControlPlane) -> None:
    """DIS-010: named once its grace period is over, ignored a minute later; here the finalizer is removed before."""
    pod = claim_with_node.pod("held", metadata={"finalizers": ["example.com/hold"]})
    claim_with_node.delete()
    claim_with_node.until_held("Drained", "held by finalizer example.com/hold: pod default/held")
    plane.request("PATCH", pod, {"metadata": {"finalizers": []}}, _MERGE)
    claim_with_node.until_gone()
    assert not exists(plane, pod)


def test_nothing_failed_on_the_way(running: Controller) -> None:
    """All of the above is ordinary: no controller complained."""
    assert running.lines("Reconciler error") == []
    assert running.lines("evicting pod failed") == []
