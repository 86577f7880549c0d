"""The console of the controller on a real control plane: the API server authenticates users and says what they may see and do."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
import pytest
import yaml

from controlplane import deployed
from controlplane.audit import Call
from controlplane.deployed import DEPLOY, Account
from controlplane.harness import ControlPlane, Json
from controlplane.objects import simulated_class, simulated_pool
from controlplane.ports import free_port
from controlplane.process import controller
from karpenter.api import kinds
from karpenter.webconsole.console_app import ACTION_HEADER
from support.installed_program import KARPENTER

pytestmark = pytest.mark.cluster
_DEADLINE_SECONDS = 90.0
_RBAC = "rbac.authorization.k8s.io"
_NAMESPACES = ("shop", "vault")
#: Namespaces without pods whose names come first: a viewer's own is not lost among them.
_OTHER_NAMESPACES = tuple(f"a-{number}" for number in range(120))
_USERS = ("nobody", "shopkeeper", "operator", "admin", "reader")
#: Everything that answers a GET, and what an admin gets.
_PATHS = {
    "/api/session": 200,
    "/api/view": 200,
    "/api/explanation?subject=node/hidden-node": 200,
    "/api/explanation?subject=pod/vault/waits-in-vault": 200,
    "/api/history": 200,
    "/api/decision?id=x": 404,
    "/api/ledger": 200,
    "/api/budgets": 200,
    "/api/what-if?drain=hidden-node": 200,
    "/api/what-if?pods=1&cpu=1&memory=1Gi": 200,
}
_STREAM = "/api/stream"
_ACTIONS = ("freeze", "thaw", "wake", "keep-node", "release-node", "drain-node")
_NODE: Json = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "hidden-node"}}
_NODE_CLASS = simulated_class()
_POOL = simulated_pool("hidden-pool")


_LIST_NODES: Json = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
_FOLLOW_NODES_AND_PODS: Json = {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list", "watch"]}


def _binding(kind: str, name: str, role: str, role_kind: str, **metadata: str) -> Json:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "roleRef": {"apiGroup": _RBAC, "kind": role_kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "shop"}],
    }


def _pod(namespace: str) -> Json:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "9000"}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"waits-in-{namespace}", "namespace": namespace},
        "spec": {"containers": [container]},
    }


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> Iterator[Account]:
    role: Json = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": {"name": "shopkeeper", "namespace": "shop"},
        "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}],
    }
    plane.apply(
        *(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            for name in (*_OTHER_NAMESPACES, *_NAMESPACES)
        ),
        *(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "shop"}}
            for name in _USERS
        ),
        role,
        {**role, "kind": "ClusterRole", "metadata": {"name": "operator"}, "rules": [_LIST_NODES]},
        {**role, "kind": "ClusterRole", "metadata": {"name": "reader"}, "rules": [_FOLLOW_NODES_AND_PODS]},
        _binding("ClusterRoleBinding", "reader", "reader", "ClusterRole"),
        _binding("RoleBinding", "shopkeeper", "shopkeeper", "Role", namespace="shop"),
        _binding("ClusterRoleBinding", "operator", "operator", "ClusterRole"),
        _binding("ClusterRoleBinding", "admin", "cluster-admin", "ClusterRole"),
        *yaml.safe_load_all((DEPLOY / "console" / "console.yaml").read_text()),
        _NODE_CLASS,
        _POOL,
        _NODE,
        *map(_pod, _NAMESPACES),
    )
    with deployed.installed(plane) as ready:
        yield ready


def _token(plane: ControlPlane, user: str) -> str:
    """What `kubectl create token` prints."""
    path = f"/api/v1/namespaces/shop/serviceaccounts/{user}/token"
    request: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return str(plane.request("POST", path, request)["status"]["token"])


class Browser:
    """Requests to the console with a token."""

    def __init__(self, port: int, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers)

    async def close(self) -> None:
        await self._client.aclose()

    async def status(self, path: str) -> int:
        return (await self._client.get(path)).status_code

    async def text(self, path: str) -> str:
        return (await self._client.get(path)).text

    async def streams(self) -> bool:
        """Whether the stream begins with a document."""
        async with asyncio.timeout(_DEADLINE_SECONDS), self._client.stream("GET", _STREAM) as answer:
            return (await anext(answer.aiter_lines())).startswith("data: {")

    async def view(self) -> dict[str, Any]:
        """The first whole document."""
        async with asyncio.timeout(_DEADLINE_SECONDS):
            while (answer := await self._client.get("/api/view")).status_code == 503:
                await asyncio.sleep(0.2)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def act(self, **action: object) -> httpx2.Response:
        body = {**action, "confirmed": True}
        return await self._client.post("/api/actions", json=body, headers={ACTION_HEADER: "1"})


@pytest.fixture(scope="module")
def leader_port(account: Account) -> Iterator[int]:
    """Where the console of a controller answers that leads and keeps a history while the tests run."""
    port = free_port()
    with TemporaryDirectory() as folder:
        flags = ("--console=true", f"--console-port={port}", f"--history-file={folder}/history.db")
        with controller(account.kubeconfig, *flags) as running:
            running.await_leading(120)
            running.until(running.is_ready, "ready")
            yield port


async def test_a_replica_that_does_not_lead_shows_the_same_cluster(
    plane: ControlPlane, account: Account, leader_port: int
) -> None:
    """Behind a Service either replica answers; only the one that leads has the history, and the other says so."""
    ports = leader_port, free_port()
    with TemporaryDirectory() as folder:
        flags = (f"--console-port={ports[1]}", "--console=true", f"--history-file={folder}/history.db")
        with controller(account.kubeconfig, *flags) as standby:
            standby.await_line("new leader elected")
            standby.until(standby.is_ready, "be ready to follow")
            browsers = [Browser(port, _token(plane, "admin")) for port in ports]
            first, second = [await browser.view() for browser in browsers]
            assert not standby.leads
            assert (
                [row["name"] for row in second["pools"]] == [row["name"] for row in first["pools"]] == ["hidden-pool"]
            )
            assert {row["pod"] for row in second["pending"]} == {row["pod"] for row in first["pending"]}
            assert second["title"].endswith("does not lead")
            assert [await browser.status("/api/history") for browser in browsers] == [200, 503]
            assert not (Path(folder) / "history.db").exists()
            for browser in browsers:
                await browser.close()


async def test_users_see_and_do_what_kubectl_would_let_them(plane: ControlPlane, leader_port: int) -> None:
    """Anonymous, without rights, one namespace, nodes only, everything; at each path that answers."""
    anonymous, stranger = Browser(leader_port, ""), Browser(leader_port, "nonsense")
    nobody, shopkeeper, operator, admin = (Browser(leader_port, _token(plane, user)) for user in _USERS[:4])
    for path in (*_PATHS, _STREAM):
        statuses = [await browser.status(path) for browser in (anonymous, stranger, nobody)]
        assert statuses == [401, 401, 403], path
        assert "hidden" not in await nobody.text(path)
    for action in _ACTIONS:
        refusals = [await browser.act(action=action, target="hidden-pool") for browser in (anonymous, stranger, nobody)]
        assert [refusal.status_code for refusal in refusals] == [401, 401, 403], action

    whole = await admin.view()
    assert [row["name"] for row in whole["pools"]] == ["hidden-pool"]
    assert {"shop/waits-in-shop", "vault/waits-in-vault"} <= {row["pod"] for row in whole["pending"]}
    part = await shopkeeper.view()
    assert [row["pod"] for row in part["pending"]] == ["shop/waits-in-shop"]
    assert (part["pools"], part["nodes"], part["pods"]["total"]) == ([], [], 1)
    assert "hidden" not in str(part)
    assert "vault" not in str(part)
    assert [row["name"] for row in whole["nodes"]] == ["hidden-node"]
    assert {path: await admin.status(path) for path in _PATHS} == _PATHS
    assert await admin.streams()
    assert await shopkeeper.streams()
    seen = await operator.view()
    assert [row["name"] for row in seen["nodes"]] == ["hidden-node"]
    assert (seen["pools"], seen["pending"]) == ([], [])
    for path in _PATHS:
        told = await shopkeeper.text(path)
        for said in ("node hidden-node is gone", "there is no node hidden-node", "pod vault/waits-in-vault is gone"):
            told = told.replace(said, "")  # what was asked about is named, and said not to be there
        assert "hidden-" not in told, path
        assert "vault" not in told, path
    for browser in (shopkeeper, operator):
        assert [await browser.status(path) for path in ("/api/history", "/api/decision?id=x", "/api/ledger")] == [
            403
        ] * 3

    refused = await shopkeeper.act(action="freeze", target="hidden-pool")
    assert refused.status_code == 403
    assert "system:serviceaccount:shop:shopkeeper" in refused.text
    assert (await admin.act(action="freeze", target="hidden-pool", reason="the sale")).json()["done"] is True
    stored = plane.request("GET", kinds.NODE_POOL.path(name="hidden-pool"))
    assert stored["metadata"]["annotations"]["karpenter.sh/freeze"] == "the sale"
    for browser in (anonymous, stranger, nobody, shopkeeper, operator, admin):
        await browser.close()


# -- with a kubeconfig --------------------------------------------------------------------------------------------------------


def _kubeconfig(plane: ControlPlane, user: str) -> str:
    return plane.kubeconfig_with(user, {"token": _token(plane, user)})


def _calls(plane: ControlPlane, user: str) -> list[Call]:
    """What this user did since the control plane started."""
    return plane.calls(f"system:serviceaccount:shop:{user}")


@pytest.mark.parametrize(("user", "sees_all"), [("admin", True), ("reader", False)])
def test_top_shows_a_cluster_of_any_kubeconfig_and_only_reads(
    plane: ControlPlane, account: Account, tmp_path: Path, user: str, sees_all: bool
) -> None:
    """OPS-803: Nodes and Pods are enough; what else may not be read is named. The audit log knows no other verbs."""
    earlier = len(_calls(plane, user))
    picture = tmp_path / "top.svg"
    command = [KARPENTER, "top", "--kubeconfig", _kubeconfig(plane, user), "--svg", str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    shown = picture.read_text()
    assert "hidden-node" in shown
    assert ("no&#160;right&#160;to&#160;list&#160;and&#160;watch&#160;nodeclaims,&#160;" in shown) is not sees_all
    assert {call.verb for call in _calls(plane, user)[earlier:]} == {"list", "watch"}


async def test_the_console_of_a_kubeconfig_sees_and_does_what_its_user_may(
    plane: ControlPlane, account: Account
) -> None:
    for user, status in (("reader", 403), ("admin", 200)):
        command = [KARPENTER, "console", "--kubeconfig", _kubeconfig(plane, user)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as console, ExitStack() as ended:
            assert console.stdout is not None
            ended.callback(console.terminate)
            url, _, secret = console.stdout.readline().strip().partition("/?token=")
            browser = Browser(int(url.rpartition(":")[2]), "")
            assert await browser.status(f"/?token={secret}") == 303
            view = await browser.view()
            assert [row["name"] for row in view["nodes"]] == ["hidden-node"]
            assert {"shop/waits-in-shop", "vault/waits-in-vault"} <= {row["pod"] for row in view["pending"]}
            answer = await browser.act(action="keep-node", target="hidden-node")
            assert answer.status_code == status, answer.text
            await browser.close()
    stored = plane.request("GET", kinds.NODE.path(name="hidden-node"))
    assert stored["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
