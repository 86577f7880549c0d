"""The in-memory server over HTTP: what ``kubectl`` relies on beyond what the product's own client does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from karpenter.kube.errors import ServerUnavailable, TooManyRequests
from karpenter.simulation.apiserver import MemoryServer
from karpenter.simulation.apiserver.http_front import asgi_app, kubeconfig_for
from karpenter.simulation.apiserver.table_output import format_age, value_at
from karpenter.simulation.virtual_time import LoopClock, run_virtual

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
    transport = httpx2.ASGITransport(app=asgi_app(server))
    async with httpx2.AsyncClient(transport=transport, base_url="http://memory") as client:
        yield client


async def _post(http: httpx2.AsyncClient, path: str, body: Any, status: int = 201) -> Any:
    response = await http.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


async def test_discovery_names_every_resource_and_its_subresources(http: httpx2.AsyncClient) -> None:
    groups = {group["name"] for group in (await http.get("/apis")).json()["groups"]}
    assert {"apps", "policy", "karpenter.sh", "karpenter.kwok.sh"} <= groups
    core = {line["name"]: line for line in (await http.get("/api/v1")).json()["resources"]}
    assert {"pods", "pods/status", "pods/binding", "pods/eviction", "nodes", "events"} <= core.keys()
    assert core["pods"]["shortNames"] == ["po"]
    pools = {line["name"]: line for line in (await http.get("/apis/karpenter.sh/v1")).json()["resources"]}
    assert pools["nodepools/scale"]["kind"] == "Scale"
    assert pools["nodepools"]["categories"] == ["karpenter"]


async def test_openapi_announces_field_validation_and_describes_our_kinds(http: httpx2.AsyncClient) -> None:
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


@pytest.mark.parametrize(("method", "call"), [("GET", "log"), ("POST", "exec?command=ls"), ("POST", "portforward")])
async def test_subresources_of_a_kubelet_are_reported_as_missing(
    http: httpx2.AsyncClient, method: str, call: str
) -> None:
    spec = {"containers": [{"name": "c"}]}
    await _post(http, "/api/v1/namespaces/default/pods", {"metadata": {"name": "web"}, "spec": spec})
    answer = await http.request(method, f"/api/v1/namespaces/default/pods/web/{call}")
    subresource = call.partition("?")[0]
    assert (answer.status_code, answer.json()["reason"]) == (501, "NotImplemented")
    assert answer.json()["message"].startswith(f"pods/{subresource} is not served: nodes are simulated")
    missing = await http.request(method, f"/api/v1/namespaces/default/pods/nobody/{call}")
    assert missing.status_code == 404


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
    assert status["message"] == (
        'NodePool.karpenter.sh "general" is invalid: spec.weight: 0 is too small, the least is 1'
    )


async def test_a_collection_can_be_deleted_by_selector(http: httpx2.AsyncClient) -> None:
    for name in ("a", "b"):
        await _post(http, _MAPS, {"metadata": {"name": name, "labels": {"name": name}}})
    await http.delete(_MAPS, params={"labelSelector": "name=a"})
    assert [obj["metadata"]["name"] for obj in (await http.get(_MAPS)).json()["items"]] == ["b"]


async def test_a_watch_can_come_as_tables(http: httpx2.AsyncClient, server: MemoryServer) -> None:
    params = {"watch": "true", "resourceVersion": str(server.revision)}
    watch = asyncio.create_task(http.get(_MAPS, params=params, headers=_TABLE))
    for _ in range(10):  # turns enough for the watch to open
        await asyncio.sleep(0)
    await _post(http, _MAPS, {"metadata": {"name": "late"}})
    for _ in range(10):
        await asyncio.sleep(0)
    server.close_watches()
    [line] = [json.loads(line) for line in (await watch).text.splitlines()]
    assert line["object"]["kind"] == "Table"
    assert line["object"]["rows"][0]["cells"][0] == "late"


def test_a_quiet_watch_gets_a_bookmark_every_minute() -> None:
    async def story(clock: LoopClock) -> list[Any]:
        server = MemoryServer(clock)
        transport = httpx2.ASGITransport(app=asgi_app(server))
        params = {"watch": "true", "resourceVersion": str(server.revision), "allowWatchBookmarks": "true"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://memory") as http:
            watch = asyncio.create_task(http.get(_MAPS, params={**params, "timeoutSeconds": "200"}))
            for seconds, name in ((70, "one"), (60, "two")):
                server.create(server.resource("", "v1", "nodes"), "", {"metadata": {"name": name}})
                await asyncio.sleep(seconds)
            lines = (await watch).text.splitlines()
        return [int(json.loads(line)["object"]["metadata"]["resourceVersion"]) - server.revision for line in lines]

    # After the second minute the second node, and after the third nothing, because nothing had moved.
    assert run_virtual(story, _NOW) == [-1, 0]


async def test_a_watch_from_a_version_too_old_is_gone(http: httpx2.AsyncClient, server: MemoryServer) -> None:
    server.compact()
    response = await http.get(_MAPS, params={"watch": "true", "resourceVersion": "1"})
    assert (response.status_code, response.json()["reason"]) == (410, "Expired")


async def test_a_client_that_disconnects_in_the_middle_of_a_body_changes_nothing(server: MemoryServer) -> None:
    """A killed process; that needs no log line."""
    parts = [{"type": "http.request", "body": b'{"metadata": {"name"', "more_body": True}, {"type": "http.disconnect"}]
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": _MAPS, "query_string": b"", "headers": headers}

    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        del message

    before = server.revision
    await asgi_app(server)(scope, receive, send)
    assert (parts, server.revision) == ([], before)


async def test_an_injected_throttle_says_when_to_come_back(http: httpx2.AsyncClient, server: MemoryServer) -> None:
    server.inject_fault(TooManyRequests("later", retry_after_seconds=2.5), verb="list")
    response = await http.get(_MAPS)
    assert (response.status_code, response.headers["Retry-After"]) == (429, "3")
    assert response.json()["details"] == {"retryAfterSeconds": 3}


async def test_injected_errors_strike_http_calls_too(http: httpx2.AsyncClient, server: MemoryServer) -> None:
    server.inject_fault(ServerUnavailable("down", status=503, reason="ServiceUnavailable"), verb="list")
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
    assert format_age((_NOW - passed).strftime("%Y-%m-%dT%H:%M:%SZ"), _NOW) == shown


def test_an_object_without_a_time_has_no_known_age() -> None:
    assert format_age(None, _NOW) == "<unknown>"


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
    assert value_at(body, path) == value


def test_the_kubeconfig_names_the_server() -> None:
    assert "server: http://127.0.0.1:1234" in kubeconfig_for("http://127.0.0.1:1234")
