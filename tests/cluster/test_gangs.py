"""ProvisioningRequests and PodGroups on a real API server, with the rights of the chart and definitions of the tests.

The definitions have the fields of the published ones that are read or written, with their rules about conditions.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controlplane import deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane, Json
from controlplane.objects import items, made, simulated_class, simulated_pool
from controlplane.process import controller
from karpenter.model import labels

pytestmark = pytest.mark.cluster

_GATES = "--feature-gates=GangScheduling=true"
_REQUESTS = "/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests"
_TEXT: Json = {"type": "string"}
_CONDITION: Json = {
    "type": "object",
    "required": ["lastTransitionTime", "message", "reason", "status", "type"],
    "properties": {
        "type": {**_TEXT, "maxLength": 316},
        "status": {**_TEXT, "enum": ["True", "False", "Unknown"]},
        "reason": {**_TEXT, "minLength": 1, "maxLength": 1024, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
        "message": {**_TEXT, "maxLength": 32768},
        "lastTransitionTime": {**_TEXT, "format": "date-time"},
        "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
    },
}
_REQUEST_SPEC: Json = {
    "type": "object",
    "required": ["podSets", "provisioningClassName"],
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "Value is immutable"}],
    "properties": {
        "provisioningClassName": {**_TEXT, "maxLength": 253},
        "parameters": {"type": "object", "additionalProperties": {**_TEXT, "maxLength": 255}, "maxProperties": 100},
        "podSets": {
            "type": "array",
            "minItems": 1,
            "maxItems": 32,
            "items": {
                "type": "object",
                "required": ["count", "podTemplateRef"],
                "properties": {
                    "count": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 16384},
                    "podTemplateRef": {"type": "object", "properties": {"name": _TEXT}},
                },
            },
        },
    },
}
_CONDITIONS: Json = {
    "type": "array",
    "items": _CONDITION,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
}


def definition(group: str, version: str, plural: str, kind: str, spec: Json) -> Json:
    """A CustomResourceDefinition with a status of conditions."""
    status: Json = {"type": "object", "properties": {"conditions": _CONDITIONS}}
    schema: Json = {"type": "object", "properties": {"spec": spec, "status": status}}
    served: Json = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    body: Json = {"group": group, "scope": "Namespaced", "names": names, "versions": [served]}
    # The API server keeps groups of Kubernetes to those that name an approval.
    approved = {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler/pull/5848"}
    return made("CustomResourceDefinition", "apiextensions.k8s.io/v1", f"{plural}.{group}", body, annotations=approved)


_POD_GROUP_SPEC: Json = {"type": "object", "properties": {"minMember": {"type": "integer", "format": "int32"}}}
_DEFINITIONS = (
    definition("autoscaling.x-k8s.io", "v1", "provisioningrequests", "ProvisioningRequest", _REQUEST_SPEC),
    definition("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", _POD_GROUP_SPEC),
)


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[Account]:
    plane.apply(
        *_DEFINITIONS,
        simulated_class(),
        simulated_pool(),
    )
    with deployed.installed(plane) as ready:
        yield ready
    plane.delete(*_DEFINITIONS)


def container(cpu: str) -> Json:
    return {"name": "app", "image": "pause", "resources": {"requests": {"cpu": cpu}}}


def ask(plane: ControlPlane, name: str, class_name: str, cpu: str, **parameters: str) -> None:
    """A request for two pods of a template of its own."""
    body: Json = {"metadata": {"name": name, "namespace": "default"}, "apiVersion": "v1", "kind": "PodTemplate"}
    plane.apply({**body, "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container(cpu)]}}})
    spec: Json = {
        "provisioningClassName": f"{class_name}.autoscaling.x-k8s.io",
        "podSets": [{"count": 2, "podTemplateRef": {"name": name}}],
        "parameters": parameters,
    }
    plane.apply(made("ProvisioningRequest", "autoscaling.x-k8s.io/v1", name, spec, namespace="default"))


def said(plane: ControlPlane, name: str, type_: str) -> tuple[str, str]:
    """Status and reason of a condition of a request; empty while it has none."""
    conditions: list[Json] = plane.request("GET", f"{_REQUESTS}/{name}").get("status", {}).get("conditions", [])
    return next(((str(one["status"]), str(one["reason"])) for one in conditions if one["type"] == type_), ("", ""))


def claims(plane: ControlPlane) -> list[Json]:
    return items(plane, "/apis/karpenter.sh/v1/nodeclaims")


def member(name: str) -> Json:
    """A pod of the group ``ring`` as the coscheduling plugin knows its members.

    It fits on no node of the request: those are spot.
    """
    group = {"scheduling.x-k8s.io/pod-group": "ring"}
    spec: Json = {
        "containers": [container("1500m")],
        "nodeSelector": {labels.CAPACITY_TYPE: "on-demand"},
        "terminationGracePeriodSeconds": 0,
    }
    return made("Pod", "v1", name, spec, namespace="default", labels=group)


def test_requests_are_served_and_a_group_gets_nodes_as_a_whole(account: Account) -> None:
    """Conditions that the definition admits, under the rights of the chart; a group that is not complete launches nothing."""
    plane = account.plane
    plane.apply(
        made("PodGroup", "scheduling.x-k8s.io/v1alpha1", "ring", {"minMember": 3}, namespace="default"),
        member("ring-0"),
        member("ring-1"),
    )
    with controller(account.kubeconfig, _GATES) as running:
        running.until(running.is_ready, "become ready", 120.0)
        ask(plane, "impossible", "check-capacity", "900", noRetry="true")
        found = ("True", "CapacityIsNotFound")
        plane.until(lambda: said(plane, "impossible", "Failed") == found, "a check without room to fail")
        assert claims(plane) == []
        ask(plane, "train", "best-effort-atomic-scale-up", "1500m")
        ready = ("True", "CapacityIsProvisioned")
        plane.until(lambda: said(plane, "train", "Provisioned") == ready, "the request to be provisioned")
        assert said(plane, "train", "Accepted") == ("True", "Accepted")
        gangs = {one["metadata"]["annotations"].get("karpenter.sh/gang") for one in claims(plane)}
        assert gangs == {"ProvisioningRequest default/train"}
        launched = len(claims(plane))
        plane.apply(member("ring-2"))
        plane.until(lambda: len(claims(plane)) > launched, "nodes for the complete group")
    account.check()
