"""Workloads that select nodes by the name of their Provisioner (API-855)."""

from __future__ import annotations

import json

import pytest

from karpenter import load_text, plan
from karpenter.conversion.json_fields import Json, object_field
from karpenter.conversion.options import ConversionOptions
from karpenter.olderversions.twins import twins_of

_KEY = "karpenter.sh/provisioner-name"
_PROVISIONER: Json = {
    "apiVersion": "karpenter.sh/v1alpha5",
    "kind": "Provisioner",
    "metadata": {"name": "shop", "uid": "u"},
    "spec": {"providerRef": {"name": "shop"}},
}
_OTHER: Json = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "other"},
    "spec": {
        "weight": 1,
        "template": {
            "spec": {
                "requirements": [],
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "shop"},
            }
        },
    },
}
_CLASS: Json = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "shop"}}


def twin() -> Json:
    """The NodePool of the Provisioner, with instances of the simulated provider and a higher weight than the other pool."""
    (pool,) = twins_of(_PROVISIONER, ConversionOptions()).objects
    spec = object_field(pool, "spec", "")
    template = object_field(spec, "template", "")
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "shop"}
    changed = object_field(template, "spec", "") | {"nodeClassRef": reference, "requirements": []}
    return {**pool, "spec": {**spec, "weight": 50, "template": {**template, "spec": changed}}}


def pod(**spec: object) -> Json:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    metadata = {"name": "web", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def affinity(operator: str, *values: str) -> Json:
    term: Json = {"key": _KEY, "operator": operator} | ({"values": list(values)} if values else {})
    terms = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


@pytest.mark.parametrize(
    ("wanted", "pool"),
    [
        (pod(), "shop"),
        (pod(nodeSelector={_KEY: "shop"}), "shop"),
        (pod(affinity=affinity("In", "shop", "old")), "shop"),
        (pod(affinity=affinity("Exists")), "shop"),
        (pod(affinity=affinity("NotIn", "shop")), "other"),
        (pod(affinity=affinity("DoesNotExist")), "other"),
    ],
)
def test_the_older_name_of_a_pool_works_in_selectors_and_affinities(wanted: Json, pool: str) -> None:
    """API-855, API-S296, API-A12: `DoesNotExist` keeps a pod from every node of a Provisioner."""
    objects = load_text("\n---\n".join(json.dumps(one) for one in (twin(), _OTHER, _CLASS, wanted)))
    assert [node.node_pool for node in plan(objects).nodes] == [pool]
