"""Manifests of older releases applied directly: a real API server asks the controller's webhook (API §17.3)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controlplane import cleanup, deployed
from controlplane.deployed import Account
from controlplane.harness import ApiError, ControlPlane, Json
from controlplane.process import Controller, controller
from karpenter.api.kinds import NODE_POOL
from karpenter.olderversions.storage_migration import StorageMigration
from support.webhook_outside_cluster import await_webhook, webhook_environment

pytestmark = [pytest.mark.cluster, pytest.mark.older_versions]

_V1, _BETA = "/apis/karpenter.sh/v1/nodepools", "/apis/karpenter.sh/v1beta1/nodepools"
_CLASSES = "/apis/karpenter.k8s.aws/{}/ec2nodeclasses"
_DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodepools.karpenter.sh"


@pytest.fixture(scope="module")
def plane(plane: ControlPlane) -> Iterator[ControlPlane]:
    """After a test that failed halfway objects are stored as ``v1beta1``, and no webhook converts them any more.

    The API server then refuses a definition without that version, to all files that follow. So the definitions go, once nothing
    needs the webhook to read their objects.
    """
    yield plane
    by_itself: Json = {"spec": {"conversion": {"strategy": "None", "webhook": None}}}
    plane.request("PATCH", _DEFINITION, by_itself, "application/merge-patch+json")
    cleanup.forget_definitions(plane)


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[Account]:
    with deployed.installed(plane) as ready:
        yield ready


@pytest.fixture(scope="module")
def running(account: Account) -> Iterator[Controller]:
    with webhook_environment(account.plane) as place:
        environment = {**place, "DEFAULT_NODE_ROLE": "worker"}
        with controller(account.kubeconfig, environment=environment) as process:
            await_webhook(account.plane)
            yield process


def pool(name: str, **spec: object) -> Json:
    """A NodePool of ``v1beta1`` as short as published ones (API-A01, API-A02)."""
    return {"apiVersion": "karpenter.sh/v1beta1", "kind": "NodePool", "metadata": {"name": name}, "spec": spec}


def at(obj: Json, *path: str) -> object:
    value: object = obj
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def test_an_excerpt_of_v1beta1_is_accepted_and_stored_as_v1(running: Controller, plane: ControlPlane) -> None:
    """API-A01, API-851, API-824: neither template nor class; both are filled in. The budget of 1 % stays."""
    excerpt = pool(
        "spot-instance",
        disruption={"budgets": [{"nodes": "1%"}], "consolidationPolicy": "WhenUnderutilized", "expireAfter": "Never"},
        weight=50,
    )
    plane.request("POST", _BETA, excerpt | {"metadata": {"name": "spot-instance", "annotations": None}})
    stored = plane.request("GET", f"{_V1}/spot-instance")
    assert at(stored, "spec", "disruption") == {
        "budgets": [{"nodes": "1%"}],
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "consolidateAfter": "0s",
    }
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    assert at(stored, "spec", "template", "spec", "nodeClassRef") == reference
    assert at(stored, "spec", "template", "spec", "expireAfter") == "Never"
    shown = plane.request("GET", f"{_BETA}/spot-instance")
    assert at(shown, "spec", "disruption", "consolidationPolicy") == "WhenUnderutilized"
    assert at(shown, "spec", "template") is None


def test_what_v1beta1_cannot_hold_survives_a_change_through_it(running: Controller, plane: ControlPlane) -> None:
    """API-713: budget reasons and Gte requirements of a v1 object come back after a v1beta1 client wrote its weight."""
    spec = {
        "disruption": {
            "consolidationPolicy": "Balanced",
            "consolidateAfter": "5m",
            "budgets": [{"nodes": "2", "reasons": ["Drifted"]}],
        },
        "template": {
            "spec": {
                "expireAfter": "48h",
                "terminationGracePeriod": "1h0m0s",
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "a"},
                "requirements": [
                    {"key": "karpenter.k8s.aws/instance-cpu", "operator": "Gte", "values": ["4"]},
                    {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
                ],
            }
        },
    }
    made = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "rich"}, "spec": spec}
    plane.request("POST", _V1, made)
    older = plane.request("GET", f"{_BETA}/rich")
    assert at(older, "spec", "disruption") == {
        "consolidationPolicy": "WhenUnderutilized",
        "expireAfter": "48h",
        "budgets": [{"nodes": "2"}],
    }
    older["spec"] = {**older["spec"], "weight": 7}
    plane.request("PUT", f"{_BETA}/rich", older)
    stored = plane.request("GET", f"{_V1}/rich")
    assert stored["spec"] == spec | {"weight": 7}


def test_a_class_of_v1beta1_is_stored_as_v1(running: Controller, plane: ControlPlane) -> None:
    """API-730, API-729, API-821, API-S290: an alias of the family, hop limit 2."""
    terms = [{"tags": {"karpenter.sh/discovery": "main"}}]
    spec = {"amiFamily": "AL2023", "role": "own", "subnetSelectorTerms": terms, "securityGroupSelectorTerms": terms}
    metadata = {"name": "older"}
    made = {"apiVersion": "karpenter.k8s.aws/v1beta1", "kind": "EC2NodeClass", "metadata": metadata, "spec": spec}
    plane.request("POST", _CLASSES.format("v1beta1"), made)
    stored = plane.request("GET", _CLASSES.format("v1") + "/older")
    assert at(stored, "spec", "amiSelectorTerms") == [{"alias": "al2023@latest"}]
    assert at(stored, "spec", "metadataOptions", "httpPutResponseHopLimit") == 2
    assert at(stored, "spec", "amiFamily") is None


def test_one_object_that_cannot_be_converted_does_not_block_the_others(
    running: Controller, plane: ControlPlane
) -> None:
    """API-707: `1hr` counts as 0s with a warning; the list holds every object in either version."""
    plane.request(
        "POST", _BETA, pool("odd", disruption={"consolidationPolicy": "WhenEmpty", "consolidateAfter": "1hr"})
    )
    stored = plane.request("GET", f"{_V1}/odd")
    assert at(stored, "spec", "disruption", "consolidateAfter") == "0s"
    assert "1hr" in str(at(stored, "metadata", "annotations", "compatibility.karpenter.sh/conversion-warnings"))
    for path in (_V1, _BETA):
        names = {one["metadata"]["name"] for one in plane.request("GET", path)["items"]}
        assert {"odd", "rich", "spot-instance"} <= names


def test_a_provisioner_has_a_twin_and_takes_it_along(running: Controller, plane: ControlPlane) -> None:
    """API-A10, API-850, API-852, API-S294: with the label of the older name (API-855); Kubernetes collects it as garbage."""
    older = {
        "apiVersion": "karpenter.sh/v1alpha5",
        "kind": "Provisioner",
        "metadata": {"name": "default", "labels": {"app": "web"}},
        "spec": {
            "providerRef": {"name": "default"},
            "requirements": [
                {"key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["c", "m", "r"]},
                {"key": "karpenter.k8s.aws/instance-generation", "operator": "Gt", "values": ["2"]},
            ],
        },
    }
    path = "/apis/karpenter.sh/v1alpha5/provisioners"
    plane.request("POST", path, older)
    plane.until(lambda: "default" in pool_names(plane), "the twin")
    twin = plane.request("GET", f"{_V1}/default")
    labels = {"karpenter.sh/provisioner-name": "default"}
    assert at(twin, "spec", "template", "metadata", "labels") == labels
    plane.until(lambda: at(plane.request("GET", f"{path}/default"), "status", "conditions") is not None, "its status")
    plane.request("DELETE", f"{path}/default")
    plane.until(lambda: "default" not in pool_names(plane), "the twin to go")


def pool_names(plane: ControlPlane) -> set[str]:
    return {one["metadata"]["name"] for one in plane.request("GET", _V1)["items"]}


def store_as(plane: ControlPlane, version: str) -> None:
    """Let the API server store NodePools in this version from now on."""
    definition = plane.request("GET", _DEFINITION)
    for served in definition["spec"]["versions"]:
        served["storage"] = served["name"] == version
    plane.request("PUT", _DEFINITION, definition)


def stored_versions(plane: ControlPlane) -> object:
    return at(plane.request("GET", _DEFINITION), "status", "storedVersions")


async def test_objects_stored_as_v1beta1_are_written_again(running: Controller, account: Account) -> None:
    """API-851: with the controller's own rights; afterwards a definition without v1beta1 is taken, and v1 reads them."""
    plane = account.plane
    store_as(plane, "v1beta1")
    plane.until(lambda: stored_versions(plane) == ["v1", "v1beta1"], "the older storage version")
    excerpt = pool("early", disruption={"consolidationPolicy": "WhenUnderutilized", "expireAfter": "Never"})
    plane.request("POST", _BETA, excerpt)
    store_as(plane, "v1")
    async with account.client() as kube:
        await StorageMigration(kube, [NODE_POOL]).reconcile()
        assert stored_versions(plane) == ["v1"]
        version = (await kube.get(NODE_POOL, "early")).metadata.resource_version
        await StorageMigration(kube, [NODE_POOL]).reconcile()
        assert (await kube.get(NODE_POOL, "early")).metadata.resource_version == version
    definition = plane.request("GET", _DEFINITION)
    without = {**definition["spec"], "versions": [one for one in definition["spec"]["versions"] if one["name"] == "v1"]}
    plane.request("PUT", _DEFINITION, {**definition, "spec": without})
    assert at(plane.request("GET", f"{_V1}/early"), "spec", "template", "spec", "expireAfter") == "Never"
    both = plane.request("GET", _DEFINITION)
    plane.request("PUT", _DEFINITION, {**both, "spec": definition["spec"]})


def test_without_the_webhook_v1_goes_on(running: Controller, plane: ControlPlane) -> None:
    """API-851: only v1beta1 requests fail while no controller runs; objects that came as v1beta1 are written as v1."""
    assert running.terminate() == 0
    with pytest.raises(ApiError):
        plane.request("GET", f"{_BETA}/odd")
    patch: Json = {"spec": {"weight": 3}}
    changed = plane.request("PATCH", f"{_V1}/odd", patch, "application/merge-patch+json")
    assert at(changed, "spec", "weight") == 3
    plane.request("DELETE", f"{_V1}/odd")
