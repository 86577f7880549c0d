"""The test control plane: start, stop, users, pauses, outages, and audit log."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from controlplane.harness import ApiError, ControlPlane
from karpenter.api.kinds import POD
from karpenter.kube import errors
from karpenter.kube.informer import Informer

_DEADLINE_SECONDS = 10.0
_POLL_SECONDS = 0.02


def manifest(kind: str, name: str, version: str = "v1", **more: object) -> dict[str, object]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **more}


def widget_definition(name: str) -> dict[str, object]:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return manifest(
        "CustomResourceDefinition",
        f"{name}s.tests.example",
        "apiextensions.k8s.io/v1",
        spec={
            "group": "tests.example",
            "scope": "Cluster",
            "names": {"plural": f"{name}s", "kind": name.title()},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    )


def test_it_is_the_release_the_module_names(control_plane: ControlPlane) -> None:
    module = (Path(__file__).parent / "go.mod").read_text()
    assert f"k8s.io/kubernetes {control_plane.request('GET', '/version')['gitVersion']} " in module


def test_a_definition_is_served_when_apply_returns(control_plane: ControlPlane) -> None:
    control_plane.apply(widget_definition("widget"), manifest("Widget", "one", "tests.example/v1", size=3))
    assert control_plane.request("GET", "/apis/tests.example/v1/widgets/one")["size"] == 3


def test_applying_again_changes_what_is_there(control_plane: ControlPlane) -> None:
    for value in ("old", "new"):
        control_plane.apply({**manifest("ConfigMap", "harness-apply"), "data": {"key": value}})
    request = control_plane.request("GET", "/api/v1/namespaces/default/configmaps/harness-apply")
    assert request["data"] == {"key": "new"}


def test_a_refused_request_says_why(control_plane: ControlPlane) -> None:
    with pytest.raises(ApiError, match="not found") as raised:
        control_plane.request("GET", "/api/v1/nodes/nowhere")
    assert raised.value.status == 404


def test_a_server_side_dry_run_stores_nothing_and_reports_every_error(control_plane: ControlPlane) -> None:
    control_plane.rehearse(manifest("ConfigMap", "harness-rehearsed"))
    with pytest.raises(ApiError, match="not found"):
        control_plane.request("GET", "/api/v1/namespaces/default/configmaps/harness-rehearsed")
    with pytest.raises(ApiError, match="datum"):
        control_plane.rehearse(manifest("ConfigMap", "harness-rehearsed", datum={}))


def test_a_server_stopped_and_started_has_its_port_and_its_data(control_plane: ControlPlane) -> None:
    control_plane.apply(manifest("ConfigMap", "kept"))
    before = control_plane.server
    control_plane.stop_server()
    with pytest.raises(OSError, match="refused"):
        control_plane.request("GET", "/version")
    control_plane.start_server()
    assert control_plane.server == before
    assert control_plane.request("GET", "/api/v1/namespaces/default/configmaps/kept")["kind"] == "ConfigMap"


def test_a_plane_that_was_paused_serves_again(control_plane: ControlPlane) -> None:
    control_plane.apply(manifest("ConfigMap", "paused"))
    control_plane.pause()
    control_plane.resume()
    assert control_plane.request("GET", "/api/v1/namespaces/default/configmaps/paused")["kind"] == "ConfigMap"


async def test_users_without_a_role_may_do_nothing(control_plane: ControlPlane) -> None:
    async with control_plane.client("nobody") as client:
        with pytest.raises(errors.Forbidden, match="nobody"):
            await client.list(POD)


async def test_the_scheduler_and_the_workload_controllers_work(working_control_plane: ControlPlane) -> None:
    labels = {"app": "harness"}
    node = manifest("Node", "harness")
    container = {"name": "main", "image": "none"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    deployment = manifest(
        "Deployment",
        "harness",
        "apps/v1",
        spec={"replicas": 2, "selector": {"matchLabels": labels}, "template": template},
    )
    working_control_plane.apply(node, deployment)
    ready = {
        "capacity": {"cpu": "4", "memory": "8Gi", "pods": "10"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    working_control_plane.request(
        "PATCH", "/api/v1/nodes/harness/status", {"status": ready}, "application/merge-patch+json"
    )
    working_control_plane.request(
        "PATCH", "/api/v1/nodes/harness", {"spec": {"taints": None}}, "application/merge-patch+json"
    )
    async with working_control_plane.client() as client:
        pods = Informer(client, POD, indexes={"node": lambda pod: [pod.spec.node_name]})
        await _until_bound(pods, 2)


async def _until_bound(pods: Informer, count: int) -> None:

    bound = asyncio.Event()
    pods.subscribe(lambda old, new: bound.set() if len(pods.by_index("node", "harness")) == count else None)
    running = asyncio.create_task(pods.run())
    try:
        await asyncio.wait_for(bound.wait(), _DEADLINE_SECONDS)
    finally:
        running.cancel()


@pytest.mark.skipif(sys.platform != "linux", reason="processes die with their parent on Linux only")
def test_nothing_outlives_a_test_run_that_is_killed(control_plane: ControlPlane) -> None:
    program = (
        "from controlplane.harness import ControlPlane; import time\n"
        "plane = ControlPlane()\n"
        "plane._await = plane._start_clients = lambda *_: None\n"  # it need not serve
        "plane.start()\n"
        "print(*(process.pid for process in plane._processes), plane.folder, flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stdout is not None
        *pids, folder = run.stdout.readline().split()
        run.send_signal(signal.SIGKILL)
    assert len(pids) == 2
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while any(_is_running(int(pid)) for pid in pids):
        assert time.monotonic() < deadline, "the control plane outlives its parent"
        time.sleep(_POLL_SECONDS)
    shutil.rmtree(folder)


def _is_running(pid: int) -> bool:
    """Whether a process still runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
