"""Patches and replacements over HTTP: the effect of each format, and errors of invalid ones.

The product sends merge patches only; command lines use the other formats.
"""

from __future__ import annotations

from typing import Any

import pytest

from karpenter.api.kinds import CONFIG_MAP, DEPLOYMENT, NODE_POOL
from support.contract_builders import APPLY, JSON_PATCH, MERGE, STRATEGIC, Answer, Web

_LINUX = {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}
_CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
_START = {"metadata": {"name": "one", "labels": {"keep": "1", "drop": "2"}}, "data": {"a": "1", "b": "2"}}


class _Map:
    """One ConfigMap, and calls to change it."""

    def __init__(self, web: Web, namespace: str) -> None:
        self._web = web
        self.path = CONFIG_MAP.path(namespace, "one")

    async def patch(self, body: Any, content: str = MERGE, **query: str) -> Answer:
        return await self._web.ask("PATCH", self.path, body, content, **query)

    async def patched(self, body: Any, content: str = MERGE) -> Any:
        answer = await self.patch(body, content)
        assert answer.status == 200, answer.body
        return answer.body

    async def now(self) -> Any:
        return (await self._web.ask("GET", self.path)).body


@pytest.fixture
def one(web: Web, web_namespace: str) -> _Map:
    return _Map(web, web_namespace)


async def _begin(web: Web, namespace: str) -> Any:
    return await web.made(CONFIG_MAP, _START, namespace)


def _pool(name: str, **spec: Any) -> dict[str, Any]:
    inner = {"nodeClassRef": _CLASS, "requirements": [_LINUX], "taints": [_taint("a"), _taint("b")]}
    return {"metadata": {"name": name}, "spec": {"template": {"spec": inner}, **spec}}


def _taint(key: str) -> dict[str, str]:
    return {"key": key, "effect": "NoSchedule"}


# ---- merge patches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patch", "data"),
    [
        pytest.param({"data": {"a": "9"}}, {"a": "9", "b": "2"}, id="a value replaces"),
        pytest.param({"data": {"a": None}}, {"b": "2"}, id="null removes"),
        pytest.param({"data": {"none": None}}, {"a": "1", "b": "2"}, id="null for what is not there does nothing"),
        pytest.param({"data": None}, None, id="null removes a whole map"),
        pytest.param({"data": {"a": None, "b": None}}, None, id="an emptied map is gone"),
        pytest.param({"data": {}}, {"a": "1", "b": "2"}, id="an empty map changes nothing"),
        pytest.param({}, {"a": "1", "b": "2"}, id="an empty patch changes nothing"),
    ],
)
async def test_a_merge_patch_of_a_map(
    web: Web, web_namespace: str, one: _Map, patch: dict[str, Any], data: dict[str, str] | None
) -> None:
    await _begin(web, web_namespace)
    assert (await one.patched(patch)).get("data") == data


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"labels": None}, id="removed"),
        pytest.param({"labels": {"keep": None, "drop": None}}, id="emptied"),
    ],
)
async def test_empty_metadata_is_left_out(web: Web, web_namespace: str, one: _Map, metadata: dict[str, Any]) -> None:
    await _begin(web, web_namespace)
    patched = await one.patched({"metadata": {**metadata, "annotations": {}, "finalizers": [], "ownerReferences": []}})
    assert not {"labels", "annotations", "finalizers", "ownerReferences"} & patched["metadata"].keys()


async def test_a_merge_patch_replaces_lists_as_a_whole(web: Web, unique: str) -> None:
    await web.made(NODE_POOL, _pool(unique))
    patch = {"spec": {"template": {"spec": {"taints": [_taint("c")]}}}}
    answer = await web.ask("PATCH", NODE_POOL.path("", unique), patch, MERGE)
    assert [taint["key"] for taint in answer.body["spec"]["template"]["spec"]["taints"]] == ["c"]
    patch = {"spec": {"template": {"spec": {"taints": None}}}}
    answer = await web.ask("PATCH", NODE_POOL.path("", unique), patch, MERGE)
    assert "taints" not in answer.body["spec"]["template"]["spec"]


async def test_a_patch_without_changes_creates_no_version_and_no_event(web: Web, web_namespace: str, one: _Map) -> None:
    made = await _begin(web, web_namespace)
    again = await one.patched({"metadata": {"labels": {"keep": "1"}}, "data": {"a": "1", "none": None}})
    assert again == made
    changed = await one.patched({"data": {"a": "2"}})
    version = made["metadata"]["resourceVersion"]
    [event] = await web.events(CONFIG_MAP.path(web_namespace), 1, resourceVersion=version)
    assert event["object"]["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]


async def test_a_patch_cannot_change_fields_that_the_server_sets(web: Web, web_namespace: str, one: _Map) -> None:
    made = await _begin(web, web_namespace)
    forged = {
        "creationTimestamp": None,
        "uid": None,
        "resourceVersion": None,
        "selfLink": "/here",
        "managedFields": None,
    }
    assert await one.patched({"metadata": forged}) == made


async def test_an_object_has_no_self_link(web: Web, web_namespace: str, one: _Map) -> None:
    made = await web.made(CONFIG_MAP, {"metadata": {"name": "one", "selfLink": "/here"}}, web_namespace)
    assert "selfLink" not in made["metadata"]
    assert "selfLink" not in (await one.now())["metadata"]


@pytest.mark.parametrize(
    ("patch", "status"),
    [
        pytest.param({"metadata": {"name": "other"}}, 400, id="another name"),
        pytest.param({"metadata": {"namespace": "other"}}, 400, id="another namespace"),
        pytest.param({"metadata": None}, 400, id="no metadata"),
        pytest.param({"metadata": {"uid": "another"}}, 422, id="another uid"),
        pytest.param({"metadata": {"deletionTimestamp": "2000-01-01T00:00:00Z"}}, 422, id="a deletion"),
        pytest.param({"kind": "Secret"}, 422, id="another kind"),
        pytest.param({"data": {"a": 5}}, 422, id="a number for a text"),
        pytest.param({"metadata": {"resourceVersion": "1"}}, 409, id="an old version"),
        pytest.param([1], 400, id="no object"),
        pytest.param(b"{", 400, id="no JSON"),
    ],
)
async def test_a_merge_patch_that_is_refused_changes_nothing(
    web: Web, web_namespace: str, one: _Map, patch: Any, status: int
) -> None:
    made = await _begin(web, web_namespace)
    body = {"data": {"a": "9"}, **patch} if isinstance(patch, dict) else patch
    answer = await one.patch(body)
    assert (answer.status, answer.body["kind"], answer.body["status"]) == (status, "Status", "Failure")
    assert await one.now() == made


@pytest.mark.parametrize(
    "patch",
    [{"apiVersion": "karpenter.sh/v9"}, {"kind": "NodeClaim"}, {"spec": None}, {"metadata": {"labels": {"a": 5}}}],
)
async def test_a_patch_that_violates_the_schema_of_a_custom_resource_is_refused(
    web: Web, unique: str, patch: dict[str, Any]
) -> None:
    made = await web.made(NODE_POOL, _pool(unique))
    answer = await web.ask("PATCH", NODE_POOL.path("", unique), patch, MERGE)
    assert answer.status in (400, 422)
    assert (await web.ask("GET", NODE_POOL.path("", unique))).body == made


# ---- JSON patches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operations", "data"),
    [
        pytest.param([{"op": "add", "path": "/data/c", "value": "3"}], {"a": "1", "b": "2", "c": "3"}, id="add"),
        pytest.param([{"op": "replace", "path": "/data/a", "value": "9"}], {"a": "9", "b": "2"}, id="replace"),
        pytest.param(
            [{"op": "replace", "path": "/data/c", "value": "3"}], {"a": "1", "b": "2", "c": "3"}, id="replace nothing"
        ),
        pytest.param([{"op": "remove", "path": "/data/a"}], {"b": "2"}, id="remove"),
        pytest.param([{"op": "move", "from": "/data/a", "path": "/data/c"}], {"b": "2", "c": "1"}, id="move"),
        pytest.param([{"op": "copy", "from": "/data/a", "path": "/data/c"}], {"a": "1", "b": "2", "c": "1"}, id="copy"),
        pytest.param(
            [{"op": "test", "path": "/data/a", "value": "1"}, {"op": "remove", "path": "/data/a"}],
            {"b": "2"},
            id="a test that holds",
        ),
        pytest.param([], {"a": "1", "b": "2"}, id="nothing"),
    ],
)
async def test_a_json_patch(
    web: Web, web_namespace: str, one: _Map, operations: list[Any], data: dict[str, str]
) -> None:
    await _begin(web, web_namespace)
    assert (await one.patched(operations, JSON_PATCH))["data"] == data


@pytest.mark.parametrize(
    ("operations", "status"),
    [
        pytest.param([{"op": "test", "path": "/data/a", "value": "2"}], 422, id="a test that fails"),
        pytest.param([{"op": "remove", "path": "/data/none"}], 422, id="nothing to remove"),
        pytest.param([{"op": "add", "path": "/none/deeper", "value": "1"}], 422, id="no parent"),
        pytest.param([{"op": "frob", "path": "/data/a"}], 422, id="an unknown operation"),
        pytest.param({"op": "remove", "path": "/data/a"}, 400, id="no list"),
    ],
)
async def test_a_json_patch_that_does_not_fit_is_refused(
    web: Web, web_namespace: str, one: _Map, operations: Any, status: int
) -> None:
    made = await _begin(web, web_namespace)
    assert (await one.patch(operations, JSON_PATCH)).status == status
    assert await one.now() == made


# ---- strategic merge, apply, unknown formats ----------------------------------------------------------------------------


async def test_a_strategic_merge_merges_containers_by_name(web: Web, web_namespace: str) -> None:
    labels = {"app": "web"}
    containers = [{"name": "main", "image": "one", "args": ["x"]}, {"name": "side", "image": "one"}]
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers, "schedulerName": "nobody"}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    await web.made(DEPLOYMENT, {"metadata": {"name": "web"}, "spec": spec}, web_namespace)
    change = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "two"}]}}}}
    answer = await web.ask("PATCH", DEPLOYMENT.path(web_namespace, "web"), change, STRATEGIC)
    actual = answer.body["spec"]["template"]["spec"]["containers"]
    images = {container["name"]: (container["image"], container.get("args")) for container in actual}
    assert images == {"main": ("two", ["x"]), "side": ("one", None)}


async def test_custom_resources_accept_no_strategic_merge(web: Web, unique: str) -> None:
    await web.made(NODE_POOL, _pool(unique))
    answer = await web.ask("PATCH", NODE_POOL.path("", unique), {"spec": {"weight": 5}}, STRATEGIC)
    assert answer.refusal == (415, "UnsupportedMediaType")


def _configuration(**data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": data}


async def test_an_applied_object_is_created_or_merged(one: _Map) -> None:
    first = await one.patch(_configuration(a="1"), APPLY, fieldManager="tests")
    assert (first.status, first.body["data"]) == (201, {"a": "1"})
    second = await one.patch(_configuration(a="1", b="2"), APPLY, fieldManager="tests")
    assert (second.status, second.body["data"]) == (200, {"a": "1", "b": "2"})
    third = await one.patch(_configuration(a="1", b="2"), APPLY, fieldManager="tests")
    assert third.body["metadata"]["resourceVersion"] == second.body["metadata"]["resourceVersion"]


async def test_apply_needs_a_field_manager_and_a_kind(one: _Map) -> None:
    nobody = await one.patch(_configuration(a="1"), APPLY)
    assert nobody.refusal == (422, "Invalid")
    assert [cause["field"] for cause in nobody.body["details"]["causes"]] == ["fieldManager"]
    shapeless = {"metadata": {"name": "one"}}
    assert (await one.patch(shapeless, APPLY, fieldManager="tests")).refusal == (400, "BadRequest")
    assert (await one.now())["reason"] == "NotFound"


@pytest.mark.parametrize("content", ["application/json", "application/xml"])
async def test_an_unknown_patch_format_is_refused(web: Web, web_namespace: str, one: _Map, content: str) -> None:
    await _begin(web, web_namespace)
    assert (await one.patch({"data": {"a": "2"}}, content)).refusal == (415, "UnsupportedMediaType")


# ---- replacements -------------------------------------------------------------------------------------------------------


async def test_a_replacement_removes_fields_that_it_does_not_have(web: Web, web_namespace: str, one: _Map) -> None:
    made = await _begin(web, web_namespace)
    answer = await web.ask("PUT", one.path, {"metadata": {"name": "one"}, "data": {"c": "3"}})
    assert answer.status == 200
    assert answer.body["data"] == {"c": "3"}
    assert "labels" not in answer.body["metadata"]
    for key in ("uid", "creationTimestamp"):
        assert answer.body["metadata"][key] == made["metadata"][key]


@pytest.mark.parametrize(
    ("metadata", "status"),
    [
        pytest.param({"name": "one", "resourceVersion": "1"}, 409, id="an old version"),
        pytest.param({"name": "one", "uid": "another"}, 409, id="another uid"),
        pytest.param({"name": "other"}, 400, id="another name"),
        pytest.param({}, 400, id="no name"),
    ],
)
async def test_a_replacement_of_another_object_is_refused(
    web: Web, web_namespace: str, one: _Map, metadata: dict[str, str], status: int
) -> None:
    made = await _begin(web, web_namespace)
    assert (await web.ask("PUT", one.path, {"metadata": metadata, "data": {}})).status == status
    assert await one.now() == made


async def test_custom_resources_are_replaced_with_a_version_only(web: Web, unique: str) -> None:
    made = await web.made(NODE_POOL, _pool(unique))
    path = NODE_POOL.path("", unique)
    whole = {"apiVersion": NODE_POOL.api_version, "kind": NODE_POOL.name, **_pool(unique, weight=5)}
    answer = await web.ask("PUT", path, whole)
    assert answer.refusal == (422, "Invalid")
    assert [cause["field"] for cause in answer.body["details"]["causes"]] == ["metadata.resourceVersion"]
    whole["metadata"]["resourceVersion"] = made["metadata"]["resourceVersion"]
    answer = await web.ask("PUT", path, whole)
    assert (answer.status, answer.body["metadata"]["generation"]) == (200, 2)
    assert (await web.ask("PUT", path, whole)).refusal == (409, "Conflict")


async def test_a_missing_object_cannot_be_replaced(web: Web, unique: str) -> None:
    body = {"apiVersion": NODE_POOL.api_version, "kind": NODE_POOL.name, **_pool(unique)}
    body["metadata"]["resourceVersion"] = "1"
    assert (await web.ask("PUT", NODE_POOL.path("", unique), body)).refusal == (404, "NotFound")
