"""The generated CRDs on a real API server: what it accepts, refuses, fills in, drops and prints."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

import msgspec
import pytest

from controlplane.harness import ControlPlane
from karpenter.api import crds
from karpenter.api.kinds import NODE_POOL
from karpenter.api.meta import Condition, ObjectMeta
from karpenter.model import conditions
from karpenter.model.conditions import ConditionTypes
from support import yaml_text
from support.admission import INVALID_STORED, ROWS
from support.admission_rows import Json, Row, built
from support.admission_statuses import STATUS
from support.server_writes import KINDS, RealServer, Write, in_memory, real_server


def _rooted(types: ConditionTypes) -> Callable[[ObjectMeta, datetime], tuple[Condition, ...]]:
    custom = Condition(type="Custom", status="True")
    return lambda meta, now: conditions.set_condition((), custom, conditions.conditioned_object(types, meta, now))


#: A first condition of each kind, as we write it.
_CONDITIONS: Mapping[str, Callable[[ObjectMeta, datetime], tuple[Condition, ...]]] = {
    "NodePool": _rooted(conditions.NODE_POOL),
    "NodeClaim": _rooted(conditions.NODE_CLAIM),
    "KWOKNodeClass": _rooted(conditions.KWOK_NODE_CLASS),
    "MachineNodeClass": _rooted(ConditionTypes("Ready")),
    "EC2NodeClass": _rooted(ConditionTypes("Ready", ("AMIsReady", "SubnetsReady"))),
    "NodeOverlay": _rooted(conditions.NODE_OVERLAY),
    "CapacityBuffer": lambda meta, now: conditions.set_rootless_condition(
        (), Condition(type="Custom", status="True"), meta.generation, now
    ),
    "CapacitySchedule": lambda meta, now: conditions.set_rootless_condition(
        (), Condition(type="Ready", status="True"), meta.generation, now
    ),
}


@pytest.fixture(scope="module")
def server(control_plane: ControlPlane) -> ControlPlane:
    control_plane.apply(*yaml_text.documents(crds.to_yaml()))
    return control_plane


@pytest.fixture(scope="module")
def real(server: ControlPlane) -> Iterator[RealServer]:
    with real_server(server) as result:
        yield result


@pytest.fixture
def stored(server: ControlPlane) -> Iterator[list[str]]:
    """Paths of objects to remove after the test."""
    paths: list[str] = []
    yield paths
    for path in paths:
        server.request("DELETE", path)


def create(server: ControlPlane, stored: list[str], obj: Json, name: str) -> Json:
    kind = KINDS[str(obj["kind"])]
    obj["metadata"] = {**obj["metadata"], "name": name}
    namespace = "default" if kind.namespaced else ""
    made = server.request("POST", kind.path(namespace), obj)
    stored.append(kind.path(namespace, name))
    return made


@pytest.mark.parametrize("row", [*ROWS, *STATUS], ids=lambda row: row.id)
def test_the_api_server_says_what_the_table_and_the_one_in_memory_say(real: RealServer, row: Row) -> None:
    """API-033: the same verdict, and where the object is taken, the same object with the same defaults (API-020, API-021)."""
    write = Write.of(row)
    real.prepare(write)
    answer = real.answer(write)
    assert answer.accepted == row.accepted, answer.text
    if not row.accepted:
        text = answer.text.replace('\\"', '"').lower()
        assert (answer.status, [word for word in row.words if word.lower() not in text]) in ((422, []), (400, []))
    assert in_memory(write).stored == answer.stored


_LOOSER = "looser.example"


def _looser_group(schema: Json | None = None) -> Json:
    """The CRD of NodePools under another group, so that a change of its schema affects no other test.

    It has the stored version alone: nobody converts objects of that group.
    """
    deepcopy = copy.deepcopy(crds.custom_resource_definitions()[0])
    deepcopy["metadata"] = {"name": f"nodepools.{_LOOSER}"}
    spec: Json = deepcopy["spec"]
    spec["group"] = _LOOSER
    spec["versions"] = [version for version in spec["versions"] if version["storage"]]
    spec.pop("conversion", None)
    if schema is not None:
        spec["versions"][0]["schema"] = {"openAPIV3Schema": schema}
    return deepcopy


def _moved(obj: Json, name: str) -> Json:
    return {**obj, "apiVersion": f"{_LOOSER}/v1", "metadata": {**obj["metadata"], "name": name}}


@pytest.fixture(scope="module")
def old_sinners(server: ControlPlane, real: RealServer) -> Iterator[str]:
    """The path of a collection of the objects ``INVALID_STORED`` starts from, by the ids of the rows."""
    path = f"/apis/{_LOOSER}/v1/nodepools"
    server.apply(_looser_group({"type": "object", "x-kubernetes-preserve-unknown-fields": True}))
    for row in INVALID_STORED:
        assert row.stored is not None
        made = server.request("POST", path, _moved(row.stored, row.id.lower()))
        if "status" in row.stored:
            server.request("PUT", f"{path}/{row.id.lower()}/status", {**made, "status": row.stored["status"]})
    server.apply(_looser_group())
    bad = _moved(built("NodePool", {"spec.weight": 0}), "bad")
    trial = {"dryRun": "All"}
    server.until(lambda: not real.client.post(path, params=trial, json=bad).is_success, "the stricter schema")
    yield path
    server.request("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodepools.{_LOOSER}")


@pytest.mark.parametrize("row", INVALID_STORED, ids=lambda row: row.id)
def test_what_was_stored_under_looser_rules_does_not_stand_against_other_changes(
    old_sinners: str, server: ControlPlane, real: RealServer, row: Row
) -> None:
    """Or a pool of before could not even be told that something is wrong with it."""
    path = f"{old_sinners}/{row.id.lower()}"
    wanted = _moved(row.object, row.id.lower())
    wanted["metadata"]["resourceVersion"] = server.request("GET", path)["metadata"]["resourceVersion"]
    path = f"{path}/status" if row.is_status else path
    response = real.client.put(path, params={"dryRun": "All"}, json=wanted)
    assert response.is_success == row.accepted, response.text


def test_defaults_are_visible_in_the_stored_pool(server: ControlPlane, stored: list[str]) -> None:
    """API-S001, API-S019; API-072, DIS-130: a minimal NodePool gets one budget of 10 % and expires after 720h."""
    made = create(server, stored, built("NodePool", {}), "crds-defaults")
    spec: Json = made["spec"]
    assert spec["disruption"] == {
        "consolidateAfter": "0s",
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "budgets": [{"nodes": "10%"}],
    }
    assert spec["template"]["spec"]["expireAfter"] == "720h"
    partial = built("NodePool", {"spec.disruption": {"budgets": [{"reasons": ["Empty"]}]}})
    made = create(server, stored, partial, "crds-partial-defaults")
    assert made["spec"]["disruption"] == {
        "consolidateAfter": "0s",
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "budgets": [{"nodes": "10%", "reasons": ["Empty"]}],
    }


def test_explicitly_empty_budgets_stay_empty(server: ControlPlane, stored: list[str]) -> None:
    """API-047: a server keeps the difference between none given and none wanted, and so does decoding."""
    made = create(server, stored, built("NodePool", {"spec.disruption": {"budgets": []}}), "crds-no-budgets")
    assert made["spec"]["disruption"]["budgets"] == []
    decoded = NODE_POOL.decode(msgspec.json.encode(made))
    assert decoded.spec.disruption.budgets == ()
    assert b'"budgets":[]' in NODE_POOL.encode(decoded)


def test_a_claims_lifetime_is_filled_in(server: ControlPlane, stored: list[str]) -> None:
    """API-S080"""
    made = create(server, stored, built("NodeClaim", {}), "crds-claim")
    assert made["spec"]["expireAfter"] == "720h"


def test_metadata_options_are_filled_in_and_kubelet_settings_kept_as_they_are(
    server: ControlPlane, stored: list[str]
) -> None:
    """AWS-T048, AWS-T052, API-S140, API-S161"""
    usual = {
        "httpEndpoint": "enabled",
        "httpProtocolIPv6": "disabled",
        "httpPutResponseHopLimit": 1,
        "httpTokens": "required",
    }
    kubelet = {"maxPods": "vcpus * 10", "unknown": {"a": [1, 2.5, {"b": True}]}}
    made = create(server, stored, built("EC2NodeClass", {"spec.kubelet": kubelet}), "crds-ec2")
    assert made["spec"]["metadataOptions"] == usual
    assert made["spec"]["kubelet"] == kubelet
    partial = built("EC2NodeClass", {"spec.metadataOptions": {"httpTokens": "optional"}})
    made = create(server, stored, partial, "crds-ec2-partial")
    assert made["spec"]["metadataOptions"] == {**usual, "httpTokens": "optional"}


def test_unknown_fields_are_dropped(server: ControlPlane, stored: list[str]) -> None:
    """API-021"""
    made = create(server, stored, built("NodePool", {"spec.template.spec.kubelet": {"maxPods": 5}}), "crds-unknown")
    assert "kubelet" not in made["spec"]["template"]["spec"]


def test_static_pools_can_be_scaled(server: ControlPlane, stored: list[str]) -> None:
    """API-S028"""
    create(server, stored, built("NodePool", {"spec.replicas": 1}), "crds-scaled")
    path = NODE_POOL.path(name="crds-scaled")
    merge = "application/merge-patch+json"
    server.request("PATCH", f"{path}/scale", {"spec": {"replicas": 7}}, merge)
    assert server.request("GET", path)["spec"]["replicas"] == 7


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_status_as_we_write_it_is_stored_and_read_back(server: ControlPlane, stored: list[str], name: str) -> None:
    """API-607; the server keeps every field of a condition, an empty message included."""
    kind = KINDS[name]
    path = kind.path("default" if kind.namespaced else "", "crds-status")
    made = kind.decode(msgspec.json.encode(create(server, stored, built(name, {}), "crds-status")))
    assert made.metadata.creation_timestamp is not None
    wanted = _CONDITIONS[name](made.metadata, made.metadata.creation_timestamp)
    body: Json = msgspec.to_builtins({"status": {"conditions": wanted}})
    server.request("PATCH", f"{path}/status", body, "application/merge-patch+json")
    read = server.request("GET", path)["status"]["conditions"]
    assert msgspec.convert(read, tuple[Condition, ...]) == wanted
    assert all("message" in condition for condition in read)


def test_the_printed_columns_are_those_users_know(server: ControlPlane, stored: list[str]) -> None:
    """API-008, API-009, API-012"""
    for kind, wide in (
        ("EC2NodeClass", ["Role"]),
        ("NodePool", ["Weight", "CPU", "Memory"]),
        ("NodeClaim", ["ImageID", "ID", "NodePool", "NodeClass", "Drifted"]),
    ):
        create(server, stored, built(kind, {}), "crds-columns")
        table = _table(server, KINDS[kind].path(name="crds-columns"))
        columns = [(column["name"], column["priority"]) for column in table["columnDefinitions"]]
        assert [name for name, priority in columns if priority] == wide
        narrow = {
            "EC2NodeClass": ["Name", "Ready", "Age"],
            "NodePool": ["Name", "NodeClass", "Nodes", "Ready", "Age"],
            "NodeClaim": ["Name", "Type", "Capacity", "Zone", "Node", "Ready", "Age"],
        }
        assert [name for name, priority in columns if not priority] == narrow[kind]


def _table(server: ControlPlane, path: str) -> Json:
    import ssl
    import urllib.request

    request = urllib.request.Request(server.server + path)
    request.add_header("Authorization", f"Bearer {server.tokens['admin']}")
    request.add_header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
    trust = ssl.create_default_context(cafile=str(server.folder / "certificates" / "apiserver.crt"))
    with urllib.request.urlopen(request, timeout=30, context=trust) as response:
        return msgspec.json.decode(response.read())


def test_names_and_categories_are_those_users_know(server: ControlPlane) -> None:
    """API-001, API-002, API-005, API-006, AWS-030"""
    actual = {}
    for group in ("karpenter.sh/v1", "karpenter.kwok.sh/v1alpha1", "karpenter.k8s.aws/v1"):
        for resource in server.request("GET", f"/apis/{group}")["resources"]:
            actual[resource["name"]] = (resource["namespaced"], resource.get("shortNames"), resource.get("categories"))
    assert actual["nodepools"] == (False, None, ["karpenter"])
    assert actual["nodeclaims"] == (False, None, ["karpenter"])
    assert actual["kwoknodeclasses"] == (False, ["kwoknc", "kwokncs"], ["karpenter"])
    assert actual["ec2nodeclasses"] == (False, ["ec2nc", "ec2ncs"], ["karpenter"])
    statuses = {f"{plural}/status" for plural in ("nodepools", "nodeclaims", "kwoknodeclasses", "ec2nodeclasses")}
    assert statuses | {"nodepools/scale"} <= set(actual)
