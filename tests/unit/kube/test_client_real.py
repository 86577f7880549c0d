"""The client and the informer on a real API server, where the behaviour all backends share does not reach."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from controlplane.harness import ControlPlane
from karpenter.api.core import ConfigMap, Namespace
from karpenter.api.kinds import CONFIG_MAP, NAMESPACE, Kind
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.kube import config, errors
from karpenter.kube.client import KubeClient
from karpenter.kube.error_messages import explain_error
from karpenter.kube.informer import Informer, WatchScope
from karpenter.model.backoff import Backoff

_DEADLINE_SECONDS = 30.0
_UNKNOWN = Kind("tests.example", "v1", "nothings", "Nothing", True, ConfigMap)


def config_map(name: str, namespace: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace), data=data)


async def fresh_namespace(client: KubeClient, name: str) -> str:
    await client.create(NAMESPACE, Namespace(metadata=ObjectMeta(name=name)))
    return name


@asynccontextmanager
async def following(client: KubeClient, namespace: str) -> AsyncIterator[Informer[ConfigMap]]:
    informer = Informer(client, CONFIG_MAP, WatchScope(namespace))
    running = asyncio.create_task(informer.run())
    try:
        await asyncio.wait_for(informer.wait_synced(), _DEADLINE_SECONDS)
        yield informer
    finally:
        running.cancel()
        await asyncio.wait([running])


async def until(informer: Informer[ConfigMap], condition: Callable[[], bool]) -> None:
    """Wait for a condition on what the informer holds, looking at every difference it tells."""
    reached = asyncio.Event()

    def look(old: Wire | None, new: Wire | None) -> None:
        if condition():
            reached.set()

    informer.subscribe(look)
    await asyncio.wait_for(reached.wait(), _DEADLINE_SECONDS)


async def test_a_list_longer_than_a_page_is_complete(control_plane: ControlPlane) -> None:
    async with control_plane.client() as client:
        namespace = await fresh_namespace(client, "client-pages")
        names = [f"number-{number:04}" for number in range(1050)]
        await asyncio.gather(*(client.create(CONFIG_MAP, config_map(name, namespace)) for name in names))
        listing = await client.list(CONFIG_MAP, namespace)
        assert [listed_map.metadata.name for listed_map in listing.items] == names


async def test_an_informer_outlives_a_restart_of_the_server_and_delivers_missed_events(
    control_plane: ControlPlane,
) -> None:
    async with control_plane.client() as client:
        namespace = await fresh_namespace(client, "client-restart")
        for name in ("kept", "lost"):
            await client.create(CONFIG_MAP, config_map(name, namespace))
        changes: list[tuple[str | None, str | None]] = []
        async with following(client, namespace) as informer:
            informer.subscribe(lambda old, new: changes.append((old and old.metadata.name, new and new.metadata.name)))
            # The new server knows no version before its start, so continuing is refused and the gap has to be worked out.
            control_plane.restart_api_server()
            await client.delete(CONFIG_MAP, "lost", namespace)
            await client.create(CONFIG_MAP, config_map("fresh", namespace))
            await until(informer, lambda: {listed_map.metadata.name for listed_map in informer} == {"kept", "fresh"})
        assert sorted(changes, key=str) == [("lost", None), (None, "fresh"), (None, "kept"), (None, "lost")]


async def test_a_version_before_the_servers_start_is_gone(control_plane: ControlPlane) -> None:
    async with control_plane.client() as client:
        namespace = await fresh_namespace(client, "client-gone")
        version = (await client.list(CONFIG_MAP, namespace)).resource_version
        await client.create(CONFIG_MAP, config_map("later", namespace))
        control_plane.restart_api_server()
        events = client.watch(CONFIG_MAP, version, namespace)
        # The server accepts the watch before it looks at the version.
        assert (await anext(events)).object is None
        with pytest.raises(errors.Gone):
            await anext(events)


async def test_errors_for_users(control_plane: ControlPlane) -> None:
    async with control_plane.client("nobody") as client:
        line = await failure(client, CONFIG_MAP)
        assert line.startswith(f"nobody may not list configmaps at {control_plane.server}")
    async with control_plane.client() as client:
        assert "does not serve nothings" in await failure(client, _UNKNOWN)
    expired = control_plane.kubeconfig_with("expired", {"token": "expired"})
    async with config.connect(config.load(expired)) as client:
        assert "does not accept the credentials" in await failure(client, CONFIG_MAP)


async def test_an_exec_plugin_runs_again_after_its_token_was_refused(
    control_plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("karpenter.kube.exec_credentials._MIN_RUN_INTERVAL", timedelta())
    answer = {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": {"token": "%s"}}
    runs = tmp_path / "runs"
    script = 'echo run >> "$0"; [ $(wc -l < "$0") = 1 ] && token=expired || token="$1"; printf "$2" "$token"'
    arguments = ["-c", script, str(runs), control_plane.tokens["admin"], json.dumps(answer)]
    program = {"apiVersion": answer["apiVersion"], "command": "sh", "args": arguments}
    connection = config.load(control_plane.kubeconfig_with("program", {"exec": program}))
    async with config.connect(connection) as one, config.connect(connection) as other:
        for client in (one, other):
            assert (await client.get(NAMESPACE, "default")).metadata.name == "default"
    assert runs.read_text() == "run\nrun\n"


async def test_an_unreachable_server_is_reported(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = config.load(control_plane.kubeconfig)
    async with config.connect(connection) as client:
        client._transport._pool.transport._base = "https://127.0.0.1:1"  # type: ignore[attr-defined]
        monkeypatch.setattr("karpenter.kube.request_retries._BACKOFF", Backoff(0.0, 0.0))
        assert "cannot reach the API server" in await failure(client, CONFIG_MAP)


async def failure(client: KubeClient, kind: Kind[ConfigMap]) -> str:
    with pytest.raises(errors.KubeError) as raised:
        await client.list(kind)
    return explain_error(raised.value, client.server)
