"""Writes with ``dryRun=All``: the answer is that of the write, and nothing is stored."""

from __future__ import annotations

import pytest

from karpenter.api.kinds import CONFIG_MAP, NODE_POOL
from support.contract_builders import Web


def _config_map(name: str, **metadata: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": {"a": "1"}}


async def test_a_dry_run_creates_nothing(web: Web, web_namespace: str) -> None:
    path = CONFIG_MAP.path(web_namespace)
    answer = await web.ask("POST", path, _config_map("one"), dryRun="All")
    assert (answer.status, answer.body["metadata"]["name"]) == (201, "one")
    assert answer.body["metadata"]["uid"]
    assert (await web.ask("GET", f"{path}/one")).status == 404


async def test_a_dry_run_changes_and_deletes_nothing(web: Web, web_namespace: str) -> None:
    path = CONFIG_MAP.path(web_namespace)
    before = (await web.ask("POST", path, _config_map("one"))).body
    patch = {"data": {"a": "2"}}
    patched = await web.ask("PATCH", f"{path}/one", patch, "application/merge-patch+json", dryRun="All")
    assert (patched.status, patched.body["data"]) == (200, {"a": "2"})
    assert (await web.ask("DELETE", f"{path}/one", dryRun="All")).status == 200
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"]}
    assert (await web.ask("DELETE", f"{path}/one", options)).status == 200
    assert (await web.ask("GET", f"{path}/one")).body == before


async def test_a_dry_run_is_refused_as_the_write_would_be(web: Web, web_namespace: str, unique: str) -> None:
    path = CONFIG_MAP.path(web_namespace)
    await web.ask("POST", path, _config_map("one"))
    assert (await web.ask("POST", path, _config_map("one"), dryRun="All")).status == 409
    bad = {"apiVersion": NODE_POOL.api_version, "kind": "NodePool", "metadata": {"name": unique}, "spec": {"weight": 0}}
    assert (await web.ask("POST", NODE_POOL.path(""), bad, dryRun="All")).status == 422


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_only_all_is_a_dry_run(web: Web, web_namespace: str, method: str) -> None:
    path = CONFIG_MAP.path(web_namespace)
    await web.ask("POST", path, _config_map("one"))
    path, body = (path, _config_map("two")) if method == "POST" else (f"{path}/one", None)
    answer = await web.ask(method, path, body, dryRun="Some")
    assert answer.status == 422
    assert 'dryRun: Unsupported value: ["Some"]' in answer.body["message"]
