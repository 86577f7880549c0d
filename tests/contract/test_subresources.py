"""Binding, eviction and scale over HTTP: the shape of calls and answers."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane import binaries
from karpenter.api.kinds import CONFIG_MAP, DEPLOYMENT, NODE, NODE_CLAIM, NODE_POOL, POD, POD_DISRUPTION_BUDGET
from support.contract_builders import MERGE, Web

_CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
_TOPOLOGY = {"topology.kubernetes.io/zone": "z-1", "topology.kubernetes.io/region": "r-1"}


async def _pod(web: Web, namespace: str, name: str = "one", **spec: Any) -> Any:
    container = {"name": "main", "image": "none"}
    body = {
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"schedulerName": "nobody", "containers": [container], **spec},
    }
    return await web.made(POD, body, namespace)


def _binding(pod: str, **target: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}


# ---- binding ------------------------------------------------------------------------------------------------------------


async def test_a_binding_is_answered_with_success(web: Web, web_namespace: str) -> None:
    await _pod(web, web_namespace)
    path = POD.path(web_namespace, "one", "binding")
    answer = await web.ask("POST", path, _binding("one", kind="Node", name="node-1"))
    assert (answer.status, answer.body["kind"], answer.body["status"]) == (201, "Status", "Success")


async def test_a_bound_pod_gets_the_topology_labels_of_its_node(web: Web, web_namespace: str, unique: str) -> None:
    labels = {**_TOPOLOGY, "other": "x"}
    await web.made(NODE, {"metadata": {"name": unique, "labels": labels}})
    try:
        await _pod(web, web_namespace)
        await web.ask("POST", POD.path(web_namespace, "one", "binding"), _binding("one", kind="Node", name=unique))
        bound = (await web.ask("GET", POD.path(web_namespace, "one"))).body
        # Until 1.34 the server copied them only with an alpha gate.
        left_out = [{"app": "web"}] if binaries.minor_release() < 35 else []
        assert bound["metadata"]["labels"] in ({"app": "web", **_TOPOLOGY}, *left_out)
    finally:
        await web.ask("DELETE", NODE.path("", unique))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(_binding("other", kind="Node", name="node-1"), 400, id="another pod"),
        pytest.param({"target": {"kind": "Node", "name": "node-1"}}, 400, id="no pod"),
        pytest.param(_binding("one", kind="Node"), 500, id="no node"),
        pytest.param(_binding("one", kind="Pod", name="node-1"), 500, id="no node but a pod"),
    ],
)
async def test_an_invalid_binding_is_refused(web: Web, web_namespace: str, body: dict[str, Any], status: int) -> None:
    await _pod(web, web_namespace)
    assert (await web.ask("POST", POD.path(web_namespace, "one", "binding"), body)).status == status
    assert "nodeName" not in (await web.ask("GET", POD.path(web_namespace, "one"))).body["spec"]


async def test_a_terminating_pod_cannot_be_bound(web: Web, web_namespace: str) -> None:
    await _pod(web, web_namespace)
    await web.ask("PATCH", POD.path(web_namespace, "one"), {"metadata": {"finalizers": ["example.com/hold"]}}, MERGE)
    await web.ask("DELETE", POD.path(web_namespace, "one"))
    answer = await web.ask("POST", POD.path(web_namespace, "one", "binding"), _binding("one", kind="Node", name="n"))
    assert answer.refusal == (409, "Conflict")
    assert "is being deleted, cannot be assigned to a host" in answer.body["message"]
    await web.ask("PATCH", POD.path(web_namespace, "one"), {"metadata": {"finalizers": None}}, MERGE)


async def test_a_missing_pod_cannot_be_bound(web: Web, web_namespace: str) -> None:
    path = POD.path(web_namespace, "none", "binding")
    assert (await web.ask("POST", path, _binding("none", kind="Node", name="n"))).refusal == (404, "NotFound")


# ---- eviction -----------------------------------------------------------------------------------------------------------


def _eviction(name: str, **options: Any) -> dict[str, Any]:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options}


async def _run(web: Web, namespace: str, name: str = "one") -> str:
    """Create a running, ready pod; return the path of its evictions."""
    await _pod(web, namespace, name)
    path = POD.path(namespace, name)
    await web.ask("POST", f"{path}/binding", _binding(name, kind="Node", name="node-1"))
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await web.ask("PATCH", f"{path}/status", {"status": status}, MERGE)
    return f"{path}/eviction"


async def test_an_eviction_is_answered_with_success(web: Web, web_namespace: str) -> None:
    path = await _run(web, web_namespace)
    answer = await web.ask("POST", path, _eviction("one"))
    assert (answer.status, answer.body["kind"], answer.body["status"]) == (201, "Status", "Success")


async def test_an_eviction_can_shorten_the_grace_period(web: Web, web_namespace: str) -> None:
    path = await _run(web, web_namespace)
    await web.ask("POST", path, _eviction("one", gracePeriodSeconds=3))
    leaving = (await web.ask("GET", POD.path(web_namespace, "one"))).body["metadata"]
    assert leaving["deletionGracePeriodSeconds"] == 3


async def test_an_eviction_writes_a_condition_and_then_deletes(web: Web, web_namespace: str) -> None:
    path = await _run(web, web_namespace)
    version = (await web.ask("GET", POD.path(web_namespace))).body["metadata"]["resourceVersion"]
    await web.ask("POST", path, _eviction("one"))
    events = await web.events(POD.path(web_namespace), 2, resourceVersion=version)
    assert [event["type"] for event in events] == ["MODIFIED", "MODIFIED"]
    assert ["deletionTimestamp" in event["object"]["metadata"] for event in events] == [False, True]


@pytest.mark.parametrize("body", [_eviction("other"), {}], ids=["another pod", "no pod"])
async def test_an_eviction_of_another_pod_than_its_path_is_refused(
    web: Web, web_namespace: str, body: dict[str, Any]
) -> None:
    path = await _run(web, web_namespace)
    assert (await web.ask("POST", path, body)).refusal == (400, "BadRequest")


async def test_an_eviction_of_another_version_is_refused(web: Web, web_namespace: str) -> None:
    path = await _run(web, web_namespace)
    answer = await web.ask("POST", path, _eviction("one", preconditions={"resourceVersion": "1"}))
    assert answer.refusal == (409, "Conflict")
    assert "the ResourceVersion in the precondition (1) does not match" in answer.body["message"]


async def test_a_refused_eviction_suggests_a_time_only_while_the_budget_is_being_counted(
    web: Web, web_namespace: str
) -> None:
    """The status of a budget without pods of a known controller never changes, so there is no retry time."""
    path = await _run(web, web_namespace)
    budget = {
        "metadata": {"name": "budget"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}},
    }
    await web.made(POD_DISRUPTION_BUDGET, budget, web_namespace)
    answer = await web.ask("POST", path, _eviction("one"))
    while "still being processed" in answer.body["details"]["causes"][0]["message"]:
        assert answer.headers["Retry-After"] == str(answer.body["details"]["retryAfterSeconds"]) == "10"
        answer = await web.ask("POST", path, _eviction("one"))
    assert answer.refusal == (429, "TooManyRequests")
    assert "Retry-After" not in answer.headers
    assert "retryAfterSeconds" not in answer.body["details"]


# ---- deletion -----------------------------------------------------------------------------------------------------------


async def test_a_deleted_object_is_answered_with_its_identity(web: Web, web_namespace: str) -> None:
    made = await web.made(CONFIG_MAP, {"metadata": {"name": "one"}}, web_namespace)
    answer = await web.ask("DELETE", CONFIG_MAP.path(web_namespace, "one"))
    assert (answer.status, answer.body["status"]) == (200, "Success")
    assert answer.body["details"] == {"name": "one", "kind": "configmaps", "uid": made["metadata"]["uid"]}


async def test_a_deleted_pod_is_answered_with_its_last_state(web: Web, web_namespace: str) -> None:
    await _pod(web, web_namespace)
    answer = await web.ask("DELETE", POD.path(web_namespace, "one"))
    assert (answer.body["kind"], answer.body["metadata"]["deletionGracePeriodSeconds"]) == ("Pod", 0)


async def test_a_negative_grace_period_is_one_second(web: Web, web_namespace: str) -> None:
    await _run(web, web_namespace)
    answer = await web.ask("DELETE", POD.path(web_namespace, "one"), {"gracePeriodSeconds": -3})
    assert answer.body["metadata"]["deletionGracePeriodSeconds"] == 1


async def test_a_grace_period_can_be_a_query_parameter(web: Web, web_namespace: str) -> None:
    await _run(web, web_namespace)
    answer = await web.ask("DELETE", POD.path(web_namespace, "one"), gracePeriodSeconds=7)
    assert answer.body["metadata"]["deletionGracePeriodSeconds"] == 7


async def test_a_grace_period_has_no_effect_on_other_objects_than_pods(web: Web, web_namespace: str) -> None:
    await web.made(CONFIG_MAP, {"metadata": {"name": "one"}}, web_namespace)
    await web.ask("DELETE", CONFIG_MAP.path(web_namespace, "one"), {"gracePeriodSeconds": 30})
    assert (await web.ask("GET", CONFIG_MAP.path(web_namespace, "one"))).status == 404


async def test_a_deletion_of_another_version_is_refused(web: Web, web_namespace: str) -> None:
    made = await web.made(CONFIG_MAP, {"metadata": {"name": "one"}}, web_namespace)
    path = CONFIG_MAP.path(web_namespace, "one")
    answer = await web.ask("DELETE", path, {"preconditions": {"resourceVersion": "1"}})
    assert answer.refusal == (409, "Conflict")
    now = {"resourceVersion": made["metadata"]["resourceVersion"], "uid": made["metadata"]["uid"]}
    assert (await web.ask("DELETE", path, {"preconditions": now})).status == 200


async def test_a_finished_pod_is_deleted_at_once(web: Web, web_namespace: str) -> None:
    await _run(web, web_namespace)
    path = POD.path(web_namespace, "one")
    await web.ask("PATCH", f"{path}/status", {"status": {"phase": "Succeeded"}}, MERGE)
    await web.ask("DELETE", path)
    assert (await web.ask("GET", path)).status == 404


async def test_a_pod_waits_for_its_finalizer_and_for_its_kubelet(web: Web, web_namespace: str) -> None:
    await _run(web, web_namespace)
    path = POD.path(web_namespace, "one")
    await web.ask("PATCH", path, {"metadata": {"finalizers": ["example.com/hold"]}}, MERGE)
    await web.ask("DELETE", path, {"gracePeriodSeconds": 20})
    await web.ask("PATCH", path, {"metadata": {"finalizers": None}}, MERGE)
    assert (await web.ask("GET", path)).body["metadata"]["deletionGracePeriodSeconds"] == 20
    await web.ask("DELETE", path, {"gracePeriodSeconds": 0})
    assert (await web.ask("GET", path)).status == 404


async def test_a_collection_can_be_deleted_by_its_labels(web: Web, web_namespace: str) -> None:
    for name in ("a", "b"):
        await web.made(CONFIG_MAP, {"metadata": {"name": name, "labels": {"name": name}}}, web_namespace)
    await web.ask("DELETE", CONFIG_MAP.path(web_namespace), labelSelector="name=a")
    assert (await web.ask("GET", CONFIG_MAP.path(web_namespace), labelSelector="name")).names == ["b"]


# ---- scale --------------------------------------------------------------------------------------------------------------


async def _pool(web: Web, name: str, **spec: Any) -> None:
    template = {"spec": {"nodeClassRef": _CLASS, "requirements": []}}
    await web.made(NODE_POOL, {"metadata": {"name": name}, "spec": {"template": template, **spec}})


async def test_a_static_node_pool_can_be_scaled(web: Web, unique: str) -> None:
    await _pool(web, unique, replicas=2)
    path = NODE_POOL.path("", unique, "scale")
    scale = (await web.ask("GET", path)).body
    assert (scale["apiVersion"], scale["kind"]) == ("autoscaling/v1", "Scale")
    assert (scale["metadata"]["name"], scale["spec"], scale["status"]) == (unique, {"replicas": 2}, {"replicas": 0})
    patched = await web.ask("PATCH", path, {"spec": {"replicas": 3}}, MERGE)
    assert patched.body["spec"] == {"replicas": 3}
    assert (await web.ask("PUT", path, scale)).refusal == (409, "Conflict")
    await web.ask("PATCH", NODE_POOL.path("", unique, "status"), {"status": {"nodes": 4}}, MERGE)
    assert (await web.ask("GET", path)).body["status"] == {"replicas": 4}
    pool = (await web.ask("GET", NODE_POOL.path("", unique))).body
    assert (pool["spec"]["replicas"], pool["metadata"]["generation"]) == (3, 2)


async def test_scaling_to_the_same_size_is_no_change(web: Web, unique: str) -> None:
    await _pool(web, unique, replicas=2)
    answer = await web.ask("PATCH", NODE_POOL.path("", unique, "scale"), {"spec": {"replicas": 2}}, MERGE)
    assert (answer.status, answer.body["spec"]) == (200, {"replicas": 2})
    assert (await web.ask("GET", NODE_POOL.path("", unique))).body["metadata"]["generation"] == 1


async def test_zero_replicas_are_left_out(web: Web, unique: str) -> None:
    await _pool(web, unique, replicas=1)
    path = NODE_POOL.path("", unique, "scale")
    assert (await web.ask("PATCH", path, {"spec": {"replicas": 0}}, MERGE)).body["spec"] == {}
    assert (await web.ask("GET", NODE_POOL.path("", unique))).body["spec"]["replicas"] == 0


async def test_negative_replicas_are_refused(web: Web, unique: str) -> None:
    await _pool(web, unique, replicas=1)
    answer = await web.ask("PATCH", NODE_POOL.path("", unique, "scale"), {"spec": {"replicas": -1}}, MERGE)
    assert answer.refusal == (422, "Invalid")
    assert (await web.ask("GET", NODE_POOL.path("", unique))).body["spec"]["replicas"] == 1


async def test_a_node_pool_without_replicas_has_no_scale(web: Web, unique: str) -> None:
    await _pool(web, unique)
    path = NODE_POOL.path("", unique, "scale")
    answer = await web.ask("GET", path)
    assert answer.refusal == (500, "InternalError")
    assert 'the spec replicas field ".spec.replicas" does not exist' in answer.body["message"]
    assert (await web.ask("PATCH", path, {"spec": {"replicas": 3}}, MERGE)).status == 422
    assert "replicas" not in (await web.ask("GET", NODE_POOL.path("", unique))).body["spec"]


async def test_a_deployment_can_be_scaled_and_its_scale_has_the_selector(web: Web, web_namespace: str) -> None:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    await web.made(DEPLOYMENT, {"metadata": {"name": "web"}, "spec": spec}, web_namespace)
    path = DEPLOYMENT.path(web_namespace, "web", "scale")
    scale = (await web.ask("GET", path)).body
    assert (scale["spec"], scale["status"]["selector"]) == ({}, "app=web")
    assert (await web.ask("PATCH", path, {"spec": {"replicas": 0}}, MERGE)).status == 200
    stale = {"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 1}}
    assert (await web.ask("PATCH", path, stale, MERGE)).refusal == (409, "Conflict")
    assert (await web.ask("PATCH", path, {"spec": {"replicas": -1}}, MERGE)).refusal == (422, "Invalid")


@pytest.mark.parametrize("kind", [NODE_CLAIM, NODE_POOL], ids=lambda kind: kind.plural)
async def test_a_missing_object_has_no_scale(web: Web, unique: str, kind: Any) -> None:
    assert (await web.ask("GET", kind.path("", unique, "scale"))).refusal == (404, "NotFound")
