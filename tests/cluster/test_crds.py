"""The generated CRDs on a real API server: what it accepts, refuses, fills in, drops and prints."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import yaml

from admission import ROWS, Json, Row, built
from controlplane.harness import ApiError, ControlPlane
from karpenter.api import crds
from karpenter.api.kinds import KWOK_NODE_CLASS, NODE_CLAIM, NODE_POOL
from karpenter.api.meta import Condition
from karpenter.model import conditions

KINDS = {kind.name: kind for kind in (NODE_POOL, NODE_CLAIM, KWOK_NODE_CLASS)}
DRY = "?dryRun=All"


@pytest.fixture(scope="module")
def server(control_plane: ControlPlane) -> ControlPlane:
    control_plane.apply(*yaml.safe_load_all(crds.to_yaml()))
    return control_plane


@pytest.fixture
def stored(server: ControlPlane) -> Iterator[list[str]]:
    """Paths of objects to remove after the test."""
    paths: list[str] = []
    yield paths
    for path in paths:
        server.request("DELETE", path)


def create(server: ControlPlane, stored: list[str], obj: Json, name: str) -> Json:
    kind = KINDS[str(obj["kind"])]
    obj["metadata"] = {**obj["metadata"], "name": name}  # type: ignore[dict-item]
    made = server.request("POST", kind.path(), obj)
    stored.append(kind.path(name=name))
    return made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_the_api_server_accepts_and_refuses_what_the_table_says(
    server: ControlPlane, stored: list[str], row: Row
) -> None:
    kind, name = KINDS[row.kind], f"crds-{row.id.lower()}"
    wanted = row.object
    wanted["metadata"] = {**wanted["metadata"], "name": name}  # type: ignore[dict-item]
    method, path = "POST", kind.path()
    if row.stored is not None:
        made = create(server, stored, row.stored, name)
        wanted["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]  # type: ignore[index]
        method, path = "PUT", kind.path(name=name)
    if row.accepted:
        server.request(method, path + DRY, wanted)
    else:
        with pytest.raises(ApiError) as refusal:
            server.request(method, path + DRY, wanted)
        assert refusal.value.status == 422
        text = str(refusal.value).replace('\\"', '"')
        assert [word for word in row.words if word.lower() not in text.lower()] == []


def test_defaults_are_visible_in_the_stored_pool(server: ControlPlane, stored: list[str]) -> None:
    """API-S001, API-S019"""
    made = create(server, stored, built("NodePool", {}), "crds-defaults")
    spec: Json = made["spec"]  # type: ignore[assignment]
    assert spec["disruption"] == {
        "consolidateAfter": "0s",
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "budgets": [{"nodes": "10%"}],
    }
    assert spec["template"]["spec"]["expireAfter"] == "720h"  # type: ignore[index]
    partial = built("NodePool", {"spec.disruption": {"budgets": [{"reasons": ["Empty"]}]}})
    made = create(server, stored, partial, "crds-partial-defaults")
    assert made["spec"]["disruption"] == {  # type: ignore[index]
        "consolidateAfter": "0s",
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "budgets": [{"nodes": "10%", "reasons": ["Empty"]}],
    }


def test_explicitly_empty_budgets_stay_empty(server: ControlPlane, stored: list[str]) -> None:
    """API-047: a server keeps the difference between none given and none wanted, and so does decoding."""
    made = create(server, stored, built("NodePool", {"spec.disruption": {"budgets": []}}), "crds-no-budgets")
    assert made["spec"]["disruption"]["budgets"] == []  # type: ignore[index]
    decoded = NODE_POOL.decode(msgspec.json.encode(made))
    assert decoded.spec.disruption.budgets == ()
    assert b'"budgets":[]' in NODE_POOL.encode(decoded)


def test_a_claims_lifetime_is_filled_in(server: ControlPlane, stored: list[str]) -> None:
    """API-S080"""
    made = create(server, stored, built("NodeClaim", {}), "crds-claim")
    assert made["spec"]["expireAfter"] == "720h"  # type: ignore[index]


def test_unknown_fields_are_dropped(server: ControlPlane, stored: list[str]) -> None:
    """API-021"""
    made = create(server, stored, built("NodePool", {"spec.template.spec.kubelet": {"maxPods": 5}}), "crds-unknown")
    assert "kubelet" not in made["spec"]["template"]["spec"]  # type: ignore[index]


def test_static_pools_can_be_scaled(server: ControlPlane, stored: list[str]) -> None:
    """API-S028"""
    create(server, stored, built("NodePool", {"spec.replicas": 1}), "crds-scaled")
    path = NODE_POOL.path(name="crds-scaled")
    merge = "application/merge-patch+json"
    server.request("PATCH", f"{path}/scale", {"spec": {"replicas": 7}}, merge)
    assert server.request("GET", path)["spec"]["replicas"] == 7  # type: ignore[index]


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_status_as_we_write_it_is_stored_and_read_back(server: ControlPlane, stored: list[str], name: str) -> None:
    """API-607; the server keeps every field of a condition, an empty message included."""
    kind = KINDS[name]
    path = kind.path(name="crds-status")
    made = kind.decode(msgspec.json.encode(create(server, stored, built(name, {}), "crds-status")))
    types = {
        "NodePool": conditions.NODE_POOL,
        "NodeClaim": conditions.NODE_CLAIM,
        "KWOKNodeClass": conditions.KWOK_NODE_CLASS,
    }[name]
    assert made.metadata.creation_timestamp is not None
    owner = conditions.owner(types, made.metadata, made.metadata.creation_timestamp)
    wanted = conditions.put_true((), "Custom", owner)
    body: Json = msgspec.to_builtins({"status": {"conditions": wanted}})
    server.request("PATCH", f"{path}/status", body, "application/merge-patch+json")
    read = server.request("GET", path)["status"]["conditions"]  # type: ignore[index]
    assert msgspec.convert(read, tuple[Condition, ...]) == wanted
    assert all("message" in condition for condition in read)  # type: ignore[attr-defined]


def test_the_printed_columns_are_those_users_know(server: ControlPlane, stored: list[str]) -> None:
    """API-008, API-009"""
    for kind, wide in (
        ("NodePool", ["Weight", "CPU", "Memory"]),
        ("NodeClaim", ["ImageID", "ID", "NodePool", "NodeClass", "Drifted"]),
    ):
        create(server, stored, built(kind, {}), "crds-columns")
        table = _table(server, KINDS[kind].path(name="crds-columns"))
        columns = [(column["name"], column["priority"]) for column in table["columnDefinitions"]]  # type: ignore[attr-defined]
        assert [name for name, priority in columns if priority] == wide
        narrow = {
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
    """API-001, API-002, API-006"""
    found = {}
    for group in ("karpenter.sh/v1", "karpenter.kwok.sh/v1alpha1"):
        for item in server.request("GET", f"/apis/{group}")["resources"]:  # type: ignore[attr-defined]
            found[item["name"]] = (item["namespaced"], item.get("shortNames"), item.get("categories"))
    assert found["nodepools"] == (False, None, ["karpenter"])
    assert found["nodeclaims"] == (False, None, ["karpenter"])
    assert found["kwoknodeclasses"] == (False, ["kwoknc", "kwokncs"], ["karpenter"])
    assert {"nodepools/status", "nodepools/scale", "nodeclaims/status", "kwoknodeclasses/status"} <= set(found)
