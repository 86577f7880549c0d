"""The manifests of `deploy/` on a real control plane: accepted to the letter, scheduled as promised, rights that suffice."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane import deployed
from controlplane.harness import ApiError, ControlPlane, Json
from karpenter.api.karpenter import NodeClaim, NodeClaimSpec, NodeClassReference
from karpenter.api.kinds import NODE_CLAIM
from karpenter.api.meta import ObjectMeta, OwnerReference
from karpenter.kube import errors
from support import yaml_text

pytestmark = pytest.mark.cluster

_EXAMPLE = Path(__file__).parents[2] / "examples" / "pool.yaml"
_OBJECTS = [
    *deployed.manifests("crds", "simulated", "aws"),
    *yaml_text.documents(_EXAMPLE.read_text()),
]
_RESTRICTED = "deploy-restricted"
_MERGE = "application/merge-patch+json"
_OUR_KINDS = ("nodepools.karpenter.sh", "nodeclaims.karpenter.sh", "kwoknodeclasses.karpenter.kwok.sh")
_RBAC = "rbac.authorization.k8s.io"


def named(manifest: Json) -> str:
    return f"{manifest['kind']}-{manifest['metadata']['name']}"


@pytest.mark.parametrize("manifest", _OBJECTS, ids=named)
def test_the_api_server_accepts_every_field_of_every_manifest(plane: ControlPlane, manifest: Json) -> None:
    assert plane.rehearse(manifest)["kind"] == manifest["kind"]


def test_a_field_the_api_does_not_know_would_be_refused(plane: ControlPlane) -> None:
    deployment = deployed.deployment()
    deployment["spec"]["template"]["spec"]["tolerates"] = []
    with pytest.raises(ApiError, match="tolerates"):
        plane.rehearse(deployment)


def test_the_pods_meet_the_restricted_pod_security_standard(plane: ControlPlane) -> None:
    """OPS-652"""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _RESTRICTED, "labels": labels}})
    spec = deployed.deployment()["spec"]["template"]["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": _RESTRICTED}, "spec": spec}
    plane.rehearse(pod)
    spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(ApiError, match="restricted"):
        plane.rehearse(pod)


def test_replicas_run_apart_and_never_on_nodes_they_manage(plane: ControlPlane) -> None:
    """OPS-626 to OPS-629: with one replica more than nodes of others, one waits rather than run on a node of ours."""
    add_node(plane, "theirs-a", {})
    add_node(plane, "theirs-b", {})
    add_node(plane, "ours", {"karpenter.sh/nodepool": "default"})
    three = deployed.deployment()
    three["spec"]["replicas"] = 3
    plane.apply(three)
    plane.until(lambda: len([place for place in places(plane) if place]) == 3, "the scheduler to look at three pods")
    assert sorted(places(plane)) == ["theirs-a", "theirs-b", "waits"]


def add_node(plane: ControlPlane, name: str, labels: dict[str, str]) -> None:
    """A ready Node in a zone of its own, for add-ons only."""
    usual = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "topology.kubernetes.io/zone": f"at-{name}"}
    plane.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": usual | labels}})
    capacity = {"cpu": "4", "memory": "8Gi", "pods": "10"}
    status: Json = {"status": {"capacity": capacity, "conditions": [{"type": "Ready", "status": "True"}]}}
    taints: Json = {"spec": {"taints": [{"key": "CriticalAddonsOnly", "effect": "NoSchedule"}]}}
    plane.request("PATCH", f"/api/v1/nodes/{name}/status", status, _MERGE)
    plane.request("PATCH", f"/api/v1/nodes/{name}", taints, _MERGE)


def places(plane: ControlPlane) -> list[str]:
    """Where the scheduler put each replica; ``waits`` for one it finds no node for, nothing while it has not looked."""
    selector = "app.kubernetes.io%2Fname%3Dkarpenter"
    pods: list[Json] = plane.request("GET", f"/api/v1/namespaces/kube-system/pods?labelSelector={selector}")["items"]
    return [_place(pod) for pod in pods]


def _place(pod: Json) -> str:
    conditions = pod["status"].get("conditions", ())
    waits = any(condition["type"] == "PodScheduled" and condition["status"] == "False" for condition in conditions)
    return "waits" if waits else str(pod["spec"].get("nodeName", ""))


@pytest.mark.parametrize(
    ("role", "verb", "resource", "allowed"),
    [
        ("view", "list", "nodepools.karpenter.sh", True),
        ("view", "watch", "nodeclaims.karpenter.sh", True),
        ("view", "get", "kwoknodeclasses.karpenter.kwok.sh", True),
        ("view", "patch", "nodepools.karpenter.sh", False),
        ("view", "delete", "nodeclaims.karpenter.sh", False),
        ("admin", "update", "nodepools.karpenter.sh", True),
        ("admin", "delete", "nodeclaims.karpenter.sh", True),
        ("admin", "create", "kwoknodeclasses.karpenter.kwok.sh", True),
        ("admin", "delete", "nodes.", False),
    ],
)
def test_people_with_the_built_in_roles_may_work_with_our_kinds(
    plane: ControlPlane, role: str, verb: str, resource: str, allowed: bool
) -> None:
    """API-873"""
    plane.apply(*deployed.manifests("simulated"))
    person = f"deploy-{role}"
    plane.apply(binding(person, person, role))
    # Kubernetes puts the built-in roles together from ours, one after the other; what both have tells when it is done.
    plane.until(lambda: all(may(plane, person, "get", kind) for kind in _OUR_KINDS), "our kinds to be readable")
    if allowed:
        plane.until(lambda: may(plane, person, verb, resource), f"{role} to be allowed to {verb} {resource}")
    assert may(plane, person, verb, resource) == allowed


def may(plane: ControlPlane, person: str, verb: str, resource: str) -> bool:
    name, _, group = resource.partition(".")
    plural, _, subresource = name.partition("/")
    wanted = {"verb": verb, "resource": plural, "subresource": subresource, "group": group}
    return deployed.allowed(plane, person, wanted)


async def test_a_claim_that_blocks_its_pools_deletion_needs_the_right_to_finalizers(plane: ControlPlane) -> None:
    """OPS-660 ff.; asked for where the admission plug-in OwnerReferencesPermissionEnforcement is on, as it is here."""
    plane.apply(*deployed.rights(), *yaml_text.documents(_EXAMPLE.read_text()))
    creating: Json = {"apiGroups": ["karpenter.sh"], "resources": ["nodeclaims"], "verbs": ["create"]}
    grant(plane, "deploy-claims", [creating])
    plane.until(lambda: may(plane, "nobody", "create", "nodeclaims.karpenter.sh"), "the first rule")
    async with plane.client("nobody") as client:
        claim = claim_of(plane, "general")
        with pytest.raises(errors.Forbidden, match="blockOwnerDeletion"):
            await client.create(NODE_CLAIM, claim)
        finalizers = next(rule for rule in core_rules() if "nodepools/finalizers" in rule["resources"])
        grant(plane, "deploy-claims", [creating, finalizers])
        plane.until(lambda: may(plane, "nobody", "update", "nodepools/finalizers.karpenter.sh"), "the second")
        assert (await client.create(NODE_CLAIM, claim)).metadata.owner_references == claim.metadata.owner_references


def grant(plane: ControlPlane, name: str, rules: list[Json]) -> None:
    """Give the user ``nobody`` the rights of these rules."""
    role: Json = {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    plane.apply(role, binding(name, "nobody", name))


def binding(name: str, user: str, role: str) -> Json:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": user}],
    }


def core_rules() -> list[Json]:
    (role,) = (right for right in deployed.rights() if named(right) == "ClusterRole-karpenter-core")
    return role["rules"]


def claim_of(plane: ControlPlane, pool: str) -> NodeClaim:
    uid = str(plane.request("GET", f"/apis/karpenter.sh/v1/nodepools/{pool}")["metadata"]["uid"])
    owner = OwnerReference(
        api_version="karpenter.sh/v1", kind="NodePool", name=pool, uid=uid, block_owner_deletion=True
    )
    reference = NodeClassReference(group="karpenter.kwok.sh", kind="KWOKNodeClass", name="default")
    spec = NodeClaimSpec(requirements=(), node_class_ref=reference)
    return NodeClaim(metadata=ObjectMeta(name="deploy-claim", owner_references=(owner,)), spec=spec)
