"""The in-memory server over HTTP: what ``kubectl`` relies on beyond what the product's own client does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from karpenter.kube.errors import Unavailable
from karpenter.kube.memory import MemoryServer
from karpenter.kube.memory.tables import age, at
from karpenter.kube.serve import app, kubeconfig

_NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
_TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
_MAPS = "/api/v1/namespaces/default/configmaps"
_DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
_POOLS = "/apis/karpenter.sh/v1/nodepools"
_POOL = {
    "metadata": {"name": "general"},
    "spec": {
        "template": {
            "spec": {
                "requirements": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}],
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
            }
        }
    },
}


class _Clock:
    def now(self) -> datetime:
        return _NOW


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer(_Clock())


@pytest.fixture
async def http(server: MemoryServer) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=app(server))
    async with httpx2.AsyncClient(transport=transport, base_url="http://memory") as client:
        yield client


async def _post(http: httpx2.AsyncClient, path: str, body: Any, status: int = 201) -> Any:
    response = await http.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


async def _patch(http: httpx2.AsyncClient, path: str, kind: str, body: Any) -> httpx2.Response:
    return await http.patch(path, content=json.dumps(body), headers={"Content-Type": f"application/{kind}"})


async def test_discovery_names_every_resource_and_its_subresources(http: httpx2.AsyncClient) -> None:
    groups = {group["name"] for group in (await http.get("/apis")).json()["groups"]}
    assert {"apps", "policy", "karpenter.sh", "karpenter.kwok.sh"} <= groups
    core = {line["name"]: line for line in (await http.get("/api/v1")).json()["resources"]}
    assert {"pods", "pods/status", "pods/binding", "pods/eviction", "nodes", "events"} <= core.keys()
    assert core["pods"]["shortNames"] == ["po"]
    pools = {line["name"]: line for line in (await http.get("/apis/karpenter.sh/v1")).json()["resources"]}
    assert pools["nodepools/scale"]["kind"] == "Scale"
    assert pools["nodepools"]["categories"] == ["karpenter"]


async def test_openapi_promises_field_validation_and_describes_our_kinds(http: httpx2.AsyncClient) -> None:
    index = (await http.get("/openapi/v3")).json()["paths"]
    document = (await http.get(index["apis/karpenter.sh/v1"]["serverRelativeURL"])).json()
    patch = document["paths"][f"{_POOLS}/{{name}}"]["patch"]
    assert [parameter["name"] for parameter in patch["parameters"]] == ["fieldValidation"]
    assert "spec" in document["components"]["schemas"]["sh.karpenter.v1.NodePool"]["properties"]


@pytest.mark.parametrize(
    "path", ["/api/v1/teapots", "/apis/no.such/v1", "/apis/no.such/v1/things", "/no/such", "/api/v2"]
)
async def test_what_is_not_served_is_a_plain_404(http: httpx2.AsyncClient, path: str) -> None:
    response = await http.get(path)
    assert (response.status_code, response.text) == (404, "404 page not found\n")


async def test_refusals_are_status_objects(http: httpx2.AsyncClient) -> None:
    status = (await http.get(f"{_MAPS}/none")).json()
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 404, "NotFound")
    await _post(http, _MAPS, {"metadata": {"name": "a"}})
    status = await _post(http, _MAPS, {"metadata": {"name": "a"}}, 409)
    assert status["reason"] == "AlreadyExists"
    status = await _post(http, _MAPS, [], 400)
    assert status["reason"] == "BadRequest"
    assert (await http.put(_MAPS, json={})).status_code == 405


async def test_an_object_of_another_kind_than_its_path_is_refused(http: httpx2.AsyncClient) -> None:
    status = await _post(http, _MAPS, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}, 400)
    assert "Secret" in status["message"]


async def test_a_dry_run_is_refused_rather_than_done(http: httpx2.AsyncClient) -> None:
    await _post(http, f"{_MAPS}?dryRun=All", {"metadata": {"name": "a"}}, 400)
    assert (await http.get(f"{_MAPS}/a")).status_code == 404


async def test_lists_come_in_pages(http: httpx2.AsyncClient) -> None:
    for name in "abc":
        await _post(http, _MAPS, {"metadata": {"name": name}})
    first = (await http.get(_MAPS, params={"limit": "2"})).json()
    assert (first["kind"], first["metadata"]["remainingItemCount"]) == ("ConfigMapList", 1)
    rest = (await http.get(_MAPS, params={"limit": "2", "continue": first["metadata"]["continue"]})).json()
    assert [item["metadata"]["name"] for item in first["items"] + rest["items"]] == ["a", "b", "c"]
    again = await http.get(_MAPS, params={"limit": "2", "continue": first["metadata"]["continue"]})
    assert (again.status_code, again.json()["reason"]) == (410, "Expired")


async def test_pods_show_the_usual_columns(http: httpx2.AsyncClient) -> None:
    spec = {"containers": [{"name": "c"}]}
    await _post(http, "/api/v1/namespaces/default/pods", {"metadata": {"name": "a"}, "spec": spec})
    table = (await http.get("/api/v1/pods", headers=_TABLE)).json()
    shown = [column["name"] for column in table["columnDefinitions"] if not column["priority"]]
    assert shown == ["Name", "Ready", "Status", "Restarts", "Age"]
    assert table["rows"][0]["cells"][:4] == ["a", "0/1", "Pending", 0]
    assert table["rows"][0]["object"]["metadata"]["name"] == "a"


async def test_pools_show_the_columns_of_their_crd(http: httpx2.AsyncClient) -> None:
    """API-008."""
    await _post(http, _POOLS, _POOL)
    table = (await http.get(f"{_POOLS}/general", headers=_TABLE)).json()
    names = [column["name"] for column in table["columnDefinitions"]]
    assert names == ["Name", "NodeClass", "Nodes", "Ready", "Age", "Weight", "CPU", "Memory"]
    assert table["rows"][0]["cells"][:2] == ["general", "default"]


async def test_defaults_of_our_kinds_are_written_out(http: httpx2.AsyncClient) -> None:
    """API-020: a reader of the raw object sees the defaults too."""
    spec = (await _post(http, _POOLS, _POOL))["spec"]
    assert spec["template"]["spec"]["expireAfter"] == "720h"
    assert spec["disruption"]["consolidationPolicy"] == "WhenEmptyOrUnderutilized"


async def test_a_pool_that_is_wrong_says_where(http: httpx2.AsyncClient) -> None:
    status = await _post(http, _POOLS, {**_POOL, "spec": {**_POOL["spec"], "weight": 0}}, 422)
    assert "$.spec.weight" in status["message"]


async def test_replacing_one_of_our_objects_needs_its_version(http: httpx2.AsyncClient) -> None:
    made = await _post(http, _POOLS, _POOL)
    changed = {**made, "spec": {**made["spec"], "weight": 5}}
    stale = {**changed, "metadata": {**changed["metadata"], "resourceVersion": "1"}}
    unversioned = {**changed, "metadata": {"name": "general"}}
    assert (await http.put(f"{_POOLS}/general", json=stale)).status_code == 409
    assert (await http.put(f"{_POOLS}/general", json=unversioned)).status_code == 422
    assert (await http.put(f"{_POOLS}/general", json=changed)).json()["metadata"]["generation"] == 2


async def test_every_patch_format_is_understood(http: httpx2.AsyncClient) -> None:
    container = {"name": "c", "image": "1", "args": ["x"]}
    spec = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    await _post(http, _DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec})
    path = f"{_DEPLOYMENTS}/web"
    image = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "2"}]}}}}
    merged = (await _patch(http, path, "strategic-merge-patch+json", image)).json()
    assert merged["spec"]["template"]["spec"]["containers"] == [{**container, "image": "2"}]
    operations = [{"op": "replace", "path": "/spec/replicas", "value": 7}]
    assert (await _patch(http, path, "json-patch+json", operations)).json()["spec"]["replicas"] == 7
    labelled = (await _patch(http, path, "merge-patch+json", {"metadata": {"labels": {"a": "b"}}})).json()
    assert labelled["metadata"]["labels"] == {"a": "b"}
    assert (await _patch(http, path, "json-patch+json", [{"op": "remove", "path": "/none"}])).status_code == 422
    assert (await _patch(http, path, "xml", {})).status_code == 415


async def test_server_side_apply_creates_or_merges(http: httpx2.AsyncClient) -> None:
    head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    first = await _patch(http, f"{_MAPS}/a", "apply-patch+yaml", {**head, "data": {"x": "1"}})
    second = await _patch(http, f"{_MAPS}/a", "apply-patch+yaml", {**head, "data": {"y": "2"}})
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json()["data"] == {"x": "1", "y": "2"}


async def test_a_deployment_can_be_scaled(http: httpx2.AsyncClient) -> None:
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}}
    await _post(http, _DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec})
    scale = (await http.get(f"{_DEPLOYMENTS}/web/scale")).json()
    assert (scale["kind"], scale["spec"], scale["status"]["selector"]) == ("Scale", {"replicas": 2}, "app=web")
    scale["spec"]["replicas"] = 5
    assert (await http.put(f"{_DEPLOYMENTS}/web/scale", json=scale)).json()["spec"] == {"replicas": 5}
    patched = await _patch(http, f"{_DEPLOYMENTS}/web/scale", "merge-patch+json", {"spec": {"replicas": 0}})
    assert patched.json()["spec"] == {"replicas": 0}
    assert (await http.get(f"{_DEPLOYMENTS}/web")).json()["spec"]["replicas"] == 0
    assert (await http.put(f"{_DEPLOYMENTS}/web/scale", json=scale)).status_code == 409
    assert (await http.get(f"{_MAPS}/web/scale")).status_code == 404


async def test_a_refused_eviction_says_when_to_come_back(http: httpx2.AsyncClient, server: MemoryServer) -> None:
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    pod = {"metadata": {"name": "a", "namespace": "default", "labels": {"app": "web"}}, "spec": {"nodeName": "n"}}
    server.load([{"apiVersion": "v1", "kind": "Pod", **pod, "status": status}])
    budget = {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 0}
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    await _post(http, path, {"metadata": {"name": "b"}, "spec": budget})
    response = await http.post("/api/v1/namespaces/default/pods/a/eviction", json={"metadata": {"name": "a"}})
    assert (response.status_code, response.json()["reason"]) == (429, "TooManyRequests")
    assert int(response.headers["Retry-After"]) == response.json()["details"]["retryAfterSeconds"] > 0


async def test_dependents_can_be_orphaned(http: httpx2.AsyncClient) -> None:
    owner = (await _post(http, _MAPS, {"metadata": {"name": "owner"}}))["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    await _post(http, _MAPS, {"metadata": {"name": "child", "ownerReferences": [reference]}})
    await http.request("DELETE", f"{_MAPS}/owner", json={"propagationPolicy": "Orphan"})
    assert (await http.get(f"{_MAPS}/child")).json()["metadata"]["ownerReferences"] == []


async def test_a_collection_can_be_deleted_by_selector(http: httpx2.AsyncClient) -> None:
    for name in ("a", "b"):
        await _post(http, _MAPS, {"metadata": {"name": name, "labels": {"name": name}}})
    await http.delete(_MAPS, params={"labelSelector": "name=a"})
    assert [item["metadata"]["name"] for item in (await http.get(_MAPS)).json()["items"]] == ["b"]


async def _watched(http: httpx2.AsyncClient, server: MemoryServer, params: dict[str, str], **headers: str) -> list[Any]:
    """The lines of a watch that the server closes after one more object was made."""
    watch = asyncio.create_task(http.get(_MAPS, params={"watch": "true", **params}, headers=headers))
    for _ in range(10):  # turns enough for the watch to open
        await asyncio.sleep(0)
    await _post(http, _MAPS, {"metadata": {"name": "late"}})
    for _ in range(10):
        await asyncio.sleep(0)
    server.close_watches()
    return [json.loads(line) for line in (await watch).text.splitlines()]


async def test_a_watch_without_a_version_starts_with_what_is_there(
    http: httpx2.AsyncClient, server: MemoryServer
) -> None:
    await _post(http, _MAPS, {"metadata": {"name": "early"}})
    lines = await _watched(http, server, {})
    assert [(line["type"], line["object"]["metadata"]["name"]) for line in lines] == [
        ("ADDED", "early"),
        ("ADDED", "late"),
    ]


async def test_a_streaming_list_marks_the_end_of_its_initial_events(
    http: httpx2.AsyncClient, server: MemoryServer
) -> None:
    await _post(http, _MAPS, {"metadata": {"name": "early"}})
    lines = await _watched(http, server, {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"})
    assert [line["type"] for line in lines] == ["ADDED", "BOOKMARK", "ADDED"]
    assert lines[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_watch_can_come_as_tables(http: httpx2.AsyncClient, server: MemoryServer) -> None:
    [line] = await _watched(http, server, {"resourceVersion": str(server.revision)}, **_TABLE)
    assert line["object"]["kind"] == "Table"
    assert line["object"]["rows"][0]["cells"][0] == "late"


async def test_a_watch_from_a_version_too_old_is_gone(http: httpx2.AsyncClient, server: MemoryServer) -> None:
    server.compact()
    response = await http.get(_MAPS, params={"watch": "true", "resourceVersion": "1"})
    assert (response.status_code, response.json()["reason"]) == (410, "Expired")


async def test_injected_errors_strike_http_calls_too(http: httpx2.AsyncClient, server: MemoryServer) -> None:
    server.fail_next(Unavailable("down", status=503, reason="ServiceUnavailable"), verb="list")
    assert (await http.get(_MAPS)).status_code == 503
    assert (await http.get(_MAPS)).status_code == 200


def _field(number: int, value: bytes | str | int) -> bytes:
    """One protobuf field; lengths and numbers stay below 128 here."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    raw = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(raw)]) + raw


def _protobuf(api_version: str, kind: str, message: bytes) -> bytes:
    return b"k8s\x00" + _field(1, _field(1, api_version) + _field(2, kind)) + _field(2, message)


async def _post_protobuf(http: httpx2.AsyncClient, path: str, body: bytes) -> httpx2.Response:
    return await http.post(path, content=body, headers={"Content-Type": "application/vnd.kubernetes.protobuf"})


async def test_a_protobuf_body_is_read(http: httpx2.AsyncClient) -> None:
    meta = _field(1, "a") + _field(3, "") + _field(8, b"") + _field(11, _field(1, "app") + _field(2, "web"))
    data = _field(1, "key") + _field(2, "value")
    body = _protobuf("v1", "ConfigMap", _field(1, meta) + _field(2, data) + _field(4, 1))
    response = await _post_protobuf(http, _MAPS, body)
    made = response.json()
    assert response.status_code == 201
    assert (made["metadata"]["labels"], made["data"], made["immutable"]) == ({"app": "web"}, {"key": "value"}, True)


async def test_a_protobuf_deployment_keeps_its_numbers_and_quantities(http: httpx2.AsyncClient) -> None:
    requests = _field(2, _field(1, "cpu") + _field(2, _field(1, "100m")))
    container = _field(1, "c") + _field(2, "nginx") + _field(8, requests)
    template = _field(1, b"") + _field(2, _field(2, container))
    spec = _field(1, 3) + _field(3, template) + _field(4, _field(2, _field(1, _field(1, 1) + _field(3, "25%"))))
    body = _protobuf("apps/v1", "Deployment", _field(1, _field(1, "web")) + _field(2, spec))
    made = (await _post_protobuf(http, _DEPLOYMENTS, body)).json()["spec"]
    assert made["replicas"] == 3
    assert made["template"]["spec"]["containers"] == [
        {"name": "c", "image": "nginx", "resources": {"requests": {"cpu": "100m"}}}
    ]
    assert made["strategy"] == {"rollingUpdate": {"maxUnavailable": "25%"}}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(_protobuf("v1", "ConfigMap", _field(1, _field(1, "a")) + _field(3, b"")), id="unknown field"),
        pytest.param(_protobuf("v1", "Secret", b""), id="unknown kind"),
        pytest.param(_protobuf("v1", "ConfigMap", b"\x0a\x7f"), id="cut off"),
        pytest.param(b"{}", id="no protobuf"),
    ],
)
async def test_a_protobuf_body_that_cannot_be_read_whole_is_refused(http: httpx2.AsyncClient, body: bytes) -> None:
    response = await _post_protobuf(http, _MAPS, body)
    assert response.status_code == 415
    assert "send application/json" in response.json()["message"]


@pytest.mark.parametrize(
    ("passed", "shown"),
    [
        (timedelta(seconds=-5), "0s"),
        (timedelta(seconds=119), "119s"),
        (timedelta(minutes=5, seconds=30), "5m30s"),
        (timedelta(minutes=5), "5m"),
        (timedelta(minutes=150), "150m"),
        (timedelta(hours=5, minutes=3), "5h3m"),
        (timedelta(hours=47, minutes=59), "47h"),
        (timedelta(days=3, hours=4), "3d4h"),
        (timedelta(days=500), "500d"),
        (timedelta(days=365 * 2 + 30), "2y30d"),
        (timedelta(days=365 * 9 + 30), "9y"),
    ],
)
def test_ages_are_short(passed: timedelta, shown: str) -> None:
    assert age((_NOW - passed).strftime("%Y-%m-%dT%H:%M:%SZ"), _NOW) == shown


def test_an_object_without_a_time_has_no_known_age() -> None:
    assert age(None, _NOW) == "<unknown>"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (r".metadata.labels.node\.kubernetes\.io/instance-type", "m5.large"),
        ('.status.conditions[?(@.type=="Ready")].status', "True"),
        ('.status.conditions[?(@.type=="Other")].status', None),
        (".spec.none.deeper", None),
    ],
)
def test_printer_paths_find_their_values(path: str, value: object) -> None:
    body = {
        "metadata": {"labels": {"node.kubernetes.io/instance-type": "m5.large"}},
        "status": {"conditions": [{"type": "Launched", "status": "False"}, {"type": "Ready", "status": "True"}]},
    }
    assert at(body, path) == value


def test_the_kubeconfig_names_the_server() -> None:
    assert "server: http://127.0.0.1:1234" in kubeconfig("http://127.0.0.1:1234")
