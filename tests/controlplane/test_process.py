"""Controls of a controller process: kill, terminate, pause and resume."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from controlplane import deployed
from controlplane.deployed import Account
from controlplane.harness import ControlPlane
from controlplane.ports import free_port
from controlplane.process import Controller, controller, scraped

pytestmark = pytest.mark.cluster


@pytest.fixture
def account(plane: ControlPlane) -> Iterator[Account]:
    with deployed.installed(plane) as ready:
        yield ready


def until_ready(running: Controller) -> None:
    running.until(running.is_ready, "become ready")


def test_two_replicas_answer_probes_and_end_each_for_itself(account: Account) -> None:
    with (
        controller(account.kubeconfig) as one,
        controller(account.kubeconfig, "--log-level", "debug") as other,
    ):
        until_ready(one)
        until_ready(other)
        one.kill()
        assert not one.is_running
        assert one.probe("/healthz")[0] == 0
        assert other.probe("/healthz")[0] == 200
        assert other.terminate() == 0
        assert other.lines("All workers finished")


def test_a_paused_process_answers_nothing_until_it_is_resumed(account: Account) -> None:
    with controller(account.kubeconfig) as running:
        until_ready(running)
        running.pause()
        assert running.probe("/healthz")[0] == 0
        running.resume()
        running.until(lambda: running.probe("/healthz")[0] == 200, "answer again")


def test_a_process_that_ends_badly_fails_the_test(account: Account) -> None:
    with (
        pytest.raises(TimeoutError, match="KUBE_CLIENT_QPS='none'"),
        controller(account.kubeconfig, environment={"KUBE_CLIENT_QPS": "none"}) as running,
    ):
        until_ready(running)


def test_metrics_are_read_by_name_and_labels() -> None:
    registry = CollectorRegistry()
    Gauge("things", "How many.", ["kind"], registry=registry).labels("good").set(3)
    port = free_port()
    server, thread = start_http_server(port, "127.0.0.1", registry)
    try:
        assert scraped(port) == {("things", frozenset({("kind", "good")})): 3.0}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    with pytest.raises(ConnectionError, match="refused"):
        scraped(port)
