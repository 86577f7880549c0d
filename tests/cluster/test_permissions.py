"""Every right that `deploy/` gives the controller is needed: one journey from pending pods to nothing left uses it (OPS-660 ff.).

That the rights suffice, every cluster test says when it ends (``deployed.installed``). Here the audit log is held against the
roles from the other side: what a role allows and nobody asked for has to be justified by name, or goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import pytest

from controlplane import deployed
from controlplane.audit import Call
from controlplane.deployed import Account
from controlplane.harness import ControlPlane, Json
from controlplane.objects import items, one_of, simulated_class, simulated_pool
from controlplane.process import Controller, controller

pytestmark = [pytest.mark.cluster, pytest.mark.older_versions]


class Right(NamedTuple):
    """One thing a role allows; an empty namespace means all."""

    verb: str
    resource: str
    namespace: str = ""


#: Rights the journey does not use, and why the controller has them all the same.
_JUSTIFIED: Mapping[Right, str] = {
    Right("patch", "secrets", "kube-system"): "the webhook's certificate is renewed after nine months",
    Right("patch", "events"): "an event may be said only once on this journey; a repeat raises its count",
    Right(
        "update", "nodepools/finalizers.karpenter.sh"
    ): "asked by an admission plug-in, which leaves no line in the log",
    Right(
        "update", "nodeclaims/finalizers.karpenter.sh"
    ): "asked by an admission plug-in, which leaves no line in the log",
    **dict.fromkeys(
        (
            Right("create", "nodepools.karpenter.sh"),
            Right("delete", "machines.karpenter.sh"),
            Right("patch", "provisioners/status.karpenter.sh"),
            Right("patch", "machines/status.karpenter.sh"),
            Right("patch", "awsnodetemplates/status.karpenter.k8s.aws"),
            Right("patch", "customresourcedefinitions/status.apiextensions.k8s.io"),
        ),
        "the journey has no object of an older kind, and none that is stored in an older version",
    ),
    **{
        Right(verb, f"nodeoverlays{part}.karpenter.sh"): "the gate NodeOverlay is off"
        for part, verbs in (("", ("get", "list", "watch")), ("/status", ("patch",)))
        for verb in verbs
    },
    **{
        Right(verb, f"capacityschedules{part}.karpenter.sh"): "the gate CapacitySchedule is off"
        for part, verbs in (("", ("get", "list", "watch")), ("/status", ("patch",)))
        for verb in verbs
    },
    **{
        Right(verb, resource): "the gate CapacityBuffer is off"
        for resource, verbs in {
            "capacitybuffers.autoscaling.x-k8s.io": ("get", "list", "watch"),
            "capacitybuffers/status.autoscaling.x-k8s.io": ("patch",),
            "podtemplates": ("get", "list", "watch"),
        }.items()
        for verb in verbs
    },
    **{
        Right(verb, f"{resource}.resource.k8s.io"): "device claims are ignored unless the setting says otherwise"
        for resource in ("deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices")
        for verb in ("get", "list", "watch")
    },
    **{
        Right(verb, "resourceslices.resource.k8s.io"): "simulated instances of the journey have no devices"
        for verb in ("create", "delete")
    },
    **{
        Right(verb, resource): "the gate GangScheduling is off"
        for resource in (
            "workloads.scheduling.k8s.io",
            "podgroups.scheduling.k8s.io",
            "podgroups.scheduling.x-k8s.io",
            "provisioningrequests.autoscaling.x-k8s.io",
        )
        for verb in ("get", "list", "watch")
    },
    Right("patch", "provisioningrequests/status.autoscaling.x-k8s.io"): "the gate GangScheduling is off",
    **{
        Right(verb, resource): "no default spread constraints are configured"
        for resource in ("replicasets.apps", "services", "replicationcontrollers")
        for verb in ("get", "list", "watch")
    },
}
#: Whoever may list objects has read them: these give nothing more, and client tools expect them together.
_READING = frozenset({"get", "list", "watch"})

PODS = 2
_LABELS: Json = {"app": "web"}
_NODE_CLASS = simulated_class(nodeRegistrationDelay="2s")
_POOL = simulated_pool(
    requirements=[one_of("karpenter.k8s.aws/instance-cpu", "2")],
    disruption={"consolidateAfter": "2s", "budgets": [{"nodes": "100%"}]},
)
_BUDGET: Json = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"maxUnavailable": PODS, "selector": {"matchLabels": _LABELS}},
}
_PODS = "/api/v1/namespaces/default/pods"
_NODES = "/api/v1/nodes"
_CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"


def web(replicas: int) -> Json:
    container = {"name": "app", "image": "pause", "resources": {"requests": {"cpu": "1500m"}}}
    template = {"metadata": {"labels": _LABELS}, "spec": {"containers": [container]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": _LABELS}, "template": template},
    }


@pytest.fixture(scope="module")
def plane(plane: ControlPlane) -> ControlPlane:
    plane.apply(_NODE_CLASS, _POOL, _BUDGET)
    return plane


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[Account]:
    with deployed.installed(plane) as ready:
        yield ready


def name(obj: Json) -> str:
    return str(obj["metadata"]["name"])


def are_running(plane: ControlPlane) -> bool:
    phases = [pod["status"]["phase"] for pod in items(plane, _PODS)]
    return phases == ["Running"] * PODS


def nothing_is_left(plane: ControlPlane) -> bool:
    instances = "/api/v1/namespaces/kube-system/configmaps?labelSelector=karpenter.kwok.sh/instance%3Dtrue"
    places = (_PODS, _NODES, _CLAIMS, instances)
    return not any(items(plane, place) for place in places)


def journey(account: Account, running: Controller) -> None:
    """A node for each pod; a claim and a Node are deleted by hand and drained; at last no node is needed."""
    plane = account.plane
    running.until(running.is_ready, "become ready")
    plane.apply(web(PODS))
    plane.until(lambda: are_running(plane), "pods to run")
    claim, *_ = items(plane, _CLAIMS)
    other = next(node for node in items(plane, _NODES) if name(node) != claim["status"]["nodeName"])
    attachment, *rest = with_volumes(name(other))
    plane.apply(*rest, attachment)
    plane.request("DELETE", f"{_CLAIMS}/{name(claim)}")
    plane.request("DELETE", f"{_NODES}/{name(other)}")
    plane.until(lambda: Right("create", "pods/eviction") in used(account.calls()), "evictions")
    plane.apply(web(0))
    plane.until(lambda: "volume attached" in waiting_for(plane, name(other)), "the attached volume to be waited for")
    plane.delete(attachment)
    plane.until(lambda: nothing_is_left(plane), "instances to go")


def waiting_for(plane: ControlPlane, node: str) -> str:
    """What the claim of a node says about volumes that are not detached yet."""
    statuses = (claim["status"] for claim in items(plane, _CLAIMS) if "status" in claim)
    conditions = (
        condition for status in statuses if status.get("nodeName") == node for condition in status["conditions"]
    )
    return "".join(condition["message"] for condition in conditions if condition["type"] == "VolumesDetached")


def with_volumes(node: str) -> list[Json]:
    """A volume attached to a node, and a pod with another volume that stays there to the end."""
    source = {"persistentVolumeName": "attached"}
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": "tests.example", "volumeHandle": "one"},
        "claimRef": {"namespace": "default", "name": "data"},
    }
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "volumeName": "kept",
    }
    pod = {
        "nodeName": node,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "app", "image": "pause"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "kept"}}],
    }
    return [
        obj(
            "storage.k8s.io/v1", "VolumeAttachment", "attached", attacher="tests.example", nodeName=node, source=source
        ),
        obj("v1", "PersistentVolume", "attached", **volume),
        obj("v1", "PersistentVolumeClaim", "kept", "kube-system", **claim),
        obj("v1", "Pod", "stays", "kube-system", **pod),
    ]


def obj(version: str, kind: str, named: str, namespace: str = "", /, **spec: object) -> Json:
    metadata = {"name": named} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def granted() -> set[Right]:
    """What the roles of `deploy/` allow, one verb on one resource at a time."""
    roles = [right for right in deployed.rights() if "rules" in right]
    return {right for role in roles for right in _of(role)}


def _of(role: Json) -> Iterator[Right]:
    namespace = role["metadata"].get("namespace", "")
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                name = f"{resource}.{group}" if group else resource
                yield from (Right(verb, name, namespace) for verb in rule["verbs"])


def used(calls: Iterable[Call]) -> set[Right]:
    """What was asked for, in the namespace it was asked for and in general."""
    result = set()
    for call in calls:
        name = f"{call.resource}.{call.group}" if call.group else call.resource
        result |= {Right(call.verb, name, call.namespace), Right(call.verb, name)}
    return result


def unused(calls: Iterable[Call]) -> set[Right]:
    asked = used(calls)
    read = {(right.resource, right.namespace) for right in asked if right.verb in _READING}
    return {
        right
        for right in granted() - asked
        if right.verb not in _READING or (right.resource, right.namespace) not in read
    }


def test_every_right_is_used_on_the_way_from_pending_pods_to_nothing_left(account: Account) -> None:
    """Scenario OPS-H10, from both sides."""
    with controller(account.kubeconfig) as running:
        journey(account, running)
    account.check()
    idle = sorted(unused(account.calls()) - _JUSTIFIED.keys())
    assert not idle, "nobody asked for:\n" + "\n".join(" ".join(right) for right in idle)


def test_what_is_justified_is_a_right() -> None:
    assert _JUSTIFIED.keys() <= granted()
