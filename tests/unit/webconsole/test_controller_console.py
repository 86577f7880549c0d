"""The console that the controller serves sees what its controllers know, for each audience, and says when they know nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from karpenter.api import kinds
from karpenter.api.meta import ObjectMeta
from karpenter.api.node_overlay import NodeOverlay, NodeOverlaySpec
from karpenter.console.console_view import ConsoleView
from karpenter.console.visible_objects import Visibility, visible_input
from karpenter.kube import config
from karpenter.manager import Manager, ManagerOptions
from karpenter.manager_process import RunningController
from karpenter.model.feature_gate_flags import parse_feature_gates
from karpenter.settings import Settings
from karpenter.webconsole.controller_console import ControllerSource
from support.builders import pod
from support.fake_cloud import TYPES
from support.virtual_cluster import VirtualCluster, in_virtual_time


@in_virtual_time
async def test_the_cluster_of_the_running_controllers_is_shown_as_far_as_it_may_be_seen(
    cluster: VirtualCluster,
) -> None:
    await cluster.node_class()
    await cluster.pool()
    cluster.simulated()
    cluster.scheduled()
    await cluster.start()
    assert cluster.manager is not None
    source = ControllerSource(RunningController(cluster.manager, cast(Any, None), lambda: True))
    following = asyncio.create_task(source.run())
    await cluster.waiting(pod("small", {"cpu": "1"}), pod("huge", {"cpu": "1000"}))
    await asyncio.sleep(60)
    whole = source.current()
    assert whole is not None
    view = ConsoleView(whole)
    (row,) = view.nodes
    assert row.pool == "np"
    assert row.price_per_hour
    (left,) = view.pending
    assert left.reason.startswith("unschedulable: "), "the last pass of the controller says why"
    seen = ConsoleView(visible_input(whole, Visibility(pod_namespaces=frozenset({"default"}))))
    assert (seen.nodes, seen.pools, seen.price_per_hour) == ((), (), 0.0)
    assert source.title == "the cluster of this controller"
    assert [left.full_name for left in seen.pending] == ["default/huge"]
    assert "np" not in seen.pending[0].reason
    following.cancel()


@in_virtual_time
async def test_a_process_that_does_not_watch_yet_says_so(cluster: VirtualCluster) -> None:
    await cluster.start()
    assert cluster.manager is not None
    cluster.manager.informers._is_running = False
    source = ControllerSource(RunningController(cluster.manager, cast(Any, None), lambda: False))
    assert source.current() is None
    assert source.fault() == "this process does not watch the cluster yet"


@in_virtual_time
async def test_a_replica_that_does_not_lead_shows_the_cluster_and_says_where_the_history_is(
    cluster: VirtualCluster, tmp_path: Path
) -> None:
    """Behind a Service either replica answers: both know the cluster, one keeps the history."""
    await cluster.pool()
    manager = Manager(
        cluster.kube,
        cluster.cloud,
        cluster.clock,
        Settings(console=True, history_file=str(tmp_path / "history.db")),
    )
    never_elected = asyncio.Event()

    async def elected() -> None:
        await never_elected.wait()

    following = asyncio.create_task(manager.run(elected))
    await asyncio.sleep(1)
    source = ControllerSource(RunningController(manager, cast(Any, None), lambda: False))
    given = source.current()
    assert given is not None
    assert [row.name for row in ConsoleView(given).pools] == ["np"]
    assert source.title.endswith("does not lead")
    assert source.fault() == ""
    assert source.history_fault().startswith("this replica does not lead, and the one that leads keeps the history")
    assert not (tmp_path / "history.db").exists()
    following.cancel()


@in_virtual_time
async def test_a_replica_that_does_not_lead_applies_prices_of_overlays_and_writes_nothing(
    cluster: VirtualCluster,
) -> None:
    await cluster.node_class()
    await cluster.pool()
    spec = NodeOverlaySpec(requirements=(), price_adjustment="+100%")
    await cluster.kube.create(kinds.NODE_OVERLAY, NodeOverlay(metadata=ObjectMeta(name="dear"), spec=spec))
    settings = Settings(console=True, feature_gates=parse_feature_gates("NodeOverlay=true"))
    manager = Manager(cluster.kube, cluster.cloud, cluster.clock, settings, ManagerOptions())
    following = asyncio.create_task(manager.run(asyncio.Event().wait))
    await asyncio.sleep(1)
    source = ControllerSource(RunningController(manager, cast(Any, None), lambda: False))
    showing = asyncio.create_task(source.run())
    await asyncio.sleep(2)
    given = source.current()
    assert given is not None
    listed = {one.name: min(offer.price_per_hour for offer in one.offerings) for one in TYPES}
    shown = {one.name: min(offer.price_per_hour for offer in one.offerings) for one in given.indexes["np"].types}
    assert shown == {name: pytest.approx(2 * price) for name, price in listed.items()}
    assert (await cluster.kube.get(kinds.NODE_OVERLAY, "dear")).status.conditions == ()
    showing.cancel()
    following.cancel()


def test_the_connection_of_a_viewer_has_their_token_and_nothing_of_the_controllers(tmp_path: Any) -> None:
    file = tmp_path / "config"
    file.write_text(
        """
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: the-controllers, as: somebody}}]
"""
    )
    connection = config.with_token(config.load(str(file)), "theirs")
    assert connection._identity.available().authorization == "Bearer theirs"
    assert connection._user.as_user == ""
    assert "theirs" not in repr(connection)
